"""The server side of a run: settings, rounds, records, checkpoints and the measures of fairness."""

if __name__ != "fairbloom.server":
    raise ImportError("import fairbloom.server: as server its classes would be second copies")
