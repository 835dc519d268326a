"""A client's node: its calls to the SuperLink, and the process that calls the app."""
