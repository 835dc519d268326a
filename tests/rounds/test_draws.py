"""The participants of a round: the same for the same seed, and only training clients.

Prior weights of the user, by client: they take the place of `weighting`.
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.strategies import (
    AFL,
    DRFA,
    METHODS,
    SCAFFOLD,
    TERM,
    FairStrategy,
    FedAvg,
    FedFV,
    FedMGDA,
    FedMGDAPlus,
    QFedAvg,
    QFedSGD,
    from_config,
)
from tests.federation import (
    KINDS,
    OPTIONS,
    MemoryGrid,
    assert_resumes,
    bits,
    quadratics,
    run,
    undisturbed,
)
from tests.simulation.helpers import rounds as rows_of, run as run_here
from tests.strategies.helpers import ARGUMENTS, cohort_of, make

EVERYBODY = tuple(f"site-{k}" for k in range(6))
SOME = ("site-4", "site-1", "site-2")


@pytest.mark.parametrize("name", ["fedavg", "drfa", "scaffold"])
def test_arrival_order_and_node_ids_do_not_matter(name: str) -> None:
    expected, same = undisturbed(name)
    result, rounds = run(
        make(name, ARGUMENTS[name][0], **OPTIONS), MemoryGrid(quadratics(6), seed=1)
    )
    assert bits(result.arrays) == bits(expected.arrays), name
    assert [list(r.coefficients.items()) for r in rounds] == [
        list(r.coefficients.items()) for r in same
    ], name


def test_a_seed_draws_the_same_participants_for_every_method() -> None:
    drawn = {name: [r.participants for r in undisturbed(name)[1]] for name in KINDS}
    weighted = drawn.pop("drfa")
    first = drawn["fedavg"]
    assert all(participants == first for participants in drawn.values())
    assert all(1 <= len(participants) <= 4 for participants in weighted)
    assert all(len(participants) == 4 for participants in first)
    assert len(set(first)) > 1


# Some train, and all evaluate ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "drfa", "scaffold"])
def test_the_model_is_that_of_those_clients_alone(name: str) -> None:
    """Whether all or some are named, the run equals one with only these clients."""
    some = {k: v for k, v in quadratics(6).items() if k in SOME}
    arguments = ARGUMENTS[name][0]
    expected, _ = undisturbed(name)
    result, _ = run(make(name, arguments, training_clients=EVERYBODY, **OPTIONS))
    assert bits(result.arrays) == bits(expected.arrays), name
    alone, others = run(make(name, arguments, **OPTIONS), MemoryGrid(some))
    result, rounds = run(make(name, arguments, training_clients=SOME, **OPTIONS))
    assert bits(result.arrays) == bits(alone.arrays), name
    assert [(r.participants, r.coefficients) for r in rounds] == [
        (r.participants, r.coefficients) for r in others
    ]
    assert all(set(r.evaluations) == set(EVERYBODY) for r in rounds)


def test_clients_that_do_not_train_have_no_weight_in_drfa() -> None:
    """Otherwise its second sample would ask them, and give weight to clients that never train."""
    strategy = DRFA(gamma=0.001, training_clients=SOME, fraction_train=0.7)
    run(strategy)
    assert set(strategy.past.memory["weights"]) == set(SOME)


def test_without_any_of_them_rounds_are_skipped_and_named() -> None:
    words = "of those that train .training_clients = site-8, site-9., too few clients were online"
    with pytest.raises(NothingLearnedError, match=f"learned nothing for 3 rounds: .*{words}"):
        run(FedAvg(training_clients=("site-8", "site-9")), rounds=5)
    assert run(FedAvg(training_clients=("site-1", "site-9")), rounds=1)[1][0].participants == (
        "site-1",
    )
    _, rounds = run(FedAvg(training_clients=SOME, fraction_train=0.34), rounds=3)
    assert all(len(r.participants) == 2 for r in rounds)  # it is a share of those that train
    _, rounds = run(FedAvg(training_clients=("site-9",), unused_rounds=0), rounds=2)
    assert [r.participants for r in rounds] == [(), ()]
    assert all(set(r.evaluations) == set(EVERYBODY) for r in rounds)


def test_misspelt_training_clients_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(FedAvg(training_clients=("site-1", "siet-2", "nobody")), rounds=3)
    assert [words for words in caplog.messages if "training_clients" in words] == [
        "training_clients names siet-2, but no client online has this name; did you mean site-2?",
        "training_clients names nobody, but no client online has this name",
    ]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        *(
            ("training_clients", value, "must be a list or tuple of names, got")
            for value in ("site-1", ["site-1", 2], [""], {"site-1"}, None)
        ),
        ("frozen", "w", "must be a list or tuple of names"),
        *(
            (option, value, "(= .*name=value|must be a mapping of names)")
            for option in ("shared", "enrolled_sizes")
            for value in ("head", ["ab"])
        ),
    ],
)
def test_a_text_is_not_taken_for_several_names(option: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} {words}"):
        FedAvg(**{option: value})
    assert FedAvg(buffers=["norm.mean"]).buffers == ("norm.mean",)


# Drawn by their examples ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ({"a": 10.0, "b": 30.0, "c": 60.0}, {"a": 0.1, "b": 0.3, "c": 0.6}),
        ({"a": 5.0, "b": 25.0, "c": 40.0, "unknown": 0.0}, {"b": 0.263, "unknown": 0.263}),
        ({"a": 100.0, "b": 80.0, "unknown": 0.0}, {"a": 0.37, "b": 0.296, "unknown": 0.333}),
    ],
)
def test_the_mean_weight_of_many_draws_is_the_share_of_examples(
    sizes: dict[str, float], shares: dict[str, float]
) -> None:
    """A client of unknown size is drawn as often as one of the median size."""
    strategy = FedAvg(draw="examples", seed=3)
    strategy.enter(strategy.run_state.drawn(sizes))
    draws = [strategy.choose([*sizes], 4, number) for number in range(1, 2001)]
    assert all(len(drawn) == 4 for drawn in draws)
    for name, share in shares.items():
        mean = sum(drawn.count(name) for drawn in draws) / (4 * len(draws))
        assert mean == pytest.approx(share, abs=0.02)  # 4 standard errors


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    strategy = FedAvg(draw="examples", seed=1)
    _, rounds = run(strategy)
    sizes = strategy.run_state.roster
    assert sizes == {name: client.examples for name, client in quadratics(6).items()}
    names = sorted(sizes)
    for finished in rounds:
        drawn = Counter(strategy.choose(names, len(names), finished.number))
        assert set(finished.participants) == set(drawn)
        assert finished.coefficients == pytest.approx(
            {name: count / len(names) for name, count in drawn.items()}
        )
    assert any(max(finished.coefficients.values()) > 1.5 / len(names) for finished in rounds)


def test_draws_by_examples_go_on_from_a_state() -> None:
    first = FedAvg(draw="examples")
    run(first, rounds=2)
    second = FedAvg(draw="examples")
    second.load_state_dict(first.state_dict())
    assert second.choose([*EVERYBODY], 6, 3) == first.choose([*EVERYBODY], 6, 3)


@pytest.mark.parametrize(
    "strategy",
    [
        FedFV(draw="examples", seed=1, alpha=1.0, tau=0),
        AFL(draw="examples", seed=1, gamma=0.0),
        TERM(draw="examples", seed=1, tilt=0.0),
        FedMGDA(draw="examples", seed=1, epsilon=0.0),
        QFedAvg(draw="examples", seed=1, q=0.0),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_methods_reduce_to_fedavg_with_draws_by_examples(strategy: FairStrategy) -> None:
    """A client that is drawn twice counts twice, whatever else the method knows of its size."""
    _, rounds = run(strategy)
    _, expected = run(FedAvg(draw="examples", seed=1))
    assert [
        (finished, usual)
        for finished, usual in zip(rounds, expected, strict=True)
        if finished.coefficients != pytest.approx(usual.coefficients)
    ] == []
    assert any(len(set(usual.coefficients.values())) > 1 for usual in expected)


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("method", [QFedAvg, QFedSGD])
def test_qffl_draws_descend_the_objective_weighted_by_p(method: type[QFedAvg], q: float) -> None:
    """The expected numerator is Σ p F^q ∇F, the expected denominator Σ p h (Algorithm 1)."""
    L, rate = 4.0, 0.25  # q-FedAvg's gradients are L u
    strategy = method(draw="examples", seed=5, q=q, lipschitz=L)
    sizes = dict(zip("abcd", (10.0, 20.0, 30.0, 140.0), strict=True))
    strategy.enter(strategy.run_state.drawn(sizes))
    gradients = dict(zip(sizes, np.random.default_rng(1).normal(size=(4, 3)), strict=True))
    losses = dict(zip(sizes, (0.5, 2.0, 1.0, 3.0), strict=True))
    h = {k: q * F ** (q - 1) * gradients[k] @ gradients[k] + L * F**q for k, F in losses.items()}
    sums = []
    for number in range(1, 1001):
        drawn = Counter(strategy.choose([*sizes], 4, number))
        U = rate * np.array([gradients[k] for k in drawn])
        cohort = cohort_of(
            U,
            losses=[losses[k] for k in drawn],
            draws=drawn.values(),
            rates=[rate] * len(drawn),
        )
        denominator = sum(count * h[k] for k, count in drawn.items())
        sums.append([*(strategy.weigh(cohort) @ U * denominator), denominator])
    p = np.array([*sizes.values()]) / sum(sizes.values())
    numerators = np.array([losses[k] ** q * gradients[k] for k in sizes])
    expected = 4.0 * p @ np.column_stack([numerators, [*h.values()]])
    errors = np.std(sums, axis=0) / np.sqrt(len(sums))
    assert (np.abs(np.mean(sums, axis=0) - expected) <= 4.0 * errors + 1e-9).all()


def test_a_draw_without_known_sizes_is_an_error() -> None:
    with pytest.raises(ValueError, match="no client has said how many examples it has"):
        FedAvg(draw="examples").choose(["a", "b"], 1, 1)


SIZES = " ".join(f"{name}={client.examples}" for name, client in quadratics(6).items())

WITH_PRIOR = [name for name, method in METHODS.items() if method.default_weighting is not None]


@pytest.mark.parametrize("name", WITH_PRIOR)
def test_a_prior_of_examples_is_the_weighting_by_examples(name: str) -> None:
    arguments = {key: value for key, value in ARGUMENTS[name][0].items() if key != "weighting"}
    if issubclass(METHODS[name], FedMGDA):
        arguments["epsilon"] = 0.1
    expected, _ = run(make(name, arguments, weighting="examples", fraction_train=0.6))
    result, _ = run(make(name, arguments, prior=SIZES, fraction_train=0.6))
    assert bits(result.arrays) == bits(expected.arrays)


def test_a_client_without_a_weight_has_1() -> None:
    _, (finished,) = run(FedAvg(prior="site-0=2 site-3=0.5"), rounds=1)
    assert finished.coefficients == pytest.approx(
        {f"site-{k}": weight / 6.5 for k, weight in enumerate((2, 1, 1, 0.5, 1, 1))}
    )


class Watched(FedMGDA):
    """Keeps the cohort that it weighed last."""

    cohort: Cohort
    weights: FloatArray

    def weigh(self, cohort: Cohort) -> FloatArray:
        weights = super().weigh(cohort)
        self.adapt(cohort=cohort, weights=weights)
        return weights


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1, 0.3])
def test_fedmgdas_weights_are_optimal_near_the_users_prior(epsilon: float) -> None:
    """Equation 25 of Hu et al. with λ0 = prior: its KKT conditions."""
    strategy = Watched(prior="site-0=4 site-1=2", epsilon=epsilon)
    run(strategy, rounds=1)
    prior = np.array([4, 2, 1, 1, 1, 1]) / 10
    weights = strategy.weights
    assert weights.sum() == pytest.approx(1.0)
    assert (np.abs(weights - prior) <= epsilon + 1e-9).all()
    slopes = strategy.cohort.gram @ weights
    slopes /= np.abs(slopes).max()
    may_fall = weights > np.maximum(prior - epsilon, 0.0) + 1e-7
    may_rise = weights < np.minimum(prior + epsilon, 1.0) - 1e-7
    if may_fall.any() and may_rise.any():
        assert slopes[may_fall].max() <= slopes[may_rise].min() + 1e-5


def test_afl_begins_at_the_users_prior() -> None:
    strategy = AFL(gamma=0.0, prior="site-5=5")
    run(strategy, rounds=1)
    assert strategy.past.memory["weights"]["site-5"] == pytest.approx(0.5)


REFUSED: list[tuple[Callable[[], FairStrategy], str]] = [
    (lambda: FedAvg(draw="examples", weighting="uniform"), "weighting = 'uniform' has no effe"),
    (lambda: DRFA(draw="examples"), "draw = 'examples' replaces the prior, and DRFA has none"),
    (lambda: SCAFFOLD(draw="examples"), "draw = 'examples': with SCAFFOLD"),
    (lambda: FedAvg(draw="sizes"), "draw = 'sizes': allowed is uniform or examples"),
    (lambda: FedFV(prior="a=2"), "FedFV has no prior: leave prior out"),
    (lambda: FedAvg(prior="a=2", weighting="uniform"), "weighting sets the clients' weights, too"),
    (lambda: FedAvg(prior="a=2", draw="examples"), "draw sets the clients' weights, too"),
    (lambda: FedMGDAPlus(prior="a=2"), "no effect with epsilon = 1"),
    (lambda: FedAvg(prior="a=0"), "= 0: allowed is float above 0"),
    (lambda: FedAvg(prior="a"), r"prior = 'a': allowed is .* pairs as in"),
]


@pytest.mark.parametrize(("make_strategy", "words"), REFUSED)
def test_a_draw_or_a_prior_without_effect_is_refused(
    make_strategy: Callable[[], FairStrategy], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_strategy()


def test_a_run_does_not_begin_with_unknown_names_in_its_prior() -> None:
    with pytest.raises(
        FairbloomError, match="prior names 'siet-1', which is not a client: did you mean site-1"
    ):
        run(FedAvg(prior="siet-1=2"))
    with pytest.raises(FairbloomError, match=r"prior names 'site-0'.*there are site-1"):
        run(FedAvg(prior="site-0=2", training_clients=("site-1", "site-2")))


def test_a_run_with_a_prior_goes_on_without_a_named_client() -> None:
    assert_resumes(lambda: AFL(gamma=0.001, prior="site-0=2"))
    first = FedAvg(prior="site-0=2")
    run(first, rounds=1)
    second = FedAvg(prior="site-0=2")
    others = {name: client for name, client in quadratics(6).items() if name != "site-0"}
    _, rounds = run(second, MemoryGrid(others), resume=first.state_dict())
    assert all("site-0" not in each.participants for each in rounds)


def test_a_prior_is_recorded_and_a_run_goes_on_with_it(tmp_path: Path) -> None:
    settings = {"method": "fedmgda", "fedmgda.epsilon": 0.2, "prior": "client-0=2 client-1=3"}
    whole = run_here(tmp_path / "whole", **settings)
    assert 'prior = "client-0=2 client-1=3"' in (whole / "config.toml").read_text()
    half = run_here(tmp_path / "half", **{**settings, "num-rounds": 3})
    run_here(half, **settings)
    assert rows_of(half) == rows_of(whole)
    with pytest.raises(FairbloomError, match="prior"):
        run_here(half, **{**settings, "prior": "client-0=2", "num-rounds": 9})
    with pytest.raises(FairbloomError, match="prior names 'client-9'"):
        run_here(tmp_path / "unknown", **{**settings, "prior": "client-9=2"})


def test_a_servers_run_config_may_have_a_prior() -> None:
    strategy = from_config({"method": "fedmgda(epsilon=0.1, prior='a=2 b=3')"})
    assert strategy.prior_weights == {"a": 2.0, "b": 3.0}
    assert from_config({"method": "fedavg", "prior": "a=2"}).prior_weights == {"a": 2.0}
