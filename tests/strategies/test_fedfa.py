from collections.abc import Sequence
from typing import Any

import numpy as np

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedFa

from .helpers import cohort_of


def first_round(accuracies: Sequence[float], **arguments: Any) -> FloatArray:
    return FedFa(**arguments).weigh(cohort_of(np.eye(len(accuracies)), accuracies=accuracies))


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_accuracies_are_floored_at_1e_minus_6() -> None:
    for A in ([0.0, 0.0], [0.0, 1.0], [1e-30, 1.0], [1e-6, 1.0], [1.0, 1.0, 0.0], [-1.0, 0.5]):
        floored = np.maximum(A, 1e-6)
        bits = -np.log2(floored / floored.sum())
        np.testing.assert_allclose(first_round(A, alpha=1.0, beta=0.0), bits / bits.sum(), rtol=1e-12)
        assert np.isfinite(first_round(A)).all()
