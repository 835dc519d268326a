"""The command line: runs, comparisons and what there is to choose from."""
