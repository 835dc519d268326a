"""Commands of `fairbloom`: functions whose parameters are options, and whose docstrings are the help."""
