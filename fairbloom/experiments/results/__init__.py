"""What came out of runs, comparisons and reproductions, as values: nothing here draws or prints."""
