"""The server side of a run: settings, rounds, records, checkpoints and the measures of fairness."""
