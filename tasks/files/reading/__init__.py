"""A file of a client, whatever its format, read into a table of columns."""
