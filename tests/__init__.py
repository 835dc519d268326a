import sys

# each process would compile hypothesis, and all that pytest rewrites, for seconds
sys.dont_write_bytecode = False
