from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.strategies import AFL

from .helpers import client_names, cohort_of, histories
from .reference import Seen, afl_weights

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


COUNTS = {name: float(10 + 7 * k) for k, name in enumerate(client_names(6))}

# Closed forms -------------------------------------------------------------------------------------------------------


def test_clients_without_mass_are_averaged_by_prior_by_hand() -> None:
    strategy = AFL(gamma=10.0)
    steps = play(strategy, [{"a": 9.0, "b": 0.0, "c": 0.0}, {"b": 0.0, "c": 0.0}], {"a": 1.0, "b": 1.0, "c": 3.0})
    assert steps[1] == pytest.approx({"b": 0.25, "c": 0.75})
    assert weights(strategy) == pytest.approx({"a": 1.0, "b": 0.0, "c": 0.0})


# Properties ---------------------------------------------------------------------------------------------------------


@given(rounds=histories(), gamma=st.floats(0.0, 2.0), weighting=st.sampled_from(("examples", "uniform")))
def test_the_history_is_that_of_the_definition(weighting: str, rounds: list[dict[str, float]], gamma: float) -> None:
    strategy = AFL(gamma=gamma, weighting=weighting)
    steps = play(strategy, rounds, COUNTS)
    history: list[Seen] = []
    for t, (losses, step) in enumerate(zip(rounds, steps, strict=True), start=1):
        present = {name: losses[name] for name in sorted(losses)}
        counts = {name: COUNTS[name] for name in present}
        history.append(Seen(t, 10, dict.fromkeys(present, np.zeros(1)), present, counts))
        before, after = afl_weights(history, gamma, weighting)
        mass = sum(before[name] for name in present)
        if mass > 1e-9:
            expected = {name: before[name] / mass for name in present}
            assert step == pytest.approx(expected, abs=1e-9 / mass)
    assert weights(strategy) == pytest.approx(after, abs=1e-9)


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_extreme_losses() -> None:
    lowest, even = [0.0, 1.0], [0.5, 0.5]
    for F, expected in (([0.0, 0.0], even), ([0.0, 1e30], lowest), ([1.0, 1.7e308], lowest), ([-1.7e308, 1.0], lowest)):
        for gamma in (1e-9, 1.0, 1e30):
            strategy = AFL(gamma=gamma, weighting="uniform")
            play(strategy, [dict(zip("ab", F, strict=True))])
            np.testing.assert_allclose(list(weights(strategy).values()), expected, atol=1e-15)
