"""Plan and carry out several runs: comparisons, searches and published experiments."""
