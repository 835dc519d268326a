from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.strategies import AAggFF
from fairbloom.strategies.aaggff import CDFS, responses

from .helpers import advance, client_names, cohort_of, recall
from .reference import RESPONSES

Losses = Mapping[str, float]
positive = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6)


def play(
    strategy: AAggFF, rounds: Sequence[Losses], known: Sequence[int] | None = None
) -> list[dict[str, float]]:
    """Return c by client name in each round, for the losses of its participants; `known` is N in
    each."""
    steps = []
    for t, losses in enumerate(rounds, start=1):
        names = sorted(losses)
        roster = dict.fromkeys(client_names(known[t - 1] if known else 0), 0.0)
        F = [losses[name] for name in names]
        cohort = cohort_of(
            np.eye(len(names)), losses=F, names=names, round=t, roster=roster, past=strategy.past
        )
        c = advance(strategy, cohort)
        steps.append(dict(zip(names, c.tolist(), strict=True)))
    return steps


# Reductions ---------------------------------------------------------------------------------------


@given(m=st.integers(1, 9), loss=st.floats(-1e30, 1e30), rule=st.sampled_from(("ons", "ftrl")))
def test_equal_losses_are_fedavg_with_uniform_weights(rule: str, m: int, loss: float) -> None:
    for step in play(AAggFF(rule=rule), [dict.fromkeys(client_names(m), loss)] * 3):
        np.testing.assert_allclose(list(step.values()), 1.0 / m, rtol=1e-12)


# The distribution functions -----------------------------------------------------------------------


@pytest.mark.parametrize("cdf", CDFS)
@given(losses=positive)
def test_responses_are_those_of_the_formulas(losses: list[float], cdf: str) -> None:
    F = np.array(losses)
    np.testing.assert_allclose(
        responses(F, cdf), [RESPONSES[cdf](x) for x in F / F.mean()], rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize("cdf", CDFS)
def test_a_loss_of_0_or_less_counts_alike_and_all_as_the_mean(cdf: str) -> None:
    np.testing.assert_array_equal(
        responses(np.array([0.0, 1.0, 3.0]), cdf), responses(np.array([-5.0, 1.0, 3.0]), cdf)
    )
    expected = RESPONSES[cdf](1.0)
    np.testing.assert_allclose(responses(np.zeros(3), cdf), expected, rtol=1e-12)
    np.testing.assert_allclose(responses(np.array([-1.0, -2.0]), cdf), expected, rtol=1e-12)
    for losses in ([1e308, 1e308, 1e308], [1e-308, 1e308], [5e-324, 1.0], [0.0, 1e-320]):
        rho = responses(np.array(losses), cdf)
        assert np.isfinite(rho).all()
        assert 0.0 <= rho.min() <= rho.max() <= 1.0


# Few clients: an online Newton step ---------------------------------------------------------------


def test_clients_without_any_share_of_the_decision_are_averaged() -> None:
    strategy = AAggFF()
    # b₁ draws everything to a
    zeros = {"A": np.zeros((3, 3)), "b2": np.zeros(3)}
    recall(strategy, names=["a", "b", "c"], b1=np.array([-90.0, 0.0, 0.0]), **zeros)
    (step,) = play(strategy, [{"b": 1.0, "c": 1.0}])
    assert step == {"b": 0.5, "c": 0.5}


# Many clients: follow the regularised leader ------------------------------------------------------


def test_scores_are_kept_only_of_clients_that_were_seen() -> None:
    strategy = AAggFF(rule="ftrl")
    play(
        strategy,
        [{"client-000": 1.0, "client-001": 3.0}, {"client-001": 1.0, "client-004": 2.0}],
        [50, 50],
    )
    assert set(strategy.past.memory["scores"]) == {"client-000", "client-001", "client-004"}
    assert strategy.past.memory["steps"] == 2


def test_only_ftrl_asks_for_the_roster() -> None:
    assert ["roster" in each.requires for each in (AAggFF(), AAggFF(rule="ftrl"))] == [False, True]
