"""One client: answers QUERY, TRAIN and EVALUATE messages with its own data."""

if __name__ != "fairbloom.client":
    raise ImportError("import fairbloom.client: as client its classes would be second copies")
