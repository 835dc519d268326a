"""Atomic files, file locks, and processes that start and end together."""
