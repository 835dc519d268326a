"""The run folder: which files it has, what is in each, and how they are written and read."""
