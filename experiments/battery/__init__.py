"""A battery of tests for a method of somebody's own: what it does that no method may, in words."""
