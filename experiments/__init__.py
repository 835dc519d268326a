"""Comparisons of methods, and what the command line prints of runs, methods, tasks and settings."""
