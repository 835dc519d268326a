"""A battery of checks for a method: what every federated method must keep to, and what is wrong where it does not."""
