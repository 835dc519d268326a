"""What shows runs while they go on: `fairbloom watch`, in the terminal and as a page."""
