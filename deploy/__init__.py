"""Real nodes: warm clients, certificates and keys, and the operator's commands."""
