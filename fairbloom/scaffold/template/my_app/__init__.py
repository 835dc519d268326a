"""my-app: a Flower app that leaves no client behind."""
