"""The data sets that are known by name, one file each; those of pictures share theirs."""
