"""Commands of `fairbloom`: a function's parameters are options, its docstring is the help."""
