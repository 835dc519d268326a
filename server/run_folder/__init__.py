"""The run folder: its files, their content, and how they are written and read."""
