"""Runs, comparisons, searches and reproductions of published results, with their reports."""
