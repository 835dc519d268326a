"""Real federations for benchmarks: clients that exist, in tables that their sources publish."""
