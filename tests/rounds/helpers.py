"""What vectors are measured by."""

import numpy as np

from fairbloom.rounds.updates import FloatArray, Vectors, gram_matrices, squares_and_products


def squared_norms(vectors: Vectors) -> FloatArray:
    return squares_and_products(vectors)[0]


def gram_matrix(vectors: Vectors, *, exact: bool = False) -> FloatArray:
    return np.asarray(gram_matrices(vectors, (vectors.size,), exact=exact)[0])
