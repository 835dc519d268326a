"""The rounds of federated learning: drawing clients, screening replies, weighing updates."""
