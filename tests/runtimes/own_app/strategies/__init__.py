"""A package of this app with the name of fairbloom.strategies."""
