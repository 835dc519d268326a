"""FairFed: weights by how far a client's gap between two groups is from the gap over all clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FairFed

from .helpers import cohort_of

COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")


ROWS = [(40, 40, 0, 20), (40, 40, 12, 16), (20, 20, 8, 4)]


def cohort(rows: Sequence[tuple[int, int, int, int]], counts: Sequence[float], **changes: Any) -> Cohort:
    """Return clients with so many examples, positives in both groups and hits in both, and the same accuracy."""
    groups = dict(zip(COUNTS, zip(*rows, strict=True), strict=True))
    return cohort_of(np.eye(len(rows)), counts=counts, accuracies=[0.8] * len(rows), groups=groups, **changes)


# By hand ------------------------------------------------------------------------------------------------------------


def test_weights_are_those_of_a_hand_computed_round() -> None:
    """Gaps: 20/40 less 0/40 is 0.5, 16/40 less 12/40 is 0.1, 4/20 less 8/20 is −0.2; 40/100 less 20/100 is 0.2.

    So the clients are 0.3, 0.1 and 0.4 away from it, 0.8/3 on average.
    """
    there = cohort(ROWS, [100.0, 200.0, 100.0])
    omega = np.array([0.25, 0.5, 0.25]) - 0.6 * (np.array([0.3, 0.1, 0.4]) - 0.8 / 3)
    method = FairFed(beta=0.6)
    np.testing.assert_allclose(method.weigh(there), omega, rtol=1e-12)
    method.remember(there, method.weigh(there), {})
    assert list(method.memory["weights"].values()) == pytest.approx(omega.tolist(), rel=1e-12)


# Memory and edges ---------------------------------------------------------------------------------------------------


def test_a_size_counts_as_it_was_first_known() -> None:
    grown = cohort(ROWS[:2], [400.0, 300.0], names=["a", "b"], roster={"a": 100.0, "b": 300.0})
    assert FairFed(beta=0.0).weigh(grown).tolist() == pytest.approx([0.25, 0.75])


def test_without_positive_weights_examples_count() -> None:
    method = FairFed(beta=0.0)
    method.memory = {"weights": {"a": -0.5, "b": 0.2}}
    there = cohort(ROWS[:2], [100.0, 300.0], names=["a", "b"])
    assert method.weigh(there).tolist() == pytest.approx([0.25, 0.75])
