"""A client's device: settings, the loop that keeps it connected, and its worker."""
