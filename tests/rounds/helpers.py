"""What vectors are measured by."""

from fairbloom.rounds.updates import FloatArray, Vectors, squares_and_products


def squared_norms(vectors: Vectors) -> FloatArray:
    return squares_and_products(vectors)[0]
