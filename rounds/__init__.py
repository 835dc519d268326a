"""The rounds of federated learning: who is drawn, what a method makes of their updates, and who computes them."""
