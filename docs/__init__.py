"""The documentation; its pages on the methods are written by `methods`."""
