from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fairbloom.strategies import AFL

from .helpers import cohort_of

Losses = Mapping[str, float]


def play(strategy: AFL, rounds: Sequence[Losses], counts: Losses | None = None) -> list[dict[str, float]]:
    """Return c by client name in each round, for the losses of whoever takes part in it."""
    steps = []
    for t, losses in enumerate(rounds, start=1):
        names = sorted(losses)
        n = [(counts or dict.fromkeys(names, 1.0))[name] for name in names]
        given = [losses[name] for name in names]
        cohort = cohort_of(
            np.eye(len(names)), losses=given, counts=n, weighting=strategy.weighting, names=names, round=t
        )
        c = strategy.weigh(cohort)
        assert strategy.remember(cohort, c, {}) == {}
        steps.append(dict(zip(names, c, strict=True)))
    return steps


def weights(strategy: AFL) -> dict[str, float]:
    return strategy.memory["weights"]


# Closed forms -------------------------------------------------------------------------------------------------------


def test_clients_without_mass_are_averaged_by_prior_by_hand() -> None:
    strategy = AFL(gamma=10.0)
    steps = play(strategy, [{"a": 9.0, "b": 0.0, "c": 0.0}, {"b": 0.0, "c": 0.0}], {"a": 1.0, "b": 1.0, "c": 3.0})
    assert steps[1] == pytest.approx({"b": 0.25, "c": 0.75})
    assert weights(strategy) == pytest.approx({"a": 1.0, "b": 0.0, "c": 0.0})


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_extreme_losses() -> None:
    lowest, even = [0.0, 1.0], [0.5, 0.5]
    for F, expected in (([0.0, 0.0], even), ([0.0, 1e30], lowest), ([1.0, 1.7e308], lowest), ([-1.7e308, 1.0], lowest)):
        for gamma in (1e-9, 1.0, 1e30):
            strategy = AFL(gamma=gamma, weighting="uniform")
            play(strategy, [dict(zip("ab", F, strict=True))])
            np.testing.assert_allclose(list(weights(strategy).values()), expected, atol=1e-15)
