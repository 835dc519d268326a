"""Defences against hostile updates, computed from inner products.

Only the trimmed mean reads the updates.

A mixing defence replaces each update by a combination of all, before the method weighs them: x'_i =
Σ_k M_ik u_k. The method sees M G Mᵀ instead of G, and its coefficients c' become Mᵀ c' for the
received updates. So a defence composes with every method. It does not mix losses, counts or
accuracies: it does not help against clients that lie about these. A weighing defence replaces the
weights of the average.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .cohort import Cohort
from .vectors import Vectors

NONE = "none"
TRIMMED_MEAN = "trimmed-mean"
MIXING = ("clip", "nnm")
WEIGHING = ("krum", TRIMMED_MEAN, "geometric-median")


@dataclass(frozen=True)
class Defence:
    """A defence of a method.

    Attributes
    ----------
    name
        One of MIXING or WEIGHING.
    tolerance
        f, the number of a round's clients that may be hostile; 0: a quarter, and at least one.
    """

    name: str
    tolerance: int

    def tolerated(self, m: int) -> int:
        """Return f for a round with m updates; it is always below m/2."""
        return min(self.tolerance or max(1, m // 4), (m - 1) // 2)

    def mixing(self, cohort: Cohort) -> FloatArray | None:
        """Return M for all rows of a round, or None if this defence mixes no updates.

        M leaves kept rows unchanged.
        """
        m = cohort.size
        f = self.tolerated(cohort.size)
        if self.name not in MIXING or not f:
            return None
        mixing = MIXERS[self.name](cohort.gram[:m, :m], f)
        whole = np.eye(cohort.rows)
        # second updates are mixed as the updates are
        for start in range(0, (1 + cohort.second) * m, m):
            whole[start : start + m, start : start + m] = mixing
        return whole

    def trimmed(self, m: int) -> int:
        """Return how many values the trimmed mean drops at either end; 0 with other defences."""
        return self.tolerated(m) if self.name == TRIMMED_MEAN else 0

    def left_out(
        self, names: Sequence[str], mixing: FloatArray | None, weights: FloatArray
    ) -> tuple[str, ...]:
        """Return the clients that count for less than half of an equal share of the mean.

        `mixing` is M for all rows. It is None with a weighing defence, which gives `weights`.
        """
        m = len(names)
        if not self.tolerated(m):
            return ()
        shares = m * weights[:m] if mixing is None else mixing[:m, :m].sum(axis=0)
        return tuple(name for name, share in zip(names, shares, strict=True) if share < 0.5)

    def weights(self, cohort: Cohort) -> FloatArray | None:
        """Return the coefficients that replace the method's, 0 for kept rows, or None."""
        m = cohort.size
        f = self.tolerated(cohort.size)
        if self.name not in WEIGHERS or not f:
            return None
        return np.concatenate(
            [WEIGHERS[self.name](cohort.gram[:m, :m], f), np.zeros(cohort.rows - m)]
        )


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


# Mixing -------------------------------------------------------------------------------------------


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


# Weighing -----------------------------------------------------------------------------------------


def krum(gram: FloatArray, tolerance: int) -> FloatArray:
    """Return the weights that choose the update with the nearest m − f − 2 others.

    Of several such updates, the first is chosen.

    Source: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent, NeurIPS 2017, Section 4. Departures: at least the nearest one, so that three clients
    can be weighed; then the two that are nearest to each other tie.
    """
    neighbours = max(1, len(gram) - tolerance - 2)
    nearest = np.sort(squared_distances(gram), axis=1)[:, 1 : 1 + neighbours]
    chosen = np.zeros(len(gram))
    chosen[int(np.argmin(nearest.sum(axis=1)))] = 1.0
    return chosen


def geometric_median(gram: FloatArray, _tolerance: int = 0) -> FloatArray:
    """Return the weights of the geometric median, by Weiszfeld's iteration from the mean.

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE Trans.
    Signal Processing 70 (2022), Algorithm 2.
    """
    m = len(gram)
    weights = np.full(m, 1.0 / m)
    squared_norms = np.diagonal(gram)
    # Without a least distance, an update at distance 0 would have all the weight. If most updates
    # are zero, their median gives none, and the largest norm does.
    least = 1e-6 * float(np.sqrt(np.median(squared_norms) or squared_norms.max()))
    for _ in range(200):
        products = gram @ weights
        squares = squared_norms - 2.0 * products + weights @ products  # ‖u_i − Σ w_k u_k‖²
        closer = 1.0 / np.maximum(np.sqrt(np.maximum(squares, 0.0)), least or 1.0)
        before = weights
        weights = closer / closer.sum()
        if np.abs(weights - before).max() <= 1e-12:
            break
    return weights


# The defences that need only the Gram matrix and the tolerance.
MIXERS: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "clip": clip,
    "nnm": nearest_neighbours,
}
WEIGHERS: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "krum": krum,
    "geometric-median": geometric_median,
}


def trimmed_mean(vectors: Vectors, tolerance: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean of each entry without its f smallest and f largest values, shape (d,).

    It also returns the clients' coefficients, shape (m,): the weight of a client's value in the
    mean of an entry, averaged over all entries. Equal values at an end of the middle share the rest
    of the weight there.

    Source: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 2.
    """
    m = len(vectors)
    mean = np.empty(vectors.size)
    weights = np.zeros(m)

    def take(place: slice, values: NDArray[Any]) -> FloatArray:
        middle = np.sort(values, axis=0)[tolerance : m - tolerance]
        mean[place] = middle.mean(axis=0)
        used = ((middle[0] < values) & (values < middle[-1])).astype(np.float64)
        ends = 1.0 - 0.5 * (middle[0] == middle[-1])  # a single value is both ends, and met twice
        for end in (middle[0], middle[-1]):
            equal = values == end
            used += equal * (ends * (middle == end).sum(axis=0) / equal.sum(axis=0))
        return np.asarray(used.sum(axis=1))

    for weight in vectors.map_chunks(True, take):
        weights += weight
    return mean, weights / (vectors.size * (m - 2 * tolerance))
