"""The data sets of pictures with an official test set."""
