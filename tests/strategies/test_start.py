"""`start` has the arguments of Flower's, and ends a run when it is asked to."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    Result,
    Strategy,
)

import fairbloom
from fairbloom import RunFolder
from fairbloom.rounds.round import Round, StopRun
from fairbloom.strategies import SCAFFOLD, FairStrategy, FedAvg, FedAvgN, FedFV
from tests.federation import (
    BUFFERS,
    MemoryGrid,
    bits,
    initial_model,
    quadratics,
    record,
    run,
)

Start = Callable[..., Result]


def start_of_1_43(
    self: Strategy,
    grid: Any,
    initial_arrays: Any,
    num_rounds: int = 3,
    timeout: float = 3600,
    train_config: Any = None,
    evaluate_config: Any = None,
    evaluate_fn: Any = None,
    should_stop: Any = None,
) -> Result:
    """Stand in for `Strategy.start` of Flower 1.43."""
    raise NotImplementedError


def start_of_later(
    self: Strategy,
    grid: Any,
    initial_arrays: Any,
    num_rounds: int = 3,
    timeout: float = 3600,
    train_config: Any = None,
    evaluate_config: Any = None,
    evaluate_fn: Any = None,
    should_stop: Any = None,
    checkpoint_every: int = 0,
    *,
    labels: Any = None,
) -> Result:
    """Stand in for that of a Flower which nobody knows yet."""
    raise NotImplementedError


INSTALLED = Strategy.start

BASES = {"installed": INSTALLED, "1.43": start_of_1_43, "later": start_of_later}


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give Flower's base class the `start` of a version."""
    monkeypatch.setattr(Strategy, "start", BASES[request.param])
    return str(request.param)


def differences(theirs: Start, ours: Start) -> dict[str, str]:
    """Return in which arguments of Flower's our `start` differs, by name."""
    there = list(inspect.signature(theirs).parameters.values())
    here = [each for each in inspect.signature(ours).parameters.values() if each.name != "strategy"]
    positional = [each.name for each in here if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: each for each in here}
    found = dict[str, str]()
    for place, each in enumerate(there):
        own = named.get(each.name)
        if own is None:
            found[each.name] = "is new"
        elif own.default != each.default:
            found[each.name] = f"is {each.default!r} by default, not {own.default!r}"
        elif each.kind is each.POSITIONAL_OR_KEYWORD and positional[place] != each.name:
            found[each.name] = f"has place {place}"
    return found


# The arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(inspect.signature(INSTALLED).parameters))
@pytest.mark.parametrize("ours", [FairStrategy.start, RunFolder.start])
def test_start_has_the_argument_of_the_installed_flower(name: str, ours: Start) -> None:
    assert differences(INSTALLED, ours).get(name) is None


@pytest.mark.parametrize("ours", [FairStrategy.start, RunFolder.start])
def test_a_newer_argument_is_found_by_its_name(ours: Callable[..., object]) -> None:
    """The test above would fail with it."""

    def moved(self: Any, grid: Any, num_rounds: int = 4, initial_arrays: Any = None) -> Any: ...

    new = {"checkpoint_every": "is new", "labels": "is new"}
    assert differences(start_of_1_43, ours) == {}
    assert differences(start_of_later, ours) == new
    assert set(differences(moved, ours)) == {"num_rounds", "initial_arrays"}


# An end that is asked for -------------------------------------------------------------------------


def test_should_stop_is_called_after_each_round(base: str) -> None:
    seen = list[tuple[int, Any, list[int], list[int]]]()

    def stop(number: int, result: Result) -> bool:
        metrics = (result.train_metrics_clientapp, result.evaluate_metrics_clientapp)
        seen.append((number, bits(result.arrays), *(list(each) for each in metrics)))
        return number == 3

    result, rounds = run(FedAvg(buffers=BUFFERS), rounds=5, should_stop=stop)
    assert [each.number for each in rounds] == [1, 2, 3]
    assert [(number, *metrics) for number, _, *metrics in seen] == [
        (number, list(range(1, number + 1)), list(range(1, number + 1))) for number in (1, 2, 3)
    ]
    assert [arrays for _, arrays, *_ in seen] == [bits(each.arrays) for each in rounds]
    assert seen[-1][1] == bits(result.arrays)


def test_a_run_without_steps_may_be_stopped() -> None:
    """It is no error that nothing was learned, as with StopRun."""
    result, _ = run(
        FedAvg(unused_rounds=5), MemoryGrid({}), timeout=0.01, should_stop=lambda *_: True
    )
    assert bits(result.arrays) == bits(record(initial_model()))


def test_whoever_asks_first_ends_the_run() -> None:
    asked = list[int]()

    def should_stop(number: int, result: Result) -> bool:
        asked.append(number)
        return False

    def on_round(finished: Round) -> None:
        if finished.number == 2:
            raise StopRun("enough")

    FedAvg(buffers=BUFFERS).start(
        MemoryGrid(quadratics(2)),
        record(initial_model()),
        5,
        should_stop=should_stop,
        on_round=on_round,
    )
    assert asked == [1]


def start_in(
    folder: Path, rounds: int = 6, strategy: Strategy | None = None, **given: Any
) -> tuple[Result, int]:
    """Run in a folder; return the result and the number of messages that clients trained on."""
    grid = MemoryGrid(quadratics(4))
    strategy = strategy or FedFV(buffers=BUFFERS, fraction_train=0.5)
    result = RunFolder(folder, wait=False).start(
        strategy, grid, record(initial_model()), rounds, **given
    )
    return result, len(grid.sent_to(MessageType.TRAIN))


def test_a_stopped_run_is_recorded_and_stays_finished(base: str, tmp_path: Path) -> None:
    start_in(tmp_path / "whole")
    first, _ = start_in(tmp_path / "run", should_stop=lambda number, result: number == 3)
    loaded = fairbloom.load(tmp_path / "run")
    assert loaded.stopped == "should_stop returned True after round 3"
    assert (loaded.rounds_done, loaded.finished) == (3, True)
    again, messages = start_in(tmp_path / "run", should_stop=lambda number, result: False)
    assert messages == 0
    assert bits(again.arrays) == bits(first.arrays)
    longer, messages = start_in(tmp_path / "run", 7)
    assert messages == 2 * 4  # rounds 4 to 7
    assert fairbloom.load(tmp_path / "run").stopped == ""
    whole, _ = start_in(tmp_path / "whole", 7)
    assert bits(longer.arrays) == bits(whole.arrays)


def test_it_may_stop_with_a_reason_of_its_own(tmp_path: Path) -> None:
    def stop(number: int, result: Result) -> bool:
        raise StopRun("the loss is low")

    start_in(tmp_path / "run", should_stop=stop)
    loaded = fairbloom.load(tmp_path / "run")
    assert (loaded.stopped, loaded.rounds_done) == ("the loss is low", 1)


def test_an_error_in_should_stop_ends_the_run_unfinished(tmp_path: Path) -> None:
    def stop(number: int, result: Result) -> bool:
        if number == 2:
            raise KeyError("loss")
        return False

    with pytest.raises(KeyError, match="loss"):
        start_in(tmp_path / "run", should_stop=stop)
    assert not fairbloom.load(tmp_path / "run").finished
    assert start_in(tmp_path / "run")[1] == 2 * 4  # rounds 3 to 6


class Passing(FedAvg):
    """A strategy with a `start` as it was written for older versions of Flower."""

    def start(self, *args: Any, **given: Any) -> Result:  # type: ignore[override]
        return super().start(*args, **given)


def wrapped() -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(buffers=BUFFERS), 0.0, 9.0, 4)


@pytest.mark.parametrize("made", [lambda: Passing(buffers=BUFFERS), wrapped])
def test_should_stop_reaches_wrapped_and_overridden_starts(
    made: Callable[[], Strategy], base: str, tmp_path: Path
) -> None:
    start_in(tmp_path / "run", strategy=made(), should_stop=lambda number, result: number == 2)
    assert fairbloom.load(tmp_path / "run").stopped == "should_stop returned True after round 2"


# Seconds that clients have ------------------------------------------------------------------------


def lives(grid: MemoryGrid) -> list[float]:
    """Return the seconds that the messages of each round live."""

    def number(message: Message) -> int:
        return int(str(message.content["config"]["server-round"]))

    sent = [*grid.sent_to(MessageType.TRAIN), *grid.sent_to(MessageType.EVALUATE)]
    found = {(number(message), message.metadata.ttl) for _, message in sent}
    assert len(found) == len({number for number, _ in found})
    return [seconds for _, seconds in sorted(found)]


@pytest.mark.parametrize("in_folder", [False, True])
def test_the_timeout_may_depend_on_the_round(in_folder: bool, tmp_path: Path) -> None:
    def longer_at_first(number: int) -> float:
        return 60.0 if number == 1 else 5.0 + number

    grid = MemoryGrid(quadratics(2))
    model = record(initial_model())
    strategy = FedAvg(buffers=BUFFERS)
    if in_folder:
        RunFolder(tmp_path, wait=False).start(strategy, grid, model, 3, longer_at_first)
    else:
        strategy.start(grid, model, 3, timeout=longer_at_first)
    assert lives(grid) == [60.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("timeout", "words"),
    [
        (0, "timeout = 0: allowed is float above 0"),
        (-1.0, "timeout = -1.0: allowed is float above 0"),
        ("60", "timeout = '60': .*allowed is float above 0"),
        (lambda number: 2.0 - number, r"timeout\(2\) = 0.0: allowed is float above 0"),
    ],
)
def test_a_timeout_of_no_seconds_is_refused(timeout: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(FedAvg(buffers=BUFFERS), timeout=timeout)
    run(FedAvgN(buffers=BUFFERS), timeout=None, rounds=1)


@pytest.mark.parametrize("strategy", [FedFV(tau=3, buffers=BUFFERS), SCAFFOLD(buffers=BUFFERS)])
def test_a_second_start_forgets_the_first(strategy: FairStrategy) -> None:
    first, _ = run(strategy, rounds=3)
    again, _ = run(strategy, rounds=3)
    assert bits(first.arrays) == bits(again.arrays)
