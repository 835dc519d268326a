"""Many clients at once: the programs that compute them side by side."""
