"""Defences against hostile updates, computed from inner products alone; only the trimmed mean reads the updates.

A mixing defence replaces each update by a combination of all, before the method weighs them: x'_i = Σ_k M_ik u_k. The
method sees M G Mᵀ in place of G, and its coefficients c' are Mᵀ c' for the updates as they came. So a defence composes
with every method. It mixes no losses, counts or accuracies: it does not help against clients that lie about these.
A weighing defence replaces the weights of the average.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.streams import generator

from .cohort import Cohort
from .updates import FloatArray, Vectors

CENTRED_CLIPS = 3
"""Steps of centred clipping."""

NONE, BUCKETING, TRIMMED_MEAN = "none", "bucketing", "trimmed-mean"
MIXING = ("clip", "nnm", BUCKETING, "arc")
WEIGHING = ("krum", TRIMMED_MEAN, "geometric-median", "centred-clip")


@dataclass(frozen=True)
class Defence:
    """A defence of a method.

    Attributes
    ----------
    name
        One of MIXING or WEIGHING.
    tolerance
        f, how many of a round's clients may be hostile; 0: a quarter, and at least one.
    seed
        Of the run: buckets are drawn from it and the round.
    """

    name: str
    tolerance: int
    seed: int

    def tolerated(self, m: int) -> int:
        """Return f for a round with m updates: below m/2, whatever was asked for."""
        return min(self.tolerance or max(1, m // 4), (m - 1) // 2)

    def mixing(self, cohort: Cohort) -> FloatArray | None:
        """Return M for all rows of a round, None where the updates stay as they came; kept rows always do."""
        m, f = cohort.size, self.tolerated(cohort.size)
        if self.name not in MIXING or not f:
            return None
        if self.name == BUCKETING:
            mixing = buckets(generator(self.seed, "buckets", cohort.round).permutation(m))
        else:
            mixing = MIXERS[self.name](cohort.gram[:m, :m], f)
        whole = np.eye(cohort.rows)
        for start in range(0, (1 + cohort.second) * m, m):  # second updates are mixed as the updates are
            whole[start : start + m, start : start + m] = mixing
        return whole

    def trimmed(self, m: int) -> int:
        """Return how many values the trimmed mean leaves out at either end; 0 with any other defence."""
        return self.tolerated(m) if self.name == TRIMMED_MEAN else 0

    def of_mean(self, gram: FloatArray) -> FloatArray:
        """Return the weights of each update in the mean behind this defence, as an attacker may know it."""
        m, f = len(gram), self.tolerated(len(gram))
        if self.name in WEIGHERS:
            return WEIGHERS[self.name](gram, f)
        mean = np.full(m, 1.0 / m)
        return mean @ MIXERS[self.name](gram, f) if self.name in MIXERS else mean

    def weights(self, cohort: Cohort) -> FloatArray | None:
        """Return what replaces the method's coefficients, None where nothing does."""
        f = self.tolerated(cohort.size)
        return WEIGHERS[self.name](cohort.gram, f) if f and self.name in WEIGHERS else None


def mixed(cohort: Cohort, mixing: FloatArray) -> Cohort:
    """Return the cohort that a method sees of mixed updates."""

    def mix(gram: FloatArray) -> FloatArray:
        after = mixing @ gram @ mixing.T
        return np.asarray((after + np.swapaxes(after, -1, -2)) / 2.0)

    return replace(
        cohort,
        gram_of=lambda: mix(cohort.gram),
        grams_of=lambda: mix(cohort.grams),
        squared_norms_of=lambda: np.diagonal(mix(cohort.gram))[: cohort.size],
    )


def capped(coefficients: FloatArray, largest: float) -> FloatArray:
    """Return coefficients of which none is more than a share of their sum of absolute values, which stays.

    What is taken from those above the share goes to the others, in proportion to theirs, or evenly where these are 0.
    """
    sizes = np.abs(coefficients)
    total, over = sizes.sum(), np.zeros(len(sizes), bool)
    largest = max(largest, 1.0 / len(sizes))
    while (more := (sizes > largest * total * (1.0 + 1e-12)) & ~over).any():
        over |= more
        sizes[over] = largest * total
        left, rest = max(0.0, total - sizes[over].sum()), sizes[~over]
        enough = rest.sum() > 1e-300 * total
        sizes[~over] = rest * (left / rest.sum()) if enough else left / max(1, len(rest))
    return np.asarray(np.where(coefficients < 0.0, -sizes, sizes))


def squared_distances(gram: FloatArray) -> FloatArray:
    """Return ‖u_i − u_j‖², shape (m, m), from the Gram matrix; none is below 0."""
    squares = np.diagonal(gram)
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0))


# Mixing -------------------------------------------------------------------------------------------------------------


def clip(gram: FloatArray, _tolerance: int = 0) -> FloatArray:
    """Return the matrix that shortens updates to the lower median of the lengths."""
    lengths = np.sqrt(np.diagonal(gram))
    return _shortening(lengths, float(np.sort(lengths)[(len(lengths) - 1) // 2]))


def arc(gram: FloatArray, tolerance: int) -> FloatArray:
    """Return the matrix that shortens the k = ⌊2 f/m (m − f)⌋ longest updates to the length of the longest other one.

    Source: Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, ICLR 2025, Algorithm 1.
    """
    m, lengths = len(gram), np.sqrt(np.diagonal(gram))
    shortened = 2 * tolerance * (m - tolerance) // m
    return _shortening(lengths, float(np.sort(lengths)[m - shortened - 1]))


def _shortening(lengths: FloatArray, longest: float) -> FloatArray:
    return np.diag(np.where(lengths > longest, longest / np.where(lengths > 0.0, lengths, 1.0), 1.0))


def nearest_neighbours(gram: FloatArray, tolerance: int) -> FloatArray:
    """Return the matrix that replaces each update by the mean of itself and its m − f − 1 nearest, ties by name.

    Source: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023,
    Algorithm 2.
    """
    m = len(gram)
    distances = squared_distances(gram)
    np.fill_diagonal(distances, -1.0)  # each is its own nearest, before those that are equal to it
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : m - tolerance]
    mixing = np.zeros((m, m))
    np.put_along_axis(mixing, nearest, 1.0 / (m - tolerance), axis=1)
    return mixing


def buckets(order: NDArray[np.int64]) -> FloatArray:
    """Return the matrix that replaces each update by the mean of its bucket: two of them, next in this order.

    Source: Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    Algorithm 1. Departures: each bucket's mean stands for each of its clients, so that a method can weigh clients.
    """
    bucket = np.empty(len(order), np.int64)
    bucket[order] = np.arange(len(order)) // 2
    same = (bucket[:, None] == bucket[None, :]).astype(np.float64)
    return np.asarray(same / same.sum(axis=1, keepdims=True))


# Weighing -----------------------------------------------------------------------------------------------------------


def krum(gram: FloatArray, tolerance: int) -> FloatArray:
    """Return the weights that choose the update with the nearest m − f − 1 others, the first of several.

    Source: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
    Departures: the m − f − 1 nearest as in ByzFL, not m − f − 2, so that three clients can be weighed.
    """
    m = len(gram)
    nearest = np.sort(squared_distances(gram), axis=1)[:, 1 : m - tolerance]
    chosen = np.zeros(m)
    chosen[int(np.argmin(nearest.sum(axis=1)))] = 1.0
    return chosen


def geometric_median(gram: FloatArray, _tolerance: int = 0) -> FloatArray:
    """Return the weights of the geometric median, by Weiszfeld's iteration from the mean.

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE Trans. Signal Processing 70
    (2022), Algorithm 2.
    """
    m = len(gram)
    weights = np.full(m, 1.0 / m)
    least = 1e-6 * float(np.sqrt(np.median(np.diagonal(gram))))  # smooths: a distance of 0 would have all the weight
    for _ in range(200):
        distances = np.sqrt(np.maximum(_to(weights, gram), 0.0))
        closer = 1.0 / np.maximum(distances, least or 1.0)
        before, weights = weights, closer / closer.sum()
        if np.abs(weights - before).max() <= 1e-12:
            break
    return weights


def centred_clip(gram: FloatArray, _tolerance: int = 0) -> FloatArray:
    """Return the weights of centred clipping from 0, with the lower median of the distances as the radius.

    Source: Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021, Algorithm 2.
    Departures: it starts at 0 in every round, and the radius follows the round's updates, so nothing is tuned.
    """
    m = len(gram)
    weights = np.zeros(m)
    for _ in range(CENTRED_CLIPS):
        distances = np.sqrt(np.maximum(_to(weights, gram), 0.0))
        radius = float(np.sort(distances)[(m - 1) // 2])
        factors = np.where(distances > radius, radius / np.where(distances > 0.0, distances, 1.0), 1.0)
        weights = weights * (1.0 - factors.mean()) + factors / m
    return weights


def _to(weights: FloatArray, gram: FloatArray) -> FloatArray:
    """Return the squared distance of each update to Σ w_k u_k."""
    products = gram @ weights
    return np.asarray(np.diagonal(gram) - 2.0 * products + weights @ products)


MIXERS: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {"clip": clip, "nnm": nearest_neighbours, "arc": arc}
WEIGHERS: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "krum": krum,
    "geometric-median": geometric_median,
    "centred-clip": centred_clip,
}
"""The defences that need the Gram matrix and the tolerance alone."""


def trimmed_mean(vectors: Vectors, tolerance: int) -> FloatArray:
    """Return the mean of each number's middle values: without the f smallest and the f largest.

    Source: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 2.
    """
    mean = np.empty(vectors.size)
    for place, block in vectors.chunks(True):
        mean[place] = np.sort(block * vectors.scales[:, None], axis=0)[tolerance : len(block) - tolerance].mean(axis=0)
    return mean
