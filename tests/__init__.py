import sys

sys.dont_write_bytecode = False  # each process would compile hypothesis, and all that pytest rewrites, for seconds
