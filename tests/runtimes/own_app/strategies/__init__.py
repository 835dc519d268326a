"""A package of this app, beside fairbloom.strategies."""
