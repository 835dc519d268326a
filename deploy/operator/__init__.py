"""Commands of the federation's operator on its folder."""
