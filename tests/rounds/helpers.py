"""Updates of replies, and what vectors are measured by."""

from collections.abc import Iterable, Mapping

import numpy as np

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, gram_matrices, squares_and_products


def taken_in(layout: Layout, replies: Iterable[Mapping[str, np.ndarray]]) -> Updates:
    """Return the updates of replies; their arrays are borrowed."""
    stored = Updates(layout)
    for reply in replies:
        stored.add(reply)
    return stored


def squared_norms(vectors: Vectors) -> FloatArray:
    return squares_and_products(vectors)[0]


def gram_matrix(vectors: Vectors, *, exact: bool = False) -> FloatArray:
    return np.asarray(gram_matrices(vectors, (vectors.size,), exact=exact)[0])
