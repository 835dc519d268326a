"""The model after some rounds equals the papers' vectors, and a method sees only small arrays.

A second update in each reply: it is screened as the first, is a row of the Gram matrix, and part
of the step.

Runs in which no reply changes a parameter, or no evaluation can be used, are errors.
"""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from fairbloom.protocol.names import ARRAYS_DISPARITY
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.cohort import Cohort, Decision, Kept, Past
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.round import StopRun, size_on_the_wire
from fairbloom.strategies import FairStrategy, FedAvg, FedFV, Local, Round
from tests.federation import (
    BUFFERS,
    KINDS,
    OPTIONS,
    TRAINABLE,
    Answer,
    Fault,
    MemoryGrid,
    Quadratic,
    answering,
    arrays,
    bits,
    duplicate,
    error,
    flat,
    in_float64,
    initial_model,
    no_reply,
    quadratics,
    record,
    run,
    unpack,
    without,
)
from tests.strategies.helpers import ARGUMENTS, Arrays, make
from tests.strategies.reference import WEIGHTING, Seen, expected_step

GROUP_COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")


def expected_model(name: str, arguments: dict[str, Any], rounds: Sequence[Round]) -> Arrays:
    """Run the method on whole float64 vectors, given the used replies of each round."""
    clients = quadratics(6)
    history = []
    if name == "local":  # its clients return what they received
        return initial_model()
    steps = arguments.get("local_steps", 10) if name == "drfa" else 1
    model = in_float64()
    weighting = arguments.get("weighting", WEIGHTING[name])
    for finished in rounds:
        if not finished.coefficients:
            continue
        replies = {
            client: clients[client].trained(model, steps)
            for client in sorted(finished.coefficients)
        }
        counts = {client: float(clients[client].examples) for client in replies}
        updates = {client: flat(model) - flat(after) for client, after in replies.items()}
        losses = {client: clients[client].loss(model) for client in replies}
        accuracies = {client: clients[client].accuracy(after) for client, after in replies.items()}
        rates = {client: clients[client].rate for client in replies}
        draws = draws_in(finished) if name == "drfa" else {}
        before = {client: clients[client].group_counts(model) for client in replies}
        groups = {
            metric: {client: before[client][metric] for client in replies}
            for metric in GROUP_COUNTS
        }
        if name == "fairfed":
            accuracies = {client: clients[client].accuracy(model) for client in replies}
        known = {client: float(each.examples) for client, each in clients.items()}
        baselines = {client: clients[client].baseline for client in replies}
        seconds = {client: flat(model) - flat(clients[client].evened(model)) for client in replies}
        columns = (
            updates,
            losses,
            counts,
            accuracies,
            rates,
            draws,
            groups,
            known,
            baselines,
            seconds,
            {client: clients[client].disparity(model) for client in replies},
        )
        history.append(Seen(finished.number, len(rounds), *columns))
        extra = {"seed": OPTIONS["seed"]} if name == "fedfv" else {}
        w = flat(model) - expected_step(name, {**arguments, **extra}, history)
        p = counts if weighting == "examples" else dict.fromkeys(replies, 1.0)
        mean = np.sum([p[c] * after["norm.mean"] for c, after in replies.items()], axis=0) / sum(
            p.values()
        )
        most = max(sorted(replies), key=lambda client: counts[client])
        places = np.split(w, np.cumsum([model[key].size for key in TRAINABLE])[:-1])
        parts = {
            key: place.reshape(model[key].shape)
            for key, place in zip(TRAINABLE, places, strict=True)
        }
        model = {
            key: {**parts, "norm.mean": mean, "norm.steps": replies[most]["norm.steps"]}[key]
            for key in model
        }
    return model


def draws_in(finished: Round) -> dict[str, int]:
    """How often DRFA drew each client, from its coefficients draws / Σ draws; test_drfa.py tests
    the draw itself."""
    shares = np.array([*finished.coefficients.values()])
    total = next(n for n in range(1, 7) if np.abs(n * shares - np.round(n * shares)).max() < 1e-9)
    return {name: round(total * c) for name, c in finished.coefficients.items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_ends_where_the_papers_vectors_end(name: str) -> None:
    """Whoever fails or is late; a round without usable replies keeps all there is, and counts."""
    faults = {("site-4", 1): duplicate, ("site-2", 1): error, ("site-0", 2): no_reply}
    faults |= {(client, 3): error for client in quadratics(6)}
    strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
    states = list[dict[str, Any]]()

    def note(
        number: int,
        arrays: ArrayRecord,
        strategy: FairStrategy = strategy,
        into: list[Any] = states,
    ) -> None:
        into.append(copy.deepcopy(strategy.state_dict()))

    result, finished = run(strategy, faults=faults, evaluate_fn=note)
    assert (
        [r.number for r in finished]
        == [state["finished_rounds"] for state in states[1:]]
        == [1, 2, 3, 4]
    )
    assert finished[2].coefficients == {}
    assert bits(finished[2].arrays) == bits(finished[1].arrays)
    for kept in ("memory", "kept"):
        np.testing.assert_equal(states[3][kept], states[2][kept], name)
    model = unpack(result.arrays)
    expected = expected_model(name, ARGUMENTS[name][0], finished)
    assert list(model) == list(expected)
    for key, array in model.items():
        assert (array.dtype, array.shape) == (
            initial_model()[key].dtype,
            initial_model()[key].shape,
        )
        np.testing.assert_allclose(
            array, expected[key], rtol=2e-5, atol=2e-5 * np.abs(expected[key]).max(), err_msg=name
        )


def sizes_in(value: Any) -> list[int]:
    """The number of entries of every array, list and mapping in a value, functions aside."""
    if isinstance(value, np.ndarray):
        return [value.size]
    if isinstance(value, Past | Decision):
        return sizes_in(vars(value))
    if isinstance(value, Mapping | list | tuple):
        inner = value.values() if isinstance(value, Mapping) else value
        return [len(value), *(size for part in inner for size in sizes_in(part))]
    assert callable(value) or isinstance(value, int | float | str | Kept | None), type(value)
    return []


def large(name: str) -> Callable[[Message], Message]:
    """Return a client of a model of D numbers that measures all that it may be asked for."""
    small = Quadratic(name)

    def answer(message: Message) -> Message:
        content = message.content.array_records.get("arrays")
        if content is None:
            return small(message)
        w = content["w"].numpy()
        config = message.content.config_records["config"]
        after = record(
            {"w": w + np.float32(len(name)) * np.sin(np.arange(D) * small.rate).astype(np.float32)}
        )
        measured = (
            "loss-before",
            "accuracy-after",
            "loss-baseline",
            "step-sum",
            "learning-rate",
            "train-loss",
        )
        numbers = dict.fromkeys((*measured, "disparity", "accuracy-before"), small.rate)
        numbers |= {"num-examples": small.examples, **dict.fromkeys(GROUP_COUNTS, 1)}
        numbers |= {key: config[key] for key in ("state-round",) if key in config}
        replied = RecordDict({"metrics": MetricRecord(numbers)})
        if message.metadata.message_type == MessageType.TRAIN:
            asked = {"snapshot-step": "snapshot", "disparity": "arrays-disparity"}
            for kind in ("arrays", *(kind for key, kind in asked.items() if key in config)):
                replied[kind] = after
        return Message(replied, reply_to=message)

    return answer


D = 10_007


@pytest.mark.parametrize("name", KINDS)
def test_no_vector_of_the_models_length_reaches_the_method(name: str) -> None:
    """Its cohort and its memory have m or (m + r)² numbers, regardless of the model's size."""
    clients = {client: large(client) for client in quadratics(4)}
    initial = record({"w": np.zeros(D, np.float32)})
    strategy = make(name, ARGUMENTS[name][0])
    seen = list[int]()
    weigh = strategy.weigh

    def weighed(
        cohort: Cohort,
        strategy: FairStrategy = strategy,
        do: Any = weigh,
        into: list[int] = seen,
    ) -> Any:
        into.extend(sizes_in(vars(cohort)))
        decided = do(cohort)
        into.extend(sizes_in([vars(cohort), decided]))
        return decided

    # no subclass: that would have no fixed weights
    strategy.adapt(weigh=weighed)
    _, rounds = run(strategy, MemoryGrid(clients), rounds=3, initial_arrays=initial)
    assert all(r.coefficients for r in rounds), name
    assert max(seen) <= 8**2 < D, name


def test_a_parameter_may_have_the_name_of_a_statistic() -> None:
    arrays = {
        "own.running_mean": np.ones(3, np.float32),
        "w": np.ones(2, np.float32),
        "running_var": np.array(1),
    }
    assert Layout(arrays).buffers == ("own.running_mean",)
    assert Layout(arrays, buffers=()).trainable == ("own.running_mean", "w")
    assert Layout(arrays, buffers=("w",)).trainable == ("own.running_mean",)


FIRST = 0.25
SECOND = -0.5
# The coefficients of the method below.
OLD = 0.125


class Both(FairStrategy):
    """It weighs updates, second ones and an old second one by these numbers, and keeps the sum of
    the second ones."""

    second = ARRAYS_DISPARITY
    cohort: Cohort

    def terms(self, server_round: int) -> Terms:
        return replace(super().terms(server_round), disparity="demographic-parity")

    def weigh(self, cohort: Cohort) -> Decision:
        self.adapt(cohort=cohort)
        c = np.array([*np.repeat((FIRST, SECOND), cohort.size), *(OLD for _ in cohort.memory)])
        rows = np.arange(cohort.rows)
        kept = (rows >= cohort.size) & (rows < 2 * cohort.size)
        return Decision(c, keep={Kept("second", cohort.round): kept.astype(np.float64)})


def rounds_of(
    faults: Mapping[tuple[str, int], Fault] | None = None, rounds: int = 1
) -> tuple[Both, list[Round]]:
    """Return the method, which knows its last cohort, and its rounds with four clients."""
    method = Both(buffers=BUFFERS, seed=3)
    return method, run(method, quadratics(4), rounds, faults)[1]


def changed(factor: float = 1.0, **arrays: NDArray[Any] | None) -> Fault:
    """Return a fault that scales a second update, and replaces or removes arrays of its record."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        received, after = (
            unpack(each) for each in (sent.content["arrays"], reply.content[ARRAYS_DISPARITY])
        )
        there = {
            name: received[name] + np.float32(factor) * (array - received[name])
            for name, array in after.items()
        }
        there |= arrays
        reply.content[ARRAYS_DISPARITY] = record(
            {name: each for name, each in there.items() if each is not None}
        )
        return [reply]

    return fault


# Rows ---------------------------------------------------------------------------------------------


def test_a_step_has_updates_second_updates_and_kept_rows(subtests: pytest.Subtests) -> None:
    """And the Gram matrix has them in that order."""
    method, finished = rounds_of(rounds=3)
    before = initial_model()
    old = np.zeros(10)
    clients = quadratics(4)
    for each in finished:
        with subtests.test(each=each):
            u, v = (
                np.array([flat(before) - flat(after(client)) for client in clients.values()])
                for after in (
                    lambda client, w=before: client.trained(w),
                    lambda client, w=before: client.evened(w),
                )
            )
            rows = np.array([*u, *v, old])
            w = flat(before) - FIRST * u.sum(axis=0) - SECOND * v.sum(axis=0) - OLD * old
            np.testing.assert_allclose(flat(unpack(each.arrays)), w, rtol=1e-5, atol=1e-5)
            assert each.coefficients == dict.fromkeys(clients, FIRST)
            before = unpack(each.arrays)
            old = v.sum(axis=0)
    assert (method.cohort.size, method.cohort.rows, method.cohort.second) == (4, 9, True)
    np.testing.assert_allclose(method.cohort.gram, rows @ rows.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(method.cohort.squared_norms, np.square(u).sum(axis=1), rtol=1e-4)


def test_bytes_count_the_arrays_of_both_records() -> None:
    (_, (plain,)) = rounds_of()
    model = initial_model()
    trainable = sum(size_on_the_wire(model[name]) for name in TRAINABLE)
    assert plain.bytes_received == 4 * (sum(map(size_on_the_wire, model.values())) + trainable)
    extra = np.zeros(100)
    _, (more,) = rounds_of({("site-1", 1): changed(extra=extra)})
    assert more.bytes_received == plain.bytes_received + size_on_the_wire(extra)
    assert (more.refused, more.coefficients) == ({}, plain.coefficients)
    assert flat(unpack(more.arrays)).tolist() == flat(unpack(plain.arrays)).tolist()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (without(ARRAYS_DISPARITY), "ArrayRecord 'arrays-disparity' is missing"),
        (without("arrays"), "ArrayRecord 'arrays' is missing"),
        (changed(bias=None), "ArrayRecord 'arrays-disparity': array 'bias' is missing"),
        (
            changed(bias=np.zeros(4, np.float32)),
            "ArrayRecord 'arrays-disparity': array 'bias' has shape (4,)",
        ),
        (
            changed(bias=np.zeros(3, np.int64)),
            "ArrayRecord 'arrays-disparity': array 'bias' has dtype int64",
        ),
        (
            changed(bias=np.float32([np.nan, 0, 0])),
            "array 'bias' of the arrays-disparity is not finite",
        ),
        (
            changed(bias=np.full(3, 1e30, np.float32)),
            "its arrays-disparity has the length 1.73205e+30",
        ),
    ],
)
def test_an_unusable_second_record_is_refused_by_name(fault: Any, reason: str) -> None:
    """And the round ends as without it; neither record stands in for the other."""
    _, (absent,) = rounds_of({("site-2", 1): no_reply})
    _, (one,) = rounds_of({("site-2", 1): fault})
    assert list(one.refused) == ["site-2"]
    assert reason in one.refused["site-2"]
    assert flat(unpack(one.arrays)).tolist() == flat(unpack(absent.arrays)).tolist()


@pytest.mark.parametrize("factor", [1e4, 1e-4])
def test_second_updates_are_compared_with_each_other(factor: float) -> None:
    """They may be a thousand times as long as the first ones, or shorter: a gradient of something
    else is."""
    _, (one,) = rounds_of({(name, 1): changed(factor) for name in quadratics(4)})
    assert one.refused == {}


SITES = tuple(quadratics(4))
NO_STEP = "took no step on the parameters that it received"


def echo(message: Message, reply: Message) -> list[Message]:
    """Return the reply of a client that has trained a copy, and has averaged its statistics."""
    content = message.content.array_records["arrays"]
    reply.content["arrays"] = record(
        {**unpack(content), "norm.mean": unpack(reply.content.array_records["arrays"])["norm.mean"]}
    )
    return [reply]


def at_rest(message: Message, reply: Message) -> list[Message]:
    (reply,) = echo(message, reply)
    reply.content["client"] = ConfigRecord({"zero-rate": True})
    return [reply]


def run_plain(
    strategy: Any, faults: Mapping[int, Any], sites: Any = SITES, **how: Any
) -> list[Round]:
    finished: list[Round] = []
    grid = MemoryGrid(
        quadratics(4), faults={(site, n): fault for n, fault in faults.items() for site in sites}
    )
    arguments: dict[str, Any] = {"initial_arrays": record(initial_model()), "num_rounds": 5, **how}
    strategy.start(grid, on_round=finished.append, **arguments)
    return finished


def always(fault: Any) -> dict[int, Any]:
    return dict.fromkeys(range(1, 10), fault)


@pytest.mark.parametrize("strategy", [FedAvg, FedFV])
def test_a_run_without_any_changed_reply_is_an_error(strategy: Any) -> None:
    with pytest.raises(
        NothingLearnedError,
        match=rf"for 3 rounds: no reply has changed a parameter\. Client site-0 {NO_STEP}.*"
        r"optimizer\.step\(\).*unused-rounds = 0",
    ):
        run_plain(strategy(buffers=BUFFERS), always(echo))
    assert len(run_plain(strategy(buffers=BUFFERS, unused_rounds=0), always(echo))) == 5


def test_unchanged_rounds_are_counted_in_checkpoints() -> None:
    before = FedAvg(buffers=BUFFERS)
    (*_, last) = run_plain(before, always(echo), num_rounds=2)
    after = {"initial_arrays": last.arrays, "resume": copy.deepcopy(before.state_dict())}
    with pytest.raises(NothingLearnedError, match="for 3 rounds: no reply"):
        run_plain(FedAvg(buffers=BUFFERS), always(echo), **after)
    assert len(run_plain(FedAvg(buffers=BUFFERS), {}, **after)) == 3


@pytest.mark.parametrize(
    ("faults", "more", "said"),
    [
        (  # after a step
            *(dict.fromkeys(range(2, 10), echo), {"num_rounds": 9}),
            "round 2: client site-0, as 3 others, took no step",
        ),
        (always(echo), {"sites": ["site-2"]}, "round 1: client site-2 took no step"),
    ],
)
def test_replies_without_a_step_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, faults: Any, more: dict[str, Any], said: str
) -> None:
    with caplog.at_level(logging.WARNING):
        run_plain(FedAvg(buffers=BUFFERS), faults, **more)
    (words,) = [words for words in caplog.messages if NO_STEP in words]
    assert words.startswith(said)


@pytest.mark.parametrize(
    ("strategy", "fault", "config"),
    [
        (Local(buffers=BUFFERS), None, {}),
        (FedAvg(buffers=BUFFERS), at_rest, {}),
        (FedAvg(buffers=BUFFERS), echo, {"lr": 0.0}),
        (FedAvg(buffers=BUFFERS, frozen=("weight", "bias", "scale")), echo, {}),
    ],
)
def test_no_shared_steps_and_a_rate_of_0_are_no_error(
    strategy: Any, fault: Any, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(run_plain(strategy, always(fault), train_config=ConfigRecord(config))) == 5
    assert NO_STEP not in caplog.text


# Evaluations --------------------------------------------------------------------------------------


def failing(first: int = 1) -> dict[str, Answer]:
    """Return clients that cannot evaluate from a round on."""

    def client(name: str) -> Answer:
        inner = quadratics(4)[name]

        def evaluate(message: Message) -> Message:
            number = int(str(message.content.config_records["config"]["server-round"]))
            return inner(message) if number < first else error(message, message)[0]

        return answering(inner, evaluate=evaluate)

    return {name: client(name) for name in SITES}


def evaluated(clients: dict[str, Answer], rounds: int, **options: Any) -> list[Round]:
    finished: list[Round] = []
    FedAvg(**options).start(
        MemoryGrid(clients), record(initial_model()), rounds, on_round=finished.append
    )
    return finished


@pytest.mark.parametrize(
    ("first", "rounds", "options", "words"),
    [
        (1, 9, {}, "for 3 evaluated rounds: in round 3, 4 of 4 replies were refused, all since"),
        (3, 9, {}, "for 3 evaluated rounds: in round 5, 4 of 4 replies were refused"),
        (1, 9, {"evaluate_every": 2, "unused_rounds": 2}, "for 2 evaluated rounds: in round 4,"),
        (1, 2, {}, "no round of 2 could be evaluated: 4 of 4 replies were refused"),
        (1, 9, {"evaluate_every": 0}, "no round of 9 could be evaluated: 4 of 4 replies"),
    ],
)
def test_rounds_without_a_usable_evaluation_are_an_error(
    first: int, rounds: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(NothingLearnedError, match=f"{words}.*out of memory.*unused-rounds = 0"):
        evaluated(failing(first), rounds, **options)
    assert len(evaluated(failing(first), rounds, **{**options, "unused_rounds": 0})) == rounds


def test_a_few_rounds_without_a_usable_evaluation_are_no_error() -> None:
    assert len(evaluated(failing(first=4), 5)) == 5


def test_a_continued_run_counts_evaluations_from_its_checkpoint() -> None:
    before = FedAvg()
    last: list[Round] = []

    def stop(finished: Round) -> None:
        last.append(finished)
        if finished.number == 2:
            raise StopRun

    before.start(MemoryGrid(failing()), record(initial_model()), 9, on_round=stop)
    state = copy.deepcopy(before.state_dict())
    with pytest.raises(NothingLearnedError, match="in round 3, 4 of 4"):
        FedAvg().start(MemoryGrid(failing()), last[-1].arrays, 9, resume=state)


def test_an_update_too_small_for_float32_counts_as_a_change() -> None:
    weight = initial_model()["weight"]
    weight[0, 0] = np.nextafter(weight[0, 0], np.float32(9))
    changed = arrays(**{**initial_model(), "weight": weight})
    assert len(run_plain(FedAvg(buffers=BUFFERS, unused_rounds=1), {1: changed}, num_rounds=1)) == 1
