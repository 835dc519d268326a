"""The operator's calls of the SuperLink, and Flower's commands."""
