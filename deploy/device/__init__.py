"""What runs on a client's device: its settings, the loop that keeps its node up, and the warm node."""
