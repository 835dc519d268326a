"""The results of a round and of a run."""

import inspect
import math
from io import BytesIO
from typing import Annotated, Any, Unpack

import numpy as np
import pytest
from flwr.app import MessageType

from fairbloom.protocol.names import LOSS_BEFORE, TRAIN_LOSS
from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds import ranges
from fairbloom.rounds.clients import average_metrics
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.options import OPTIONS
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import METHODS, FedAvg, FedFa, Options, Round
from fairbloom.text import quote
from tests.federation import (
    BUFFERS,
    MemoryGrid,
    bits,
    error,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    record,
    run,
)
from tests.strategies.helpers import ARGUMENTS, make

from .implementations import IMPLEMENTATIONS, PLAIN, method_and_model

NAN = float("nan")
INF = float("inf")


def just_outside(parameter: ranges.Parameter) -> list[Any]:
    """Return values of another type, and those next to the ends of the range."""
    if parameter.kind is bool:
        return [0, 1, "true", None]
    if parameter.kind is str:
        return [None, 1] + (
            ["", "No such word"] if isinstance(parameter.allowed, ranges.Choices) else []
        )
    outside: list[Any] = [NAN, -INF, None, "0.5", True, [0.5], 1j]
    if not isinstance(parameter.allowed, ranges.Range):
        return [*outside, INF]
    interval = parameter.allowed.interval
    low, high = parameter.allowed.ends
    if parameter.kind is int:
        return [*outside, INF, int(low) - 1, 0.5]
    below = math.nextafter(low, -INF) if interval[0] == "[" else low
    above = math.nextafter(high, INF) if interval[-1] == "]" else high
    return [*outside, below, *({above} - {INF} if interval[-1] == "]" else {above})]


def inside(parameter: ranges.Parameter) -> list[Any]:
    """Return all words, and those ends of the range that belong to it."""
    if isinstance(parameter.allowed, ranges.Choices):
        return list(parameter.allowed.words)
    if not isinstance(parameter.allowed, ranges.Range):
        return [True, False] if parameter.kind is bool else []
    interval = parameter.allowed.interval
    low, high = parameter.allowed.ends
    return [parameter.kind(low)] * (interval[0] == "[") + [high] * (interval[-1] == "]")


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_a_term_that_the_method_sets_is_refused_as_an_option(name: str, method: type) -> None:
    for term in method.own_terms:
        with pytest.raises(ValueError, match=f"{term} by its own parameter, got 0.5"):
            make(name, ARGUMENTS[name][0], **{term: 0.5})


def test_fedfa_needs_one_of_its_two_weights() -> None:
    with pytest.raises(ValueError, match=r"alpha \+ beta must be greater than 0, got alpha = 0"):
        FedFa(alpha=0.0, beta=0.0)
    assert FedFa(alpha=1e-30, beta=0.0).alpha == FedFa(alpha=0.0, beta=1e-30).beta


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_values_outside_a_declared_range_are_refused_by_name(name: str, method: Any) -> None:
    own = [
        each for each in parameters_of(name, method) if not isinstance(each.allowed, ranges.Pairs)
    ]
    common = [
        each for key, each in OPTIONS.items() if name == "fedavg" and not key.endswith("_key")
    ]
    for parameter in [*own, *common]:
        argument = parameter.name.replace("-", "_")
        for value in inside(parameter):
            assert parameter.checked(value) == value, (name, argument)
            if parameter in own:
                make(name, {**ARGUMENTS[name][0], argument: value})
        declared = inspect.signature(method).parameters.get(argument)
        may_be_none = declared is not None and declared.default is None
        for value in just_outside(parameter):
            if value is None and may_be_none:
                continue
            with pytest.raises(ValueError, match=argument) as refused:
                pytest.fail(
                    f"{name} takes {argument} ="
                    f" {make(name, {**ARGUMENTS[name][0], argument: value})}"
                )
            assert quote(value) in str(refused.value)
            assert parameter.range in str(refused.value)


@pytest.mark.parametrize("number", [np.float32(1), 1])
def test_checks_return_plain_numbers(number: Any) -> None:
    assert type(ranges.within("(0, 1]", x=number)) is float
    assert type(ranges.whole(0, x=np.int64(3))) is int


# Annotations of user-defined methods --------------------------------------------------------------


class Ranged(FedAvg):
    """Parameters with a range, without one, and of a type that no run config carries."""

    def __init__(
        self,
        first: Annotated[float, ranges.Range("(0, 1]")] = 0.5,
        plain: float = 1.0,
        *,
        count: int = 1,
        loud: bool = False,
        word: str = "",
        other: tuple[int, ...] = (),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.given = (first, plain, count, loud, word, other)


def test_a_users_method_gets_its_parameters_in_their_types() -> None:
    made = Ranged(1, 2, count=np.int64(3), loud=True, word="x", other=(4,), seed=5)
    assert made.given == (1.0, 2.0, 3, True, "x", (4,))
    assert [type(value) for value in made.given] == [float, float, int, bool, str, tuple]
    assert made.seed == 5
    assert Ranged().given == (0.5, 1.0, 1, False, "", ())


@pytest.mark.parametrize(
    ("positional", "named", "kind", "words"),
    [
        *(
            ((), {key: value}, ValueError, rf"{key} = {value}: .*allowed is")
            for key, value in (
                *(("first", 0), ("plain", INF), ("count", 1.0), ("loud", 1), ("word", None)),
            )
        ),
        ((), {"plain": 10**400}, ValueError, "allowed is float"),
        ((2,), {}, ValueError, "first = 2: allowed is"),
        ((1, 2, 3), {}, TypeError, "positional arguments"),
        ((), {"unheard_of": 1}, TypeError, "unheard_of"),
    ],
)
def test_what_an_annotation_does_not_allow_is_refused(
    positional: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        Ranged(*positional, **named)


def test_a_subclass_may_narrow_the_range_of_its_base() -> None:
    class Narrow(Ranged):
        def __init__(self, *, first: Annotated[float, ranges.Range("(0, 0.5]")] = 0.1) -> None:
            super().__init__(first * 4)

    assert Narrow(first=0.25).given[0] == 1.0
    with pytest.raises(ValueError, match=r"first = 0.6: allowed is"):
        Narrow(first=0.6)
    with pytest.raises(ValueError, match=r"first = 2.0: allowed is"):
        Narrow(first=0.5)


@pytest.mark.parametrize(
    "name", ["max_growth", "loss_limit", "update_limit", "unused_rounds", "evaluate_every"]
)
def test_common_options_have_their_settings_ranges_and_marks(name: str) -> None:
    assert OPTIONS[name] is not None
    setting = SETTINGS[name.replace("_", "-")]
    assert (OPTIONS[name].range, OPTIONS[name].default) == (setting.range, setting.default)
    assert OPTIONS[name].marks == setting.marks
    assert getattr(FedAvg(), name) == setting.default
    # 0 switches it off in a strategy
    assert OPTIONS["fraction_evaluate"].range != SETTINGS["fraction-evaluate"].range
    assert OPTIONS.keys() < Options.__optional_keys__


def test_a_finished_round_has_its_participants_and_results() -> None:
    result, rounds = run(
        FedAvg(buffers=BUFFERS), quadratics(5), 2, {("site-1", 1): error, ("site-3", 1): no_reply}
    )
    first = rounds[0]
    clients = quadratics(5)
    used = ["site-0", "site-2", "site-4"]
    examples = sum(clients[name].examples for name in used)
    assert first.number == 1
    assert first.participants == tuple(clients)
    assert list(first.refused) == ["site-1"]
    assert first.missing == ("site-3",)
    assert list(first.coefficients) == used
    assert first.coefficients == pytest.approx(
        {name: clients[name].examples / examples for name in used}
    )
    assert all(type(c) is float for c in first.coefficients.values())
    assert list(first.train_metrics) == used
    assert all(first.train_metrics[name]["num-examples"] == clients[name].examples for name in used)
    counts = {"participants": 5, "replies-used": 3, "replies-refused": 1, "replies-missing": 1}
    assert {key: first.metrics[key] for key in counts} == counts
    assert first.metrics["loss-before"] == pytest.approx(
        sum(clients[n].examples / examples * first.train_metrics[n]["loss-before"] for n in used)
    )
    assert set(first.evaluations) == set(clients) - {"site-3"}
    assert bits(rounds[1].arrays) == bits(result.arrays)
    assert bits(first.arrays) != bits(rounds[1].arrays)
    size = sum(len(array.data) for array in first.arrays.values())
    assert first.bytes_sent == size * (5 + 4)
    assert first.bytes_received == size * 3


def test_on_round_precedes_the_next_round_and_may_end_the_run() -> None:
    grid = MemoryGrid(quadratics(2))

    def stop(finished: Round) -> None:
        assert len(grid.sent_to(MessageType.TRAIN)) == 2 * finished.number
        if finished.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FedAvg().start(grid, record(initial_model()), num_rounds=5, on_round=stop)
    assert len(grid.sent_to(MessageType.TRAIN)) == 4


@pytest.mark.parametrize(
    ("every", "share", "evaluated"), [(2, 1.0, [2, 4, 5]), (9, 1.0, [5]), (0, 0.0, [])]
)
def test_clients_evaluate_at_the_interval_and_after_the_last(
    every: int, share: float, evaluated: list[int]
) -> None:
    result, rounds = run(FedAvg(evaluate_every=every, fraction_evaluate=share), rounds=5)
    assert [r.number for r in rounds if r.evaluations] == evaluated
    assert list(result.evaluate_metrics_clientapp) == evaluated


@pytest.mark.parametrize(("share", "clients"), [(1.0, 6), (0.5, 3), (0.34, 3), (0.01, 1)])
def test_those_who_evaluate_are_drawn_apart(share: float, clients: int) -> None:
    _, rounds = run(FedAvg(fraction_train=0.5, fraction_evaluate=share), rounds=3)
    assert [len(each.evaluations) for each in rounds] == [clients] * 3
    assert any(set(each.evaluations) != set(each.participants) for each in rounds)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_recorded_losses_are_of_clients_that_evaluate(implementation: str) -> None:
    """No table has a row of the others, and a loss costs a pass over their data."""
    settings = Settings.of({**PLAIN, "method": "fedavg", "fraction-evaluate": 0.4})
    method, model = method_and_model(settings)
    clients = IMPLEMENTATIONS[implementation](method, dict(settings.run_config()))
    loop = Rounds(method, clients, settings.num_rounds)
    asked = [LOSS_BEFORE]
    rounds = list(loop.run(model, measure=lambda number: asked, measure_after=[TRAIN_LOSS]))
    if isinstance(clients, LocalClients):
        clients.close()
    for finished in rounds:
        report = finished.train_metrics
        assert set(report) - set(finished.evaluations)
        assert {name for name in report if LOSS_BEFORE in report[name]} == set(report) & set(
            finished.evaluations
        )


def test_means_are_weighted_and_of_what_half_of_them_report() -> None:
    reports = {
        "a": {"num-examples": 1, "loss": 4.0, "own": 1.0},
        "b": {"loss": 8.0, "num-examples": 3},
    }
    assert average_metrics(reports, "num-examples") == {"loss": pytest.approx(7.0), "own": 1.0}
    assert average_metrics({**reports, "c": reports["b"]}, "num-examples") == {
        "loss": pytest.approx(52.0 / 7.0)
    }
    assert average_metrics({"a": {"num-examples": 3}}, "num-examples") == {}
    assert average_metrics({}, "num-examples") == {}
    largest = np.finfo(np.float64).max
    most = {str(k): {"num-examples": k, "loss": largest} for k in range(1, 50)}
    # Without a warning.
    assert average_metrics(most, "num-examples")["loss"] >= largest * (1.0 - 1e-12)


def test_a_metric_that_is_no_number_at_one_client_is_averaged() -> None:
    faults = {
        (name, number): metrics({"mine": value})
        for name, value in {"site-0": 0.0, "site-1": math.nan, "site-2": 2.0}.items()
        for number in (1, 2)
    }
    result, _ = run(FedAvg(), quadratics(3), 2, faults)
    counts = [client.examples for name, client in quadratics(3).items() if name != "site-1"]
    assert result.train_metrics_clientapp[2]["mine"] == pytest.approx(2.0 * counts[1] / sum(counts))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(()),
        np.zeros((3, 4), np.float32),
        np.zeros((3, 4), order="F"),
        np.zeros((0, 2), ">i2"),
    ],
)
def test_the_size_of_an_array_on_the_wire_is_that_of_its_file(array: object) -> None:
    for _ in range(2):  # the second time from the cache
        file = BytesIO()
        np.save(file, array)
        assert size_on_the_wire(array) == file.tell()
