import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import AAggFF, aaggff
from fairbloom.strategies.aaggff import CDFS, decision, responses
from fairbloom.strategies.simplex import min_norm_weights

from .helpers import client_names, cohort_of, histories
from .reference import RESPONSES, Seen, online_newton, regularised_leader

Losses = Mapping[str, float]
both = pytest.mark.parametrize("rule", ["ons", "ftrl"])
positive = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6)


def roster_of(N: int) -> dict[str, float]:
    return dict.fromkeys(client_names(N), 0.0)


def play(strategy: AAggFF, rounds: Sequence[Losses], known: Sequence[int] | None = None) -> list[dict[str, float]]:
    """Return c by client name in each round, for the losses of whoever takes part; `known` is N in each."""
    steps = []
    for t, losses in enumerate(rounds, start=1):
        names = sorted(losses)
        cohort = cohort_of(
            np.eye(len(names)),
            losses=[losses[name] for name in names],
            names=names,
            round=t,
            roster=roster_of(known[t - 1] if known else 0),
        )
        c = strategy.weigh(cohort)
        assert strategy.remember(cohort, c, {}) == {}
        steps.append(dict(zip(names, c.tolist(), strict=True)))
    return steps


def seen(rounds: Sequence[Losses], known: Sequence[int] | None = None) -> list[Seen]:
    rosters = [roster_of(N) for N in known or [0] * len(rounds)]
    return [
        Seen(t, 10, dict.fromkeys(sorted(losses), np.zeros(1)), losses, {}, roster=roster)
        for t, (losses, roster) in enumerate(zip(rounds, rosters, strict=True), start=1)
    ]


# Reductions ---------------------------------------------------------------------------------------------------------


@both
@given(m=st.integers(1, 9), loss=st.floats(0.0, 1e30), rounds=st.integers(1, 6))
def test_equal_losses_are_fedavg_with_uniform_weights(rule: str, m: int, loss: float, rounds: int) -> None:
    for step in play(AAggFF(rule=rule), [dict.fromkeys(client_names(m), loss)] * rounds):
        np.testing.assert_allclose(list(step.values()), 1.0 / m, rtol=1e-12)


@both
@pytest.mark.parametrize("loss", [0.0, 0.7, -2.0, 1e300])
def test_a_single_client_has_all_the_weight(rule: str, loss: float) -> None:
    assert play(AAggFF(rule=rule), [{"a": loss}] * 3) == [{"a": 1.0}] * 3


# The distribution functions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cdf", CDFS)
@given(losses=st.lists(st.floats(0.0, 10.0), min_size=2, max_size=8))
def test_responses_rise_with_the_loss_within_zero_and_one(cdf: str, losses: list[float]) -> None:
    """The authors' code has another normal one, which falls with the loss and leaves [0, 1]."""
    F = np.sort(losses)
    rho = responses(F, cdf)
    assert (np.diff(rho) >= -1e-15).all()
    assert rho.min() >= 0.0
    assert rho.max() <= 1.0
    assert rho[-1] > rho[0] or F[-1] - F[0] <= 1e-3 * F[-1]


@pytest.mark.parametrize("cdf", CDFS)
@given(losses=positive)
def test_responses_are_those_of_the_formulas(cdf: str, losses: list[float]) -> None:
    F = np.array(losses)
    expected = [RESPONSES[cdf](x) for x in F / F.mean()]
    np.testing.assert_allclose(responses(F, cdf), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("cdf", CDFS)
def test_a_loss_of_0_or_less_counts_alike_and_all_as_the_mean(cdf: str) -> None:
    zero, negative = responses(np.array([0.0, 1.0, 3.0]), cdf), responses(np.array([-5.0, 1.0, 3.0]), cdf)
    np.testing.assert_array_equal(zero, negative)
    assert np.isfinite(zero).all()
    expected = RESPONSES[cdf](1.0)
    np.testing.assert_allclose(responses(np.zeros(3), cdf), expected, rtol=1e-12)
    np.testing.assert_allclose(responses(np.array([-1.0, -2.0]), cdf), expected, rtol=1e-12)


@pytest.mark.parametrize("cdf", CDFS)
def test_losses_at_both_ends_of_the_range_have_finite_responses(cdf: str) -> None:
    for losses in ([1e308, 1e308, 1e308], [1e-308, 1e308], [5e-324, 1.0], [0.0, 1e-320]):
        rho = responses(np.array(losses), cdf)
        assert np.isfinite(rho).all()
        assert 0.0 <= rho.min() <= rho.max() <= 1.0


# Few clients: an online Newton step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cdf", ["weibull", "normal"])
@given(rounds=histories(-0.3))
def test_ons_is_the_papers_decision_whoever_takes_part_and_joins(cdf: str, rounds: list[dict[str, float]]) -> None:
    history = seen(rounds)
    for t, step in enumerate(play(AAggFF(cdf=cdf), rounds), start=1):
        assert step == pytest.approx(online_newton(history[:t], cdf), abs=1e-7)


@given(losses=st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)))
def test_the_first_decision_on_two_clients_by_hand(losses: tuple[float, float]) -> None:
    """q = (½, ½), g = −r/(1 + ⟨q, r⟩) with r = ρ/2; p = ½ ∓ z, z = −(g₂ − g₁)/(8 + ½(g₂ − g₁)²)."""
    r = responses(np.array(losses), "weibull") / 2.0
    g = -r / (1.0 + r.mean())
    z = -(g[1] - g[0]) / (8.0 + 0.5 * (g[1] - g[0]) ** 2)
    (step,) = play(AAggFF(), [{"a": losses[0], "b": losses[1]}])
    assert list(step.values()) == pytest.approx([0.5 - z, 0.5 + z], abs=1e-9)
    assert (step["b"] > step["a"]) == (losses[1] > losses[0]) or abs(losses[1] - losses[0]) < 1e-6


def test_the_decision_is_that_after_the_losses_of_the_round() -> None:
    """One from before them would be uniform in the first round."""
    (step,) = play(AAggFF(), [{"a": 1.0, "b": 3.0}])
    assert step["b"] > 0.51


def test_constant_losses_spread_the_weights_as_far_as_the_papers() -> None:
    """K = 20: 1.46/K for the largest; with the ridge of the authors' code, and without their cross term, 1.07/K."""
    losses = dict(zip(client_names(20), np.linspace(0.5, 2.0, 20).tolist(), strict=True))
    last = play(AAggFF(), [losses] * 10)[-1]
    assert max(last.values()) * 20 > 1.3


@pytest.mark.parametrize("rounds", [1, 50, 1000])
def test_the_decision_meets_its_optimality_conditions(rounds: int) -> None:
    """KKT of a strictly convex QP on the simplex: the slope is the same on the support, and no less beside it."""
    rng, strategy, K = np.random.default_rng(5), AAggFF(), 12
    hard = rng.uniform(0.2, 3.0, K)
    for _ in range(rounds):
        cohort = cohort_of(np.eye(K), losses=hard * rng.uniform(0.5, 1.5, K))
        strategy.remember(cohort, strategy.weigh(cohort), {})
    A, b1, b2 = (strategy.memory[key] for key in ("A", "b1", "b2"))
    p = decision(A, b1, b2)
    slope = (4.0 * np.eye(K) + 0.25 * K * A) @ p + b1 - 0.25 * K * b2
    level = p @ slope
    scale = np.abs(slope - slope.mean()).max() + 4.0 / K
    assert p.min() >= 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert (slope >= level - 1e-7 * scale).all()
    np.testing.assert_allclose(slope[p > 1e-6], level, atol=1e-6 * scale)


def test_beta_grows_with_the_number_of_clients() -> None:
    A, b1, b2 = np.eye(4), np.zeros(4), np.array([0.0, 0.0, 0.0, 1.0])
    # K = 4: β = 1, so min ½·5‖p‖² − p₄: p = (0.2, 0.2, 0.2, 0.4)
    np.testing.assert_allclose(decision(A, b1, b2), [0.2, 0.2, 0.2, 0.4], atol=1e-9)
    # K = 8: β = 2, so min ½·4‖p‖² + ½·2 p₁²: 6 p₁ = 4 p_k
    A, nothing = np.diag([1.0, *[0.0] * 7]), np.zeros(8)
    np.testing.assert_allclose(decision(A, nothing, nothing), np.array([2.0, *[3.0] * 7]) / 23.0, atol=1e-9)


def test_each_decision_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one after a round's losses is the one before the next round's, but where clients have joined."""
    sizes: list[int] = []

    def counted(gram: FloatArray, prior: FloatArray, epsilon: float) -> FloatArray:
        sizes.append(len(prior))
        return min_norm_weights(gram, prior, epsilon)

    monkeypatch.setattr(aaggff, "min_norm_weights", counted)
    play(
        AAggFF(), [{"a": 1.25, "b": 3.5}, {"a": 2.0, "b": 2.5}, {"b": 1.0}, {"b": 1.0, "c": 2.0}, {"a": 1.0, "c": 3.0}]
    )
    assert sizes == [2, 2, 2, 2, 3, 3, 3]


def test_clients_without_any_share_of_the_decision_are_averaged() -> None:
    strategy = AAggFF()
    # b₁ draws everything to a
    strategy.memory = {
        "names": ["a", "b", "c"],
        "A": np.zeros((3, 3)),
        "b1": np.array([-90.0, 0.0, 0.0]),
        "b2": np.zeros(3),
    }
    (step,) = play(strategy, [{"b": 1.0, "c": 1.0}])
    assert step == {"b": 0.5, "c": 0.5}


# Many clients: follow the regularised leader ------------------------------------------------------------------------


@pytest.mark.parametrize("cdf", ["weibull", "frechet"])
@given(rounds=histories(-0.3), more=st.integers(0, 40))
def test_ftrl_is_the_papers_decision_over_all_clients(cdf: str, rounds: list[dict[str, float]], more: int) -> None:
    known = [6 + more] * len(rounds)
    steps, history = play(AAggFF(rule="ftrl", cdf=cdf), rounds, known), seen(rounds, known)
    for t, step in enumerate(steps, start=1):
        assert step == pytest.approx(regularised_leader(history[:t], cdf), abs=1e-12)


def test_ftrl_goes_by_the_roster_as_it_grows() -> None:
    rounds = [{"client-000": 1.0, "client-001": 3.0}] * 3
    known = [2, 5, 100]
    steps, history = play(AAggFF(rule="ftrl"), rounds, known), seen(rounds, known)
    assert steps[-1] == pytest.approx(regularised_leader(history), abs=1e-12)
    assert steps[-1] != pytest.approx(play(AAggFF(rule="ftrl"), rounds, [2, 2, 2])[-1], abs=1e-3)


@given(losses=positive, more=st.integers(0, 100))
def test_the_first_round_of_ftrl_by_hand(losses: list[float], more: int) -> None:
    """c ∝ exp(κρ/(1 + Cρ̄)): the paper's responses of sampled clients are unbiased, those of its code less by ρ̄."""
    m, N = len(losses), len(losses) + more
    rho, C = responses(np.array(losses), "weibull"), m / N
    kappa = math.sqrt(math.log(N)) / ((2.0 + C) * math.sqrt(2.0))
    expected = np.exp(kappa * rho / (1.0 + C * rho.mean()))
    names = client_names(m)
    (step,) = play(AAggFF(rule="ftrl"), [dict(zip(names, losses, strict=True))], [N])
    np.testing.assert_allclose(list(step.values()), expected / expected.sum(), rtol=1e-12)


def test_scores_are_kept_only_of_clients_that_were_seen() -> None:
    strategy = AAggFF(rule="ftrl")
    play(strategy, [{"client-000": 1.0, "client-001": 3.0}, {"client-001": 1.0, "client-004": 2.0}], [50, 50])
    assert set(strategy.memory["scores"]) == {"client-000", "client-001", "client-004"}
    assert strategy.memory["steps"] == 2


def test_only_ftrl_asks_for_the_roster() -> None:
    assert ["roster" in each.requires for each in (AAggFF(), AAggFF(rule="ftrl"))] == [False, True]


# Properties ---------------------------------------------------------------------------------------------------------


@both
@given(rounds=histories(-0.3), factor=st.floats(1e-6, 1e6))
def test_losses_times_a_positive_number_leave_the_weights(
    rule: str, rounds: list[dict[str, float]], factor: float
) -> None:
    scaled = [{name: factor * loss for name, loss in losses.items()} for losses in rounds]
    known = [9] * len(rounds)
    for one, other in zip(play(AAggFF(rule=rule), rounds, known), play(AAggFF(rule=rule), scaled, known), strict=True):
        assert other == pytest.approx(one, abs=1e-7)


@both
@given(rounds=histories(-0.3), seed=st.integers(0, 99))
def test_what_clients_are_called_decides_nothing(rule: str, rounds: list[dict[str, float]], seed: int) -> None:
    names = client_names(6)
    called = dict(zip(names, np.random.default_rng(seed).permutation(names).tolist(), strict=True))
    renamed = [{called[name]: loss for name, loss in losses.items()} for losses in rounds]
    known = [6] * len(rounds)
    for one, other in zip(play(AAggFF(rule=rule), rounds, known), play(AAggFF(rule=rule), renamed, known), strict=True):
        assert {name: other[called[name]] for name in one} == pytest.approx(one, abs=1e-7)


@both
@given(rounds=histories(-0.3))
def test_weights_are_a_mixture(rule: str, rounds: list[dict[str, float]]) -> None:
    for step in play(AAggFF(rule=rule), rounds, [20] * len(rounds)):
        assert min(step.values()) >= 0.0
        assert sum(step.values()) == pytest.approx(1.0, abs=1e-12)


@both
def test_updates_have_no_part_in_the_weights(rule: str) -> None:
    losses = [0.5, 1.0, 2.0]
    one, other = (AAggFF(rule=rule).weigh(cohort_of(U, losses=losses)) for U in (np.eye(3), 1e9 * np.ones((3, 2))))
    assert one.tobytes() == other.tobytes()


@both
def test_a_client_that_stays_behind_gains_from_round_to_round(rule: str) -> None:
    steps = play(AAggFF(rule=rule), [{"a": 1.0, "b": 1.0, "c": 2.0}] * 5)
    shares = [step["c"] for step in steps]
    assert shares == sorted(shares)
    assert shares[0] > 1 / 3


# State --------------------------------------------------------------------------------------------------------------


def bits(memory: Mapping[str, Any]) -> dict[str, object]:
    return {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in memory.items()}


def test_ons_and_ftrl_keep_as_many_numbers_as_documented() -> None:
    ons, ftrl = AAggFF(), AAggFF(rule="ftrl")
    for strategy in (ons, ftrl):
        play(strategy, [dict(zip(client_names(7), np.arange(1.0, 8.0).tolist(), strict=True))] * 3)
    assert sum(value.size for value in ons.memory.values() if isinstance(value, np.ndarray)) == 7 * 7 + 2 * 7
    assert len(ftrl.memory["scores"]) == 7


def test_weighing_changes_nothing(tmp_path: Path) -> None:
    for rule in ("ons", "ftrl"):
        strategy = AAggFF(rule=rule)
        play(strategy, [{"a": 1.0, "b": 2.0}])
        before: dict[str, object] = bits(strategy.memory)
        cohort = cohort_of(np.eye(2), losses=[3.0, 1.0], names=["b", "c"])
        first: FloatArray = strategy.weigh(cohort)
        assert strategy.weigh(cohort).tobytes() == first.tobytes()
        assert bits(strategy.memory) == before
