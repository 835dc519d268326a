"""Real nodes: warm clients, certificates and keys, and the operator's commands."""

if __name__ != "fairbloom.deploy":
    raise ImportError("import fairbloom.deploy: as deploy its classes would be second copies")
