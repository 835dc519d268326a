"""Single methods where their formulas have an edge: ties, floors, limits and decay, by hand or by a
closed form."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Past
from fairbloom.strategies import (
    AFL,
    EAGLE,
    TERM,
    DeltaFL,
    FairFed,
    FairMOO,
    FairStrategy,
    FedAvgN,
    FedFa,
    FedFV,
    FedMGDA,
    FedMGDAPlus,
    GiFair,
    MGDAProx,
    QFedAvg,
)
from fairbloom.strategies.fedavgn import Stepped

from .helpers import advance, client_names, coefficients, cohort_of, recall, step_of as step

Numbers = Sequence[float] | FloatArray


def weigh(
    method: FairStrategy, losses: Numbers, counts: Numbers | None = None, **others: Numbers
) -> FloatArray:
    """Return c of clients with these losses, weighted by examples if `counts` are given."""
    weighting = "uniform" if counts is None else "examples"
    return coefficients(
        method,
        cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting, **others),
    )


def drawn_counts(m: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).integers(1, 1000, m).astype(np.float64)


# q-FFL --------------------------------------------------------------------------------------------


def test_qffl_follows_the_formula_at_extremes() -> None:
    """The paper's c from logarithms, of which none overflows; both updates have the same length."""
    losses = ([0.0, 1.0], [0.0, 0.0], [1e-30, 1e30], [1e30, 1e30], [1e-11, 1e-12], [-1.0, 2.0])
    L = 10.0
    for q, F, length in product((0.0, 0.01, 0.5, 1.0, 15.0), losses, (0.0, 1e-30, 1.0, 1e30)):
        c = QFedAvg(q=q, lipschitz=L).weigh(
            cohort_of(length * np.array([[1.0, 0.0], [0.6, 0.8]]), losses=F)
        )
        log_f = np.log(np.maximum(F, 1e-10))
        log_h = weights = math.log(L) + q * log_f
        if q * length > 0.0:
            log_h = np.append(weights, (q - 1.0) * log_f + math.log(q) + 2.0 * math.log(L * length))
        np.testing.assert_allclose(
            c, np.exp(weights - np.logaddexp.reduce(log_h)), rtol=1e-9, atol=1e-300
        )


# TERM, AFL, Δ-FL ----------------------------------------------------------------------------------


@given(
    losses=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=6), temperature=st.floats(0.05, 20.0)
)
def test_fedeba_is_term_with_the_reciprocal_of_its_temperature(
    losses: list[float], temperature: float
) -> None:
    """FedEBA: of all mixtures with the same mean loss, the one with the largest entropy, with
    multiplier 1/τ."""
    F = np.array(losses)
    c = weigh(TERM(tilt=1.0 / temperature, weighting="uniform"), F)
    grown = np.exp((F - F.max()) / temperature)
    np.testing.assert_allclose(c, grown / grown.sum(), rtol=1e-9)
    constant = np.array([np.ones(len(F)), F])
    entropy = lambda q: -np.sum(q * np.log(q))  # noqa: E731
    # moves that keep the sum and the mean loss
    for move in np.linalg.svd(constant)[2][np.linalg.matrix_rank(constant) :]:
        for q in (c + 1e-3 * c.min() * move, c - 1e-3 * c.min() * move):
            assert entropy(q) <= entropy(c) * (1.0 + 1e-12) + 1e-15


def test_term_of_equal_losses_and_of_infinite_tilts() -> None:
    """Equal losses leave the prior, however large they are; an infinite tilt takes the worst
    clients, or the best."""
    for tilt, loss in product((-1e3, -1.0, 1e-300, 1.0, 1e3), (0.0, 1e-30, 1.0, 1e6, 1e30)):
        np.testing.assert_allclose(
            weigh(TERM(tilt=tilt), [loss] * 3, [10, 30, 60]), [0.1, 0.3, 0.6], rtol=1e-9
        )
    for tilt in (1e3, 1e30, 1e308):
        worst, best = (
            weigh(TERM(tilt=each), [1.0, 3.0, 3.0], [10, 20, 60]) for each in (tilt, -tilt)
        )
        np.testing.assert_allclose(worst, [0.0, 0.25, 0.75], atol=1e-12)
        np.testing.assert_allclose(best, [1.0, 0.0, 0.0], atol=1e-12)


def ascended(method: AFL, losses: Numbers) -> list[float]:
    """Return the weights after a round with these losses."""
    advance(method, cohort_of(np.eye(len(losses)), losses=losses, weighting="uniform"))
    return [*method.past.memory["weights"].values()]


def test_afl_at_extremes() -> None:
    """Clients without mass are averaged by their prior."""
    lowest = [0.0, 1.0]
    for F, expected in (
        ([0.0, 0.0], [0.5, 0.5]),
        ([0.0, 1e30], lowest),
        ([1.0, 1.7e308], lowest),
        ([-1.7e308, 1.0], lowest),
    ):
        for gamma in (1e-9, 1.0, 1e30):
            np.testing.assert_allclose(
                ascended(AFL(gamma=gamma, weighting="uniform"), F), expected, atol=1e-15
            )
    method = AFL(gamma=10.0)
    assert ascended(method, [9.0, 0.0, 0.0]) == [1.0, 0.0, 0.0]
    examples = dict(zip(client_names(3), (1.0, 1.0, 3.0), strict=True))
    recall(method, **{**method.past.memory, "examples": examples})
    massless = cohort_of(
        np.eye(2),
        losses=[0, 0],
        counts=[1, 3],
        weighting="examples",
        names=client_names(3)[1:],
        past=method.past,
    )
    assert coefficients(method, massless) == pytest.approx([0.25, 0.75])


def tail_of(theta: float, counts: Numbers) -> list[int]:
    """Return which clients are in the tail, of losses that rise from client to client."""
    c = weigh(
        DeltaFL(theta=theta, weighting="examples"), np.arange(len(counts), dtype=np.float64), counts
    )
    return [int(k) for k in np.flatnonzero(c)]


@pytest.mark.parametrize("m", [2, 3, 7, 10, 49, 100])
def test_deltafl_meets_ties_of_prior_and_theta_exactly(m: int) -> None:
    """With theta = j/m the m − j lowest losses hold exactly 1 − theta: the (m − j)-th of them is Q,
    in the tail."""
    for j in range(1, m + 1):
        position = next(i for i in range(1, m + 1) if Fraction(i, m) >= 1 - Fraction(j, m))
        assert tail_of(j / m, np.ones(m)) == [*range(position - 1, m)], (m, j)


@pytest.mark.parametrize(("change", "tail"), [(-1e-7, 2), (1e-7, 3)])
def test_deltafl_sees_what_is_not_a_tie(change: float, tail: int) -> None:
    assert len(tail_of(0.5 + change, np.ones(4))) == tail


@given(n=st.lists(st.integers(1, 20), min_size=2, max_size=9), data=st.data())
def test_deltafl_meets_ties_of_unequal_priors_exactly(n: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(1, len(n) - 1))
    assert tail_of(float(1 - Fraction(sum(n[:position]), sum(n))), n) == [
        *range(position - 1, len(n))
    ]


@given(
    losses=st.lists(st.sampled_from((0.0, 0.5, 1.0, 2.0, 3.5)), min_size=1, max_size=9),
    theta=st.floats(1e-3, 1.0),
    seed=st.integers(0, 99),
)
def test_deltafls_tail_is_the_highest_losses_by_prior(
    losses: list[float], theta: float, seed: int
) -> None:
    F = np.array(losses)
    n = drawn_counts(len(losses), seed)
    c = weigh(DeltaFL(theta=theta), F, n)
    p = n / n.sum()
    tail = c > 0
    assert not (~tail).any() or F[tail].min() > F[~tail].max()
    np.testing.assert_allclose(c[tail], p[tail] / p[tail].sum(), rtol=1e-12)
    assert p[tail].sum() >= theta - 1e-9
    assert p[F[tail].min() < F].sum() <= theta + 1e-9


# GIFAIR, EAGLE, FedFa -----------------------------------------------------------------------------


@given(
    losses=st.lists(st.sampled_from((0.0, 0.5, 1.0, 1e-30, 1e30)), min_size=1, max_size=9),
    strength=st.floats(0.0, 0.999999),
    seed=st.integers(0, 9),
)
def test_gifairs_weights_are_positive_and_sum_to_one(
    losses: list[float], strength: float, seed: int
) -> None:
    c = weigh(GiFair(strength=strength), losses, drawn_counts(len(losses), seed) ** 3)
    assert c.min() > 0.0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)


def test_ties_count_for_nothing_in_gifair() -> None:
    # r = (1, 1, -2), λ = 0.9 · ⅓ / 2
    assert weigh(GiFair(strength=0.9, weighting="uniform"), [2.0, 2.0, 1.0]) == pytest.approx(
        [1 / 3 + 0.15, 1 / 3 + 0.15, 1 / 3 - 0.3]
    )


@given(seed=st.integers(0, 99), m=st.integers(1, 8), lam=st.floats(0.0, 2.0))
def test_eagles_weights_are_the_gradient_of_its_objective(seed: int, m: int, lam: float) -> None:
    (F, L) = np.random.default_rng(seed).uniform(0.0, 5.0, (2, m))
    n = drawn_counts(m, seed)
    h = 1e-5
    p = n / n.sum()

    def penalised(x: FloatArray) -> float:
        gaps = x - L
        return float(p @ x + lam * p @ (gaps - p @ gaps) ** 2)

    np.testing.assert_allclose(
        weigh(EAGLE(lam=lam, weighting="examples"), F, n, baselines=L),
        [(penalised(F + h * e) - penalised(F - h * e)) / (2 * h) for e in np.eye(m)],
        atol=1e-4,
    )


@pytest.mark.parametrize(
    "A", [[0.0, 0.0], [0.0, 1.0], [1e-30, 1.0], [1e-6, 1.0], [1.0, 1.0, 0.0], [-1.0, 0.5]]
)
def test_fedfas_accuracies_are_floored_at_1e_minus_6(A: list[float]) -> None:
    floored = np.maximum(A, 1e-6)
    bits = -np.log2(floored / floored.sum())
    found = weigh(FedFa(alpha=1.0, beta=0.0), np.ones(len(A)), accuracies=A)
    np.testing.assert_allclose(found, bits / bits.sum(), rtol=1e-12)


# FedMGDA, FedAvg-n --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvgN, FedMGDA, FedMGDAPlus])
@pytest.mark.parametrize(
    ("round", "num_rounds", "decay", "left"),
    [
        (99, 1000, 0.1, 1.0),
        (100, 1000, 0.1, 0.1**0.1),
        (299, 1000, 0.1, 0.1**0.2),
        (1000, 1000, 0.1, 0.1),
        (100, 50, 0.5, 0.25),
        (1000, 1000, 1.0, 1.0),
        (1000, None, 0.0, 1.0),
    ],
)
def test_the_step_size_decays_every_hundred_rounds(
    method: type[FedAvgN], round: int, num_rounds: int | None, decay: float, left: float
) -> None:
    U = np.random.default_rng(1).normal(size=(3, 4))
    c = method(server_lr=3.0, decay=decay).weigh(cohort_of(U, round=round, num_rounds=num_rounds))
    np.testing.assert_allclose(c, 3.0 * left * method().weigh(cohort_of(U)), rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        (FedMGDA(), [0.8, 0.2]),
        (FedMGDA(epsilon=0.1), [0.6, 0.4]),
        (FedMGDAPlus(), [0.5, 0.25]),
    ],
)
def test_updates_of_fedmgda_by_hand(method: FedMGDA, weights: list[float]) -> None:
    U = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert method.weigh(cohort_of(U)) == pytest.approx(weights, abs=1e-9)


# FedFV --------------------------------------------------------------------------------------------


def test_fedfvs_step_of_three_clients_may_raise_a_loss() -> None:
    """So its page promises no common descent: a projection off one update brings back a conflict
    with another."""
    # u'_1 = 0, u'_2 = (0, 4/5), u'_3 = (1/5, 0), and ⟨u_1, (1/5, 4/5)⟩ < 0
    U = np.array([[-2.0, -1.0], [0.0, 1.0], [1.0, 0.0]])
    g = step(FedFV(alpha=0.0, tau=0), U, losses=[1.0, 2.0, 3.0])
    np.testing.assert_allclose(g / g.sum(), [0.2, 0.8], rtol=1e-12)
    assert U[0] @ g < 0.0


@pytest.mark.parametrize(
    ("m", "alpha", "kept"),
    [
        *((5, 0.0, 0), (5, 0.1, 1), (5, 0.25, 2), (5, 0.5, 3), (5, 0.99, 4), (5, 1.0, 5)),
        *((11, 0.3, 4), (1, 0.1, 1), (1, 0.0, 1)),
    ],
)
def test_in_fedfv_so_many_top_clients_keep_their_update(m: int, alpha: float, kept: int) -> None:
    common = np.ones((m, m)) * -0.1 + np.eye(m)  # every pair conflicts
    A = FedFV(alpha=alpha, tau=0)._projected(cohort_of(common, losses=np.arange(m)))
    assert [k for k in range(m) if np.array_equal(A[k], np.eye(m)[k])] == list(range(m - kept, m))


def test_opposite_clients_take_no_step_in_fedfv() -> None:
    U = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert step(FedFV(alpha=0.0, tau=0), U).tolist() == [0.0, 0.0]
    assert step(FedFV(alpha=1.0, tau=0), U).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("left", "moves"), [(0.9e-3, False), (1.1e-3, True)])
def test_rounding_of_the_mean_norm_is_no_step_in_fedfv(left: float, moves: bool) -> None:
    U = np.array([[1.0, left], [-1.0, left]])
    assert bool(np.any(step(FedFV(alpha=1.0, tau=0), U))) is moves


def test_fedfvs_random_order_is_by_seed_and_round_alone() -> None:
    U = np.random.default_rng(0).normal(size=(5, 8)) + np.eye(5, 8) * 2.0 - 0.8 * np.eye(5, 8, 1)
    steps = {
        (seed, round): step(
            FedFV(alpha=0.0, tau=0, order="random", seed=seed), U, round=round
        ).tobytes()
        for seed in range(4)
        for round in range(1, 5)
    }
    assert len(set(steps.values())) > 8
    again = step(FedFV(alpha=0.0, tau=0, order="random", seed=2), U, round=3).tobytes()
    assert again == steps[2, 3]


# FairFed ------------------------------------------------------------------------------------------

COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")

ROWS = [(40, 40, 0, 20), (40, 40, 12, 16), (20, 20, 8, 4)]


def cohort(
    rows: Sequence[tuple[int, int, int, int]], counts: Sequence[float], **changes: Any
) -> Cohort:
    """Return clients with these examples, positives and hits in both groups, and one accuracy."""
    groups = dict(zip(COUNTS, zip(*rows, strict=True), strict=True))
    return cohort_of(
        np.eye(len(rows)), counts=counts, accuracies=[0.8] * len(rows), groups=groups, **changes
    )


def test_fairfeds_weights_are_those_of_a_hand_computed_round() -> None:
    """Gaps: 20/40 less 0/40 is 0.5, 16/40 less 12/40 is 0.1, 4/20 less 8/20 is −0.2; 40/100 less
    20/100 is 0.2.

    So the clients are 0.3, 0.1 and 0.4 away from it, 0.8/3 on average.
    """
    there = cohort(ROWS, [100.0, 200.0, 100.0])
    omega = np.array([0.25, 0.5, 0.25]) - 0.6 * (np.array([0.3, 0.1, 0.4]) - 0.8 / 3)
    method = FairFed(beta=0.6)
    np.testing.assert_allclose(advance(method, there), omega, rtol=1e-12)
    assert list(method.past.memory["weights"].values()) == pytest.approx(omega.tolist(), rel=1e-12)


def test_in_fairfed_a_size_counts_as_it_was_first_known() -> None:
    grown = cohort(ROWS[:2], [400.0, 300.0], names=["a", "b"], roster={"a": 100.0, "b": 300.0})
    assert coefficients(FairFed(beta=0.0), grown).tolist() == pytest.approx([0.25, 0.75])


def test_in_fairfed_without_positive_weights_examples_count() -> None:
    method = FairFed(beta=0.0)
    there = cohort(
        ROWS[:2], [100.0, 300.0], names=["a", "b"], past=Past({"weights": {"a": -0.5, "b": 0.2}})
    )
    assert coefficients(method, there).tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("method", [FairMOO, FedAvgN, FedMGDA, FedMGDAPlus, MGDAProx])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"decay": 0.25, "decay_every": 10}, [3.0, 3.0 * 0.25**0.25, 3.0 * 0.25]),
        (
            {"decay": 0.25, "server_schedule": "exponential"},
            [3.0 * 0.25 ** (1 / 40), 3.0 * 0.25 ** (10 / 40), 3.0 * 0.25],
        ),
        ({"server_schedule": "inverse"}, [3.0, 6 / 11, 6 / 41]),
    ],
)
def test_schedules_of_the_server_step(
    method: type[Stepped], options: dict[str, Any], expected: list[float]
) -> None:
    made = method(server_lr=3.0, **options)
    assert [made.step_size(t, 40) for t in (1, 10, 40)] == pytest.approx(expected)
    assert made.paced == ("decay" in options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decay": 0.1, "server_schedule": "inverse"}, "decay = 0.1 changes nothing with"),
        ({"server_schedule": "exponential"}, "changes nothing without decay: set it"),
        ({"decay": 1.0}, "decay = 1.0 changes nothing: leave it out"),
        ({"decay_every": 10}, "decay-every = 10 changes nothing without decay: set it"),
        (
            {"decay": 0.1, "decay_every": 10, "server_schedule": "exponential"},
            "decay-every = 10 changes nothing with server-schedule = 'exponential': leave it out",
        ),
        ({"server_schedule": "inverse"}, ""),
    ],
)
def test_schedules_without_effect_are_known(options: dict[str, Any], words: str) -> None:
    assert words in FedMGDA(**options).find_idle(1000)
    assert bool(words) == bool(FedMGDA(**options).find_idle(1000))


def test_a_decay_that_changes_nothing_is_known() -> None:
    method = FedMGDAPlus(decay=0.1)
    assert "decay = 0.1 changes nothing in 50 rounds" in method.find_idle(50)
    assert "decay-every, as in 5," in method.find_idle(50)
    assert not method.find_idle(100)
    assert not FedMGDAPlus(decay=0.1, decay_every=5).find_idle(50)
    assert not FedMGDAPlus(decay=0.1, server_schedule="exponential").find_idle(50)
    assert not FedMGDAPlus().find_idle(50)
