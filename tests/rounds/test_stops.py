"""A run that learns nothing is an error, and so is a method that returns no coefficients."""

import re
import traceback
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds import flower
from fairbloom.rounds.cohort import Cohort, MethodError
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.round import Round, StopRun
from fairbloom.rounds.screening import BrokenModelError
from fairbloom.strategies import AdaFed, FairStrategy, FedAvg, FedFV, QFedSGD
from tests.federation import (
    BUFFERS,
    KINDS,
    Fault,
    MemoryGrid,
    arrays,
    bits,
    error,
    in_float64,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make

SITES = tuple(quadratics(4))
ALWAYS = range(1, 10)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for clients again after a hundredth of a second."""
    monkeypatch.setattr(flower, "WAIT_SECONDS", 0.01)


def grid_of(
    fault: Fault | None, rounds: Iterable[int] = ALWAYS, sites: Iterable[str] = SITES
) -> MemoryGrid:
    """Return a grid with the fault at these sites in these rounds."""
    return MemoryGrid(
        quadratics(4),
        faults={(site, number): fault for site in sites for number in rounds if fault},
    )


def run(strategy: FairStrategy, grid: MemoryGrid, rounds: int = 5, **arguments: Any) -> list[Round]:
    """Run; what arrives late arrives before the next round."""
    finished: list[Round] = []

    def on_round(each: Round) -> None:
        finished.append(each)
        grid.release()

    arguments = {
        "initial_arrays": record(initial_model()),
        "timeout": 0.05,
        "on_round": on_round,
        **arguments,
    }
    strategy.start(grid, num_rounds=rounds, **arguments)
    return finished


def skipped(rounds: Iterable[Round]) -> list[int]:
    return [each.number for each in rounds if not each.coefficients]


def returning(value: Any) -> FairStrategy:
    """Return a method with a `weigh` that returns a value, or a function of the cohort's size."""

    class Mine(FairStrategy):
        def weigh(self, cohort: Cohort) -> Any:
            return value(cohort.size) if callable(value) else value

    return Mine(buffers=BUFFERS)


FAILING_OR_LATE = {
    (site, number): error if site == "site-2" else no_reply for site in SITES for number in ALWAYS
}
Cause = tuple[Callable[[], FairStrategy], Callable[[], MemoryGrid], str]

LEAPING: Cause = (
    lambda: returning([1e39] * 4),
    lambda: grid_of(None),
    "array 'weight' after the step is beyond",
)
CAUSES: list[Cause] = [
    (FedAvg, lambda: grid_of(no_reply), "4 of 4 clients did not answer"),
    (
        FedAvg,
        lambda: grid_of(error),
        "4 of 4 replies were refused, all since error 2: out of memory",
    ),
    (
        FedAvg,
        lambda: grid_of(arrays(bias=np.float32([1, np.nan, 2]))),
        "4 of 4 replies were refused, .*'bias'",
    ),
    (
        FedAvg,
        lambda: MemoryGrid(quadratics(4), faults=FAILING_OR_LATE),
        "3 of 4 clients did not answer .* 1 of 4 replies were refused, that of site-2",
    ),
    LEAPING,
    (FedAvg, lambda: MemoryGrid({}), "too few clients were online"),
    (lambda: FedAvg(min_available_nodes=5), lambda: grid_of(None), "too few clients were online"),
]


@pytest.mark.parametrize(("method", "grid", "why"), CAUSES)
def test_rounds_without_a_step_stop_the_run_with_the_remedy(
    method: type | Callable[..., Any], grid: Callable[..., Any], why: str
) -> None:
    """Where it has no limit, the run goes on and keeps the model."""
    strategy = method()
    strategy.adapt(unused_rounds=2)
    words = rf"^[^\n]*for 2 rounds: in round 2, ({why})[^\n]*unused-rounds = 0[^\n]*$"
    with pytest.raises(NothingLearnedError, match=words):
        run(strategy, grid())
    assert strategy.run_state.finished_rounds == 2
    with pytest.raises(NothingLearnedError, match=f"no round of 2 took a step: {why}"):
        run(method(), grid(), rounds=2)
    strategy.adapt(unused_rounds=0)
    rounds = run(strategy, grid())
    assert skipped(rounds) == [1, 2, 3, 4, 5]
    assert bits(rounds[-1].arrays) == bits(record(initial_model()))


def test_skipped_rounds_are_counted_over_a_restart() -> None:
    method, grid, _ = LEAPING
    killed = method()
    state = dict[str, Any]()

    def stop(finished: Round) -> None:
        state.update(killed.state_dict())
        if finished.number == 2:
            raise StopRun("killed")

    arrays = record(initial_model())
    killed.start(grid(), arrays, num_rounds=9, on_round=stop)
    with pytest.raises(NothingLearnedError, match="nothing for 3 rounds: in round 3, "):
        method().start(grid(), arrays, num_rounds=9, resume=state)


def test_a_metric_that_all_replies_lack_is_named_with_the_remedy() -> None:
    with pytest.raises(
        NothingLearnedError, match=r"in round 3, 4 of 4 replies .* 'loss-before' .*fair\("
    ):
        run(FedFV(), grid_of(metrics({"loss-before": None})))


# What is counted ----------------------------------------------------------------------------------


def test_a_step_and_a_run_start_the_count_anew() -> None:
    strategy = FedAvg()
    assert skipped(run(strategy, grid_of(error, rounds=(1, 2, 4, 5)), rounds=6)) == [1, 2, 4, 5]
    with pytest.raises(NothingLearnedError, match="in round 6, "):
        run(strategy, grid_of(error, rounds=(1, 2, 4, 5, 6)), rounds=6)
    assert skipped(run(strategy, grid_of(error, rounds=(1, 2)), rounds=3)) == [1, 2]
    with pytest.raises(NothingLearnedError, match="no round of 2 took a step"):
        run(strategy, grid_of(error), rounds=2)


def test_a_continued_run_counts_on_and_knows_its_steps() -> None:
    before = FedFV()
    last = run(before, grid_of(error, rounds=(3,)), rounds=3)[-1]
    after = {"initial_arrays": last.arrays, "resume": before.state_dict()}
    assert skipped(
        run(FedFV(), grid_of(metrics({"loss-before": None}), rounds=(4,)), rounds=5, **after)
    ) == [4]


# Methods ------------------------------------------------------------------------------------------


WRONG: list[tuple[Any, str]] = [
    (np.full(3, 0.25), "float64 of shape (3,)"),
    (np.full((4, 1), 0.25), "float64 of shape (4, 1)"),
    (0.25, "float64 of shape ()"),
    (None, "object of shape ()"),
    (np.full(4, 0.25 + 0j), "complex128 of shape (4,)"),
    (np.full(4, True), "bool of shape (4,)"),
    (["a", "b", "c", "d"], "<U1 of shape (4,)"),
    ([0.25, None, 0.25, 0.25], "object of shape (4,)"),
]


@pytest.mark.parametrize(("value", "got"), WRONG)
def test_a_wrong_weigh_is_named_with_what_it_returned(value: Any, got: str) -> None:
    with pytest.raises(MethodError, match=re.escape(f"Mine.weigh, in round 1, returned {got}")):
        run(returning(value), grid_of(None))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_clients_with_weights_that_are_not_finite_are_named(value: float) -> None:
    with pytest.raises(
        MethodError, match=r"^Mine.weigh, in round 1, .* not finite \(of site-1, site-3\)"
    ):
        run(returning([0.5, value, 0.5, value]), grid_of(None))


@pytest.mark.parametrize(
    "value",
    [
        [1, 0, 0, 1],
        np.array([1, 0, 0, 1], np.uint8),
        np.array([1, 0, 0, 1], np.float16),
    ],
)
def test_whole_numbers_and_lists_are_coefficients_as_well(value: Any) -> None:
    (finished,) = run(returning(value), grid_of(None), rounds=1)
    assert finished.coefficients == {
        "site-0": 1.0,
        "site-1": 0.0,
        "site-2": 0.0,
        "site-3": 1.0,
    }
    assert {type(c) for c in finished.coefficients.values()} == {float}


def test_what_a_method_raises_itself_keeps_its_traceback() -> None:
    def fails(size: int) -> None:
        raise ValueError("I cannot weigh these")

    with pytest.raises(ValueError, match="I cannot weigh these") as raised:
        run(returning(fails), grid_of(None))
    assert not isinstance(raised.value, FairbloomError)
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][-2:] == [
        "weigh",
        "fails",
    ]


@pytest.mark.parametrize(("name", "largest"), [*product(KINDS, (1e150, 1e300))])
def test_updates_without_products_are_never_the_methods_fault(
    monkeypatch: pytest.MonkeyPatch, name: str, largest: float
) -> None:
    """Its entries are refused beyond 1e150; even without that limit a round is skipped at most."""
    monkeypatch.setattr("fairbloom.rounds.updates.MAX_ENTRY", largest)
    hostile = grid_of(
        arrays(bias=in_float64()["bias"] + 0.99 * largest), rounds=[1], sites=["site-2"]
    )
    options: dict[str, Any] = {"seed": 4, "unused_rounds": 0, "update_limit": np.inf}
    strategy = make(name, ARGUMENTS[name][0], buffers=BUFFERS, fraction_evaluate=0.0, **options)
    with np.errstate(all="ignore"):
        (finished,) = run(strategy, hostile, rounds=1, initial_arrays=record(in_float64()))
    assert "site-2" in finished.participants, name
    assert finished.refused == {}
    assert all(np.isfinite(array).all() for array in unpack(finished.arrays).values()), name


@pytest.mark.parametrize(
    ("strategy", "reported"),
    [
        (AdaFed(gamma=3.0, buffers=BUFFERS, unused_rounds=0), {"loss-before": 1e-200}),
        (
            QFedSGD(q=0.0, lipschitz=10.0, buffers=BUFFERS, unused_rounds=0),
            {"learning-rate": 1e-300},
        ),
        (
            QFedSGD(q=1.0, lipschitz=10.0, buffers=BUFFERS, unused_rounds=0),
            {"learning-rate": 1e-300},
        ),
    ],
)
def test_what_a_method_divides_by_may_be_next_to_nothing(
    strategy: AdaFed | QFedSGD, reported: dict[str, float]
) -> None:
    """The step would be beyond the range of numbers, or has nothing left: the model stays, and the
    run goes on."""
    finished = run(strategy, grid_of(metrics(reported), rounds=[1]), rounds=2)
    first, second = (unpack(each.arrays) for each in finished)
    np.testing.assert_allclose(first["weight"], initial_model()["weight"], rtol=1e-6)
    assert (second["weight"] != first["weight"]).all()


def test_a_model_of_integers_is_refused_before_round_1() -> None:
    sent = {"counts": np.arange(3), "mask": np.array([True])}
    finished: list[Round] = []
    with pytest.raises(
        BrokenModelError, match=r"no float array.*counts \(int64\), mask \(bool\).*float32"
    ):
        FedAvg().start(MemoryGrid(quadratics(4)), record(sent), 3, on_round=finished.append)
    assert not finished
