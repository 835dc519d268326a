from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Kept
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedFa

from .helpers import client_names, cohort_of
from .reference import Seen, fedfa


def first_round(accuracies: Sequence[float], **arguments: Any) -> FloatArray:
    return FedFa(**arguments).weigh(cohort_of(np.eye(len(accuracies)), accuracies=accuracies))


# Properties ---------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from((0.0, 0.5, 1.0)),
    beta=st.sampled_from((0.5, 2.0)),
    momentum=st.sampled_from((0.0, 0.5, 0.9)),
)
def test_velocity_and_participation_follow_the_definition(
    seed: int, alpha: float, beta: float, momentum: float
) -> None:
    """Random participants over ten rounds, one of them skipped; the memory goes through `remember` alone."""
    rng = np.random.default_rng(seed)
    strategy = FedFa(alpha=alpha, beta=beta, server_momentum=momentum)
    memory: dict[Kept, FloatArray] = {}
    history: list[Seen] = []
    for t in range(1, 11):
        names = [name for name in client_names(6) if rng.random() < 0.5]
        if not names or t == 4:
            continue
        U, A = rng.normal(size=(len(names), 5)), rng.uniform(size=len(names))
        vectors, accuracies = (dict(zip(names, column, strict=True)) for column in (U, A))
        history.append(Seen(t, 10, vectors, {}, dict.fromkeys(names, 1.0), accuracies))
        cohort = cohort_of(U, accuracies=A, names=names, round=t, memory=memory)
        rows = np.vstack([U, *memory.values()])
        c = strategy.weigh(cohort)
        expected = fedfa(history, alpha, beta, momentum)
        np.testing.assert_allclose(c @ rows, expected, rtol=1e-9, atol=1e-12)
        memory = {kept: mix @ rows for kept, mix in strategy.remember(cohort, c, {}).items()}
    took_part = [name for seen in history for name in seen.updates]
    assert strategy.memory.get("rounds", {}) == {name: took_part.count(name) for name in set(took_part)}


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_accuracies_are_floored_at_1e_minus_6() -> None:
    for A in ([0.0, 0.0], [0.0, 1.0], [1e-30, 1.0], [1e-6, 1.0], [1.0, 1.0, 0.0], [-1.0, 0.5]):
        floored = np.maximum(A, 1e-6)
        bits = -np.log2(floored / floored.sum())
        np.testing.assert_allclose(first_round(A, alpha=1.0, beta=0.0), bits / bits.sum(), rtol=1e-12)
        assert np.isfinite(first_round(A)).all()
