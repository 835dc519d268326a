"""Prior weights of the user, by client: they take the place of `weighting`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.strategies import (
    AFL,
    METHODS,
    FairStrategy,
    FedAvg,
    FedFV,
    FedMGDA,
    FedMGDAPlus,
    from_config,
)
from tests.federation import MemoryGrid, assert_resumes, bits, quadratics, run
from tests.simulation.helpers import rounds as rows_of, run as run_here, table
from tests.strategies.helpers import ARGUMENTS, make

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

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.cohort = cohort
        self.weights = super().weigh(cohort)
        return self.weights


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
    assert strategy.memory["weights"]["site-5"] == pytest.approx(0.5)


REFUSED: list[tuple[Callable[[], FairStrategy], str]] = [
    (lambda: FedFV(prior="a=2"), "FedFV has no prior: leave prior out"),
    (lambda: FedAvg(prior="a=2", weighting="uniform"), "weighting sets the clients' weights, too"),
    (lambda: FedAvg(prior="a=2", draw="examples"), "draw sets the clients' weights, too"),
    (lambda: FedAvg(prior="a=2", defence="krum"), "defence sets the clients' weights, too"),
    (lambda: FedMGDAPlus(prior="a=2"), "no effect with epsilon = 1"),
    (lambda: FedAvg(prior="a=0"), "= 0: allowed is float above 0"),
    (lambda: FedAvg(prior="a"), "'a' does not state a value"),
]


@pytest.mark.parametrize(("make_strategy", "words"), REFUSED)
def test_a_prior_without_effect_is_refused(
    make_strategy: Callable[[], FairStrategy], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_strategy()


def test_a_run_does_not_begin_with_unknown_names_in_its_prior() -> None:
    words = "prior names 'siet-1', which is not a client: did you mean site-1"
    with pytest.raises(FairbloomError, match=words):
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


def test_fedavg_weighs_by_the_prior_in_one_process(tmp_path: Path) -> None:
    folder = run_here(tmp_path, method="fedavg", prior="client-0=3", fraction=1.0, num_rounds=1)
    weights = {row["client"]: float(row["coefficient"]) for row in table(folder / "clients.csv")}
    assert weights == pytest.approx(
        {name: (3 if name == "client-0" else 1) / 7 for name in weights}
    )


def test_a_servers_run_config_may_have_a_prior() -> None:
    strategy = from_config({"method": "fedmgda(epsilon=0.1, prior='a=2 b=3')"})
    assert strategy.prior_weights == {"a": 2.0, "b": 3.0}
    assert from_config({"method": "fedavg", "prior": "a=2"}).prior_weights == {"a": 2.0}
