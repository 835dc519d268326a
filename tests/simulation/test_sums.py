"""Clients in one process that share their noise: their sum, its step, its price, and refusals."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.client.private import simulated
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.noise import draw_gaussian
from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.rounds.sums import cap_weights, choose_sigma
from fairbloom.server.run_folder.files import MODEL, PRIVACY
from fairbloom.simulation.run import simulate
from fairbloom.strategies import TERM, FairStrategy
from fairbloom.strategies.registry import METHODS
from tests.client.private.device import SCHEMA, write_table
from tests.experiments.helpers import fairbloom

from .helpers import Outcome, StoppedError, rounds, run, small, stop_after, table

SHARED: dict[str, Any] = {
    "task": "csv",
    "schema": SCHEMA,
    "clients": 0,
    "privacy.mode": "simulated",
    "privacy.epsilon": "3",
    "privacy.spend": "all",
    "privacy.honest": 4,
    "batch_size": 0,
    "local_epochs": 1,
    "fraction": 1.0,
    "learning_rate": 0.5,
    "method": "fedavg",
}
OWN = {"privacy.honest": 1}

SUMS = {"fedavg", "fedprox", "term", "afl", "deltafl", "gifair"}


@pytest.fixture(autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables of five clients with 60 to 100 rows."""
    folder = tmp_path_factory.mktemp("tables")
    for seed in range(5):
        write_table(folder / f"client-{seed}.csv", 60 + 10 * seed, seed)
    monkeypatch.setitem(SHARED, "data_dir", str(folder))
    return folder


def shared(out: Path, changes: dict[str, Any]) -> Path:
    return run(out, **{**SHARED, **changes})


def arrays(folder: Path) -> np.ndarray:
    return np.concatenate([array.ravel() for array in MODEL.read(folder).values()])


# Reductions --------------------------------------------------------------------------------------


def no_noise(self: object, *_: object) -> Any:
    return partial(np.zeros, dtype=np.int64)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "term"])
@pytest.mark.parametrize("server", ["none", "adam"])
def test_without_noise_the_step_is_that_of_own_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, server: str
) -> None:
    """A sum of clipped gradients is n times their mean, whatever the method weighs by.

    Reported losses are rounded more coarsely, and own accounts' prior counts noise: so by clients.
    """
    monkeypatch.setattr(simulated.SimulatedAccount, "_draw", no_noise)
    of_server = {} if server == "none" else {"server_optimizer_lr": 0.1}
    asked = {"method": method, "weighting": "uniform", "server_optimizer": server, **of_server}
    with_own = arrays(shared(tmp_path / "own", {**asked, **OWN}))
    of_sum = arrays(shared(tmp_path / "sum", asked))
    assert of_sum == pytest.approx(with_own, abs=1e-4)
    start = arrays(shared(tmp_path / "less", {**asked, "learning_rate": 1e-9}))
    assert server != "none" or np.abs(of_sum - start).max() > 0.01


def test_weights_by_rows_are_the_rows(tmp_path: Path) -> None:
    """Whatever ε an owner has: the sum's noise is the same for each."""
    folder = shared(
        tmp_path, {"privacy.epsilon": "client-0=1 client-1=8 client-2=3 client-3=3 client-4=3"}
    )
    final = [row for row in table(folder / "clients.csv") if row["round"] == "6"]
    rows = {name: each["rows"] for name, each in PRIVACY.read(folder)["clients"].items()}
    weights = {row["client"]: float(row["coefficient"]) for row in final}
    total = sum(rows.values())
    assert weights == pytest.approx({name: count / total for name, count in rows.items()})


# Weights -----------------------------------------------------------------------------------------

WEIGHTS = st.lists(st.floats(0.0, 1e6), min_size=3, max_size=8)


@given(weights=WEIGHTS, seed=st.integers(0, 99), cap=st.floats(1.0, 10.0))
def test_no_weight_is_above_its_cap(weights: list[float], seed: int, cap: float) -> None:
    given_ = np.array(weights)
    if given_.sum() < 1e-3:
        given_[0] = 1.0
    counts = np.random.default_rng(seed).integers(1, 100, len(weights)).astype(float)
    capped = cap_weights(given_, counts, cap)
    shares = counts / counts.sum()
    assert capped.sum() == pytest.approx(1.0)
    assert (capped >= 0.0).all()
    assert (capped <= cap * shares * (1.0 + 1e-9)).all()
    free = (given_ > 0.0) & (capped < cap * shares * (1.0 - 1e-9))
    if free.any():  # these keep their proportions
        ratios = capped[free] / given_[free]
        assert ratios == pytest.approx(np.full(free.sum(), ratios[0]), rel=1e-6)


def test_caps_have_their_closed_forms() -> None:
    equal = np.full(4, 25.0)
    assert cap_weights(np.array([0.4, 0.3, 0.2, 0.1]), equal, 2.0) == pytest.approx(
        [0.4, 0.3, 0.2, 0.1]
    )
    assert cap_weights(np.array([7.0, 1.0, 1.0, 1.0]), equal, 2.0) == pytest.approx(
        [0.5, 1 / 6, 1 / 6, 1 / 6]
    )
    # one client alone, as AFL ends: what it may not have is dealt by rows
    assert cap_weights(np.array([1.0, 0.0, 0.0, 0.0]), equal, 2.0) == pytest.approx(
        [0.5, 1 / 6, 1 / 6, 1 / 6]
    )
    counts = np.array([10.0, 20.0, 70.0])
    assert cap_weights(np.ones(3), counts, 1.0) == pytest.approx(counts / 100.0)


# The price ---------------------------------------------------------------------------------------


def status(epsilon: float, steps: int = 90) -> AccountStatus:
    budget = Budget(epsilon, 1e-5, steps)
    return budget.status(budget.limits, rows=100)


@pytest.mark.parametrize(
    ("left", "rounds_", "with_loss", "sigma"),
    [
        (450, 30, False, 7.616594),
        (450, 30, True, 8.5156),
        (450, 10, False, 4.397443),
        (449, 30, False, Budget(3, 1e-5).sigma_of(14)),  # 15 would be one too many in the end
        (450, 40, True, Budget(3, 1e-5).sigma_of(9)),
    ],
)
def test_sigma_is_what_whole_units_buy(
    left: int, rounds_: int, with_loss: bool, sigma: float
) -> None:
    found = choose_sigma({"a": status(3)}, {"a": left}, rounds_, with_loss=with_loss)
    assert found == pytest.approx(sigma, rel=1e-4)


@given(
    left=st.lists(st.integers(2, 450), min_size=3, max_size=5),
    count=st.integers(1, 60),
    with_loss=st.booleans(),
)
def test_each_account_lasts_for_all_rounds(left: list[int], count: int, with_loss: bool) -> None:
    """Whatever is left of each; and the strictest has not enough for one unit more."""
    epsilons = [1.0, 3.0, 8.0, 2.0, 5.0][: len(left)]
    accounts = {f"site-{k}": status(epsilon) for k, epsilon in enumerate(epsilons)}
    units = dict(zip(accounts, left, strict=True))
    if min(left) < count * (1 + with_loss):
        with pytest.raises(FairbloomError, match="too few units"):
            choose_sigma(accounts, units, count, with_loss=with_loss)
        return
    sigma = choose_sigma(accounts, units, count, with_loss=with_loss)

    def cost(step: int) -> int:
        return count * (step + max(1, step // 4) * with_loss)

    budgets = [Budget(epsilon, 1e-5) for epsilon in epsilons]
    paid = [budget.units_for(sigma) for budget in budgets]
    assert all(cost(step) <= unit for step, unit in zip(paid, left, strict=True))
    dearer = [budget.units_for(sigma * (1.0 - 1e-6)) for budget in budgets]
    assert any(cost(step) > unit for step, unit in zip(dearer, left, strict=True))


def test_a_run_charges_what_it_said(tmp_path: Path) -> None:
    """30 rounds of TERM: 12 units and 3 of each of 450."""
    folder = shared(tmp_path, {"method": "term", "num_rounds": 30, "evaluate_every": 30})
    about = PRIVACY.read(folder)["clients"]["client-3"]
    assert about["units"] == 0
    assert about["step_sigma"] == pytest.approx(8.5156, abs=1e-4)
    assert len(rounds(folder)) == 30


def test_the_noise_is_smaller_by_the_root_of_the_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first step, over own noise: √h; six steps have 36 numbers."""
    asked = [{"privacy.spend": "5", "num_rounds": 1, "seed": seed} for seed in range(6)]

    def steps(name: str, honest: int) -> np.ndarray:
        noisy = {"privacy.honest": honest}
        runs = [shared(tmp_path / name / str(each["seed"]), each | noisy) for each in asked]
        return np.array([arrays(run) for run in runs])

    own, of_sum = steps("own", 1), steps("sum", 4)
    monkeypatch.setattr(simulated.SimulatedAccount, "_draw", no_noise)
    exact = steps("exact", 4)
    assert (own - exact).std() / (of_sum - exact).std() == pytest.approx(2.0, rel=0.3)


# Runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "term", "afl"])
def test_a_run_repeats_and_resumes_to_the_same_bits(tmp_path: Path, method: str) -> None:
    """What is charged in a cut-off round is not charged twice, and σ stays."""
    whole = shared(tmp_path / "whole", {"method": method})
    with pytest.raises(StoppedError):
        simulate(small(tmp_path / "cut", **{**SHARED, "method": method}), stop_after(3))
    again = shared(tmp_path / "cut", {"method": method})
    assert Outcome.of(again) == Outcome.of(whole)
    assert PRIVACY.read(again) == PRIVACY.read(whole)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_adds_up_or_is_refused_before_a_round(tmp_path: Path, method: str) -> None:
    settings = small(tmp_path, **{**SHARED, "num_rounds": 1, "method": method})
    if method in SUMS:
        simulate(settings)
        assert len(rounds(tmp_path)) == 1
        return
    with pytest.raises(FairbloomError, match=r"account|sees no update"):
        simulate(settings)
    assert not (tmp_path / "rounds.csv").exists() or not rounds(tmp_path)


class ByLosses(FairStrategy):
    """A user's method: the worse half of the clients."""

    sums = True
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.asarray(cohort.losses >= np.median(cohort.losses), np.float64)


class ByNorms(TERM):
    """A user's method that reads what the server does not have."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.squared_norms


class Negative(TERM):
    """A user's method with a weight below 0."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return -cohort.prior


def test_a_users_method_may_add_up(tmp_path: Path) -> None:
    folder = shared(tmp_path, {"method": f"{__name__}:ByLosses"})
    used = [row["coefficient"] for row in table(folder / "clients.csv") if row["round"] == "6"]
    assert [float(weight) > 0.0 for weight in used].count(True) >= 3


@pytest.mark.parametrize(
    ("name", "words"), [("ByNorms", "only their sum"), ("Negative", "below 0")]
)
def test_a_users_method_that_cannot_is_told(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        shared(tmp_path, {"method": f"{__name__}:{name}"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy.honest": 6}, "5 clients train, and at least 6"),
        ({"privacy.honest": 2, "training_clients": "client-0,client-1"}, "at least 3"),
        ({"privacy.epsilon": "client-0=3 client-1=3 client-2=3"}, "client-3, client-4 has no"),
        ({"local_epochs": 2}, "set local-epochs = 1"),
        ({"batch_size": 10}, "batch-size"),
        ({"optimizer": "adam"}, "set optimizer = sgd"),
        ({"momentum": 0.9}, "set momentum = 0"),
        ({"weight_decay": 0.1}, "set weight-decay = 0"),
        ({"gradient_clip": 1.0}, "set gradient-clip = 0"),
        ({"stragglers": 0.5}, "set stragglers = 0"),
        ({"fraction": 0.5}, "set fraction = 1"),
        ({"wire_dtype": "bfloat16"}, "wire-dtype"),
        ({"draw": "examples"}, "draw"),
        ({"weight_cap": 0.5}, "weight-cap"),
        ({"weight_cap": 3.0, "privacy.honest": 1}, "no effect without shared noise"),
        ({"privacy.mode": "none", "privacy.epsilon": "", "privacy.spend": ""}, "no effect"),
        ({"privacy.spend": "5"}, "too few units for 6 rounds"),
    ],
    ids=str,
)
def test_what_cannot_be_shared_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        simulate(small(tmp_path, **{**SHARED, **changes}))
    assert not (tmp_path / "rounds.csv").exists() or not rounds(tmp_path)


def test_the_page_says_whose_noise_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ε with h honest clients and with one, of each budget; own noise says neither."""
    shared(tmp_path / "sum", {"privacy.honest": 2, "num_rounds": 2})
    shared(tmp_path / "own", {**OWN, "num_rounds": 2})
    capsys.readouterr()
    assert fairbloom("show", str(tmp_path / "sum")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "if 2 of them, itself included, follow the protocol" in said
    assert "only it does: 3 (4.46)." in said
    assert fairbloom("show", str(tmp_path / "own")) == 0
    assert "share their noise" not in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("method", "losses"), [("fedavg", 0), ("term", 1)])
def test_each_release_is_drawn_once_and_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, losses: int
) -> None:
    """In each of three rounds a client draws noise for its part, and for its loss if it has one."""
    draws = list[int]()

    def counted(count: int, **options: Any) -> np.ndarray:
        draws.append(count)
        return draw_gaussian(count, **options)

    monkeypatch.setattr(simulated, "draw_gaussian", counted)
    folder = shared(tmp_path, {"method": method, "num_rounds": 3, "evaluate_every": 3})
    size = arrays(folder).size
    tests = 5
    assert sorted(draws) == sorted([size] * 15 + [1] * 15 * losses + [2] * tests)
    for account in PRIVACY.read(folder)["clients"].values():
        step = Budget(3, account["delta"]).units_for(account["step_sigma"])
        assert account["units"] == 450 - 3 * (step + step // 4 * losses)


@pytest.mark.parametrize("spend", ["", "all"])
def test_rounds_that_set_the_noise_are_not_raised(tmp_path: Path, spend: str) -> None:
    shared(tmp_path, {"privacy.spend": spend, "privacy.tests": 2, "num_rounds": 2})
    with pytest.raises(FairbloomError, match="num-rounds"):
        shared(tmp_path, {"privacy.spend": spend, "privacy.tests": 2, "num_rounds": 3})
