"""Clients on several forked processes: who computes which, and the pipes that carry their models."""
