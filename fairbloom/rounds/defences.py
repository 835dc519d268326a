"""Defences against hostile updates, computed from inner products.

A defence replaces each update by a combination of all, before the method weighs them: x'_i = Σ_k
M_ik u_k. The method sees M G Mᵀ instead of G, and its coefficients c' become Mᵀ c' for the received
updates. So a defence composes with every method. It does not mix losses, counts or accuracies: it
does not help against clients that lie about these. Robust aggregators, which replace the method,
are TorchJD's (`torchjd:krum`) and Flower's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .arrays import FloatArray
from .cohort import Cohort

NONE = "none"


@dataclass(frozen=True)
class Defence:
    """A defence of a method.

    Attributes
    ----------
    name
        One of MIXERS.
    tolerance
        f, the number of a round's clients that may be hostile; 0: a quarter, and at least one.
    """

    name: str
    tolerance: int

    def tolerated(self, m: int) -> int:
        """Return f for a round with m updates; it is always below m/2."""
        return min(self.tolerance or max(1, m // 4), (m - 1) // 2)

    def mixing(self, cohort: Cohort) -> FloatArray | None:
        """Return M for all rows of a round, or None if the round has too few clients.

        M leaves kept rows unchanged.
        """
        m = cohort.size
        f = self.tolerated(cohort.size)
        if not f:
            return None
        mixing = MIXERS[self.name](cohort.gram[:m, :m], f)
        whole = np.eye(cohort.rows)
        # second updates are mixed as the updates are
        for start in range(0, (1 + cohort.second) * m, m):
            whole[start : start + m, start : start + m] = mixing
        return whole


def left_out(names: Sequence[str], mixing: FloatArray | None) -> tuple[str, ...]:
    """Return the clients that count for less than half of an equal share of the mean."""
    if mixing is None:
        return ()
    shares = mixing[: len(names), : len(names)].sum(axis=0)
    return tuple(name for name, share in zip(names, shares, strict=True) if share < 0.5)


def mixed(cohort: Cohort, mixing: FloatArray) -> Cohort:
    """Return the cohort of the mixed updates, which the method sees."""

    def mix(gram: FloatArray) -> FloatArray:
        after = mixing @ gram @ mixing.T
        return np.asarray((after + np.swapaxes(after, -1, -2)) / 2.0)

    return replace(
        cohort,
        gram_of=lambda: mix(cohort.gram),
        grams_of=lambda: mix(cohort.grams),
        squared_norms_of=lambda: np.diagonal(mix(cohort.gram))[: cohort.size],
    )


def squared_distances(gram: FloatArray) -> FloatArray:
    """Return ‖u_i − u_j‖² ≥ 0, shape (m, m), from the Gram matrix."""
    squares = np.diagonal(gram)
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0))


def clip(gram: FloatArray, _tolerance: int = 0) -> FloatArray:
    """Return the matrix that shortens updates to the lower median of their norms."""
    norms = np.sqrt(np.diagonal(gram))
    median = float(np.sort(norms)[(len(norms) - 1) // 2])
    return np.diag(np.where(norms > median, median / np.where(norms > 0.0, norms, 1.0), 1.0))


def nearest_neighbours(gram: FloatArray, tolerance: int) -> FloatArray:
    """Return the matrix that averages each update with its m − f − 1 nearest, ties by name.

    Source: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity,
    AISTATS 2023, Algorithm 2.
    """
    m = len(gram)
    distances = squared_distances(gram)
    np.fill_diagonal(distances, -1.0)  # an update is its own nearest, before any equal one
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : m - tolerance]
    mixing = np.zeros((m, m))
    np.put_along_axis(mixing, nearest, 1.0 / (m - tolerance), axis=1)
    return mixing


# The defences, as functions of the Gram matrix and the tolerance.
MIXERS: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "clip": clip,
    "nnm": nearest_neighbours,
}
