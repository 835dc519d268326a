"""Clients on several processes: who computes which, and the pipes or the cluster that carry their models."""
