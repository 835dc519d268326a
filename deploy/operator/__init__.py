"""The commands of a federation's operator, which work on its folder."""
