"""Commands of `fairbloom` that have a file of their own, and the options that commands have in common."""
