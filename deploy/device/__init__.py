"""What runs on a client's device: its settings, the loop that keeps it connected, and the worker that it starts."""
