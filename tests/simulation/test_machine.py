"""A run among clients that come, go and misbehave, and that is killed and resumed, against what
must always hold.

hypothesis chooses what happens. Clients are functions in this process. Each process of the run
lasts until it is killed, until the planned rounds are over, or until the run ends with an error,
which must be a FairbloomError.
"""

import itertools
import math
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import Phase, settings as chosen, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.method import Method
from fairbloom.rounds.quorum import Quorum, QuorumError
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_last
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from tests.federation import (
    Fault as Mutation,
    MemoryGrid,
    arrays,
    metrics,
    to_unknown_message,
    without,
)

from .helpers import table

CLIENTS = tuple(f"site-{k}" for k in range(4))
METHODS = ("fedavg", "qfedavg", "term", "afl", "fedfv", "fedmgdaplus")
ROUNDS = 6
FEWEST = 2
PATIENCE = 5.0
# Flower's error code for a node that is offline.
OFFLINE = 5

ERRORS = {"raises": 2, "unavailable": OFFLINE}

# What clients reply -------------------------------------------------------------------------------


def reply_of(name: str, message: Message) -> RecordDict:
    """Return the reply of an honest client, which moves halfway to its own constant model."""
    if message.metadata.message_type == MessageType.QUERY:
        return RecordDict({"client": ConfigRecord({"name": name})})
    place = CLIENTS.index(name)
    arrays = {key: array.numpy() for key, array in message.content.array_records["arrays"].items()}
    loss = sum(float(((array - place) ** 2).sum()) for array in arrays.values())
    metrics: dict[str, Any] = {
        "num-examples": 10 + place,
        "loss-before": loss,
        "loss": loss,
        "train-loss": loss,
    }
    if message.metadata.message_type == MessageType.EVALUATE:
        return RecordDict({"metrics": MetricRecord({**metrics, "accuracy": 1.0 / (1.0 + place)})})
    moved = {
        key: Array((array + 0.1 * (place - array)).astype(array.dtype))
        for key, array in arrays.items()
    }
    return RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({**metrics})})


def with_first_array(change: Callable[[np.ndarray], np.ndarray | Array | None]) -> Mutation:
    """Return what replaces the first array of a reply, or leaves it out where the change is
    None."""

    def mutate(sent: Message, reply: Message) -> list[Message]:
        first = next(iter(reply.content.array_records.get("arrays", {})), None)
        try:
            changed = first and change(reply.content.array_records["arrays"][first].numpy())
        except (ValueError, EOFError, TypeError, RuntimeWarning):  # damaged by another mutation
            return [reply]
        return arrays(**{first: changed})(sent, reply) if first else [reply]

    return mutate


def with_bytes(change: Callable[[bytes], bytes]) -> Mutation:
    """Return what changes the bytes of a reply's first array."""

    def changed(array: np.ndarray) -> Array:
        honest = Array(array)
        return Array(
            dtype=honest.dtype, shape=honest.shape, stype=honest.stype, data=change(honest.data)
        )

    return with_first_array(changed)


def flip(place: int, bits: int) -> Mutation:
    """Return what flips bits of one byte of the first array."""

    def flipped(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]

    return with_bytes(flipped)


BROKEN = st.sampled_from([math.nan, math.inf, -math.inf])
# What makes a training reply one that no method can use.
ALWAYS_REFUSED: st.SearchStrategy[Mutation] = st.one_of(
    st.sampled_from([None, 0, -1, 2**60, 0.5, 3.0, math.nan, [3]]).map(
        lambda count: metrics({"num-examples": count})
    ),
    BROKEN.map(lambda value: with_first_array(lambda array: np.full_like(array, value))),
    st.sampled_from(
        [
            with_first_array(lambda array: array.reshape(-1)[:1]),
            with_first_array(lambda array: array[..., None]),
            with_first_array(lambda array: array.astype(np.int64)),
            with_first_array(lambda array: array.astype(np.complex64)),
            with_first_array(lambda array: array.astype("U3")),
            with_first_array(lambda array: None),
            with_bytes(lambda data: b""),
            with_bytes(lambda data: data[:-1]),
            with_bytes(lambda data: data.replace(b"(", b"(9", 1)),
            with_bytes(lambda data: data.replace(b"<f4", b"|O8", 1)),
            without("arrays"),
            without("metrics"),
            lambda sent, reply: [Message(RecordDict(), reply_to=sent)],
        ]
    ),
)


def scaled(array: Any, factor: float) -> Any:
    """Return an array times a factor; an earlier fault may have made it infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        return (array * np.float64(factor)).astype(array.dtype)


# What the limits of a method may or may not refuse.
MAYBE_REFUSED: st.SearchStrategy[Mutation] = st.one_of(
    st.sampled_from([1, 1000, 2**53]).map(lambda count: metrics({"num-examples": count})),
    st.builds(
        lambda name, value: metrics({name: value}),
        st.sampled_from(
            ["loss-before", "step-sum", "loss", "accuracy", "train-loss", "unheard-of"]
        ),
        BROKEN | st.sampled_from([None, 1e300, -1e300, 1e9, -1.0, 0.0, 5e-324, [1.0], [0.5] * 9]),
    ),
    st.sampled_from([-1.0, -100.0, 1e6, 1e30, 0.0, 1e-40]).map(
        lambda factor: with_first_array(partial(scaled, factor=factor))
    ),
    st.builds(flip, st.integers(0, 200), st.integers(1, 255)),
)


@dataclass(frozen=True)
class Fault:
    """What happens to a client's reply: how it is delivered, and what becomes of each copy of its
    content."""

    delivery: str = "once"
    mutations: tuple[Mutation, ...] = ()
    again: tuple[Mutation, ...] = ()
    certain: bool = False

    def copy_of(self, honest: Message, sent: Message, *, second: bool = False) -> Message:
        """Return what becomes of the first copy of a reply, or of the second."""
        for mutate in self.again if second else self.mutations:
            (honest,) = mutate(sent, honest)
        return honest


HONEST = Fault()
GONE = Fault("unavailable")
# Deliveries in which nothing comes in time; the client owes the reply, and `lost` ones never come.
SILENT = ("late", "stray", "lost")

certain = st.builds(
    Fault,
    st.sampled_from(["once", "twice"]),
    ALWAYS_REFUSED.map(lambda each: (each,)),
    certain=st.just(True),
)
odd = st.builds(
    Fault,
    st.sampled_from(["once", "twice", "unasked"]),
    st.lists(MAYBE_REFUSED | ALWAYS_REFUSED, max_size=2).map(tuple),
)
doubled = st.builds(
    Fault, st.just("twice"), again=st.lists(MAYBE_REFUSED | ALWAYS_REFUSED, max_size=2).map(tuple)
)
deliveries = st.builds(
    Fault, st.sampled_from([*SILENT, "unavailable", "raises", "unasked", "twice"])
)
FAULTS = certain | odd | doubled | deliveries


# The run ------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The events of a round: who is online, each client's faults, and which devices restart before."""

    online: frozenset[str] = frozenset(CLIENTS)
    training: Mapping[str, Fault] = field(default_factory=dict)
    evaluation: Mapping[str, Fault] = field(default_factory=dict)
    restarted: frozenset[str] = frozenset()


class Killed(BaseException):
    """The process of the run dies."""


@dataclass
class Process:
    """One process of a run: the round it is in, the plans, and after how many events it is killed,
    if it is."""

    number: int
    plans: Mapping[int, Plan]
    folder: Path
    dies_after: int | None = None
    sent: dict[int, set[str]] = field(default_factory=dict)
    reported: int = 0
    _events: int = 0

    def pass_event(self) -> None:
        """Die where it is time."""
        if self._events == self.dies_after:
            self.die()
        self._events += 1

    def die(self) -> None:
        """Keep the folder as it is in this moment, since what handles errors still runs, and
        die."""
        self.dies_after = None
        if self.folder.exists():
            shutil.copytree(self.folder, self.folder.with_suffix(".killed"))
        raise Killed


watched: list[Process] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and watched and str(arguments[0]).startswith(str(watched[0].folder)):
        watched[0].pass_event()


sys.addaudithook(_audit)


class Nodes(MemoryGrid):
    """The clients of one process; before the rounds `cleared`, all debts end, as they do in a new
    process."""

    def __init__(self, process: Process, cleared: Collection[int] = ()) -> None:
        super().__init__({})
        self.process = process
        self._cleared = cleared
        self._begun = 0
        self._numbers = dict(enumerate(CLIENTS, start=2))
        self._unpaid: dict[str, tuple[Message, Fault]] = {}
        self._strays: list[tuple[int, Message]] = []

    @property
    def _plan(self) -> Plan:
        return self.process.plans.get(self.process.number, Plan())

    def _begin_round(self, number: int) -> None:
        if number <= ROUNDS and number not in self.process.plans:
            self.process.die()
        if self._begun == number:
            return
        self._begun = number
        for name in sorted(self._plan.restarted):
            (old,) = (node for node, client in self._numbers.items() if client == name)
            self._numbers[max(self._numbers) + 1] = name
            del self._numbers[old]
        for sent, fault in self._unpaid.values():
            if fault.delivery == "late":
                self.held.append(self._copy(sent, fault))
            elif number in self._cleared:
                self.held.append(Message(Error(OFFLINE, "gone"), reply_to=sent))
        self.release()

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[NodeInfo]:
        self._begin_round(self.process.number)
        self.nodes = {
            node: name for node, name in self._numbers.items() if name in self._plan.online
        }
        return super().get_nodes()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        sent = list(messages)
        trains = sent[0].metadata.message_type == MessageType.TRAIN
        # in order: the first of two copies counts
        arrived = self.pull_messages(self.push_messages(sent))
        if trains:
            self.process.sent[self.process.number] = {
                self.nodes[each.metadata.dst_node_id] for each in sent
            }
            arrived += [stray for number, stray in self._strays if number < self.process.number]
            self._strays = [each for each in self._strays if each[0] == self.process.number]
        return arrived

    @staticmethod
    def _copy(
        message: Message, fault: Fault, name: str = CLIENTS[0], *, second: bool = False
    ) -> Message:
        return fault.copy_of(
            Message(reply_of(name, message), reply_to=message), message, second=second
        )

    def _answers(self, message: Message) -> list[Message]:
        self.process.pass_event()
        name = self.nodes[message.metadata.dst_node_id]
        fault = {
            MessageType.TRAIN: self._plan.training,
            MessageType.EVALUATE: self._plan.evaluation,
        }.get(message.metadata.message_type, {}).get(name, HONEST)
        copy = self._copy(message, fault, name)
        if fault.delivery in SILENT:
            self._unpaid[str(message.metadata.message_id)] = message, fault
            if fault.delivery == "stray":
                self._strays.append((self.process.number, copy))
            return []
        if fault.delivery in ERRORS:
            return [Message(Error(ERRORS[fault.delivery], fault.delivery), reply_to=message)]
        if fault.delivery == "unasked":
            return [copy, *to_unknown_message(message, copy)[1:]]
        if fault.delivery == "twice":
            return [copy, self._copy(message, fault, name, second=True)]
        return [copy]


class NotingClients(FlowerClients):
    """Clients that keep the replies of the last training, which the round reduces to used ones."""

    last: TrainReplies | None = None

    @property
    def used(self) -> set[str]:
        """The clients with used replies in the last training; empty before it."""
        return set() if self.last is None else set(self.last.names)

    def read_train_replies(self, replies: Iterable[Message]) -> TrainReplies:
        self.last = super().read_train_replies(replies)
        return self.last


class Ticking:
    """A clock that lets a wait take no time: a second passes with each look at it."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def monotonic(self) -> float:
        return float(next(self._ticks))

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Return at once."""


@dataclass
class Noted:
    """The clients that were asked to train in a round, and those with used replies."""

    asked: set[str]
    used: set[str]


def run_process(
    process: Process,
    config: Mapping[str, Any],
    rounds: dict[int, Noted],
    cleared: Collection[int] = (),
) -> None:
    """Run until the run is finished, or the process killed, or the run ends with an error; enter
    its rounds."""
    made: list[NotingClients] = []

    def clients_of(method: Method) -> FlowerClients:
        enough = Quorum(PATIENCE, clock=Ticking())
        enough.fewest = FEWEST
        made.append(NotingClients(method, Nodes(process, cleared), quorum=enough))
        return made[0]

    def note(recorded: RecordedRound) -> None:
        plan = process.plans[recorded.number]
        used = made[0].used
        asked = process.sent.get(recorded.number, set())
        assert set(recorded.coefficients) <= used <= asked
        assert recorded.row["replies_used"] == len(used)
        for name in asked:
            fault = plan.training.get(name, HONEST)
            assert not (fault.certain and name in used)
            assert name in used or name in recorded.refused or name in recorded.missing
            assert (fault.delivery in SILENT) == (name in recorded.missing)
        rounds[recorded.number] = Noted(asked, used)
        process.reported = recorded.number
        process.number = process.number + 1
        process.pass_event()

    watched.append(process)
    try:
        federate(
            Settings.of({**config, "out": str(process.folder)}), clients_of, note, deployed=True
        )
    except Killed:
        # it may have died after the checkpoint, before `note`
        if process.number in process.sent and made:
            rounds[process.number] = Noted(process.sent[process.number], made[0].used)
        shutil.rmtree(process.folder, ignore_errors=True)
        if (kept := process.folder.with_suffix(".killed")).exists():
            kept.rename(process.folder)
    finally:
        watched.clear()


class Run(RuleBasedStateMachine):
    """Plans rounds, and lets process after process run them."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="machine-"))
        self.folder = self.home / "run"
        self.plans: dict[int, Plan] = {}
        self.rounds: dict[int, Noted] = {}
        self.resumed: set[int] = set()
        self.reported = 0
        self.learned = True
        self.config: dict[str, Any] = {}

    @initialize(
        method=st.sampled_from(METHODS),
        fraction=st.sampled_from([0.5, 1.0]),
        seed=st.integers(0, 3),
    )
    def begin(self, method: str, fraction: float, seed: int) -> None:
        self.config = {
            **{
                "task": "synthetic",
                "clients": len(CLIENTS),
                "method": method,
                "fraction": fraction,
                "seed": seed,
            },
            **{"num-rounds": ROUNDS, "min-clients": FEWEST, "unused-rounds": 2, "device": "cpu"},
        }

    @precondition(lambda self: len(self.plans) < ROUNDS)
    @rule(
        online=st.sets(st.sampled_from(CLIENTS), min_size=FEWEST)
        | st.just(set(CLIENTS))
        | st.just({CLIENTS[1]}),
        training=st.dictionaries(st.sampled_from(CLIENTS), FAULTS, max_size=len(CLIENTS)),
        evaluation=st.dictionaries(st.sampled_from(CLIENTS), FAULTS, max_size=1),
        restarted=st.sets(st.sampled_from(CLIENTS), max_size=1),
    )
    def plan(
        self,
        online: set[str],
        training: dict[str, Fault],
        evaluation: dict[str, Fault],
        restarted: set[str],
    ) -> None:
        CASES.update(rounds=1, faults=len(training) + len(evaluation))
        self.plans[len(self.plans) + 1] = Plan(
            frozenset(online), training, evaluation, frozenset(restarted)
        )

    @precondition(
        lambda self: self.plans and (self.reported < len(self.plans) or len(self.plans) == ROUNDS)
    )
    @rule(dies_after=st.none() | st.integers(0, 60))
    def run(self, dies_after: int | None) -> None:
        """Run the planned rounds in a process; resume the run if there is one."""
        CASES.update(processes=1)
        number = self.finished() + 1
        if number > 1 or self.folder.exists():
            self.resumed.add(number)
        process = Process(number, self.plans, self.folder, dies_after)
        try:
            run_process(process, self.config, self.rounds)
        except (QuorumError, NothingLearnedError):
            CASES.update(errors=1)
            if process.number > ROUNDS:  # no round could take a step, and there are no more
                self.learned = False
            else:
                self.plans[process.number] = Plan()  # all come back, and reply as they should
        self.reported = max(self.reported, process.reported)
        self.check()

    def finished(self) -> int:
        last = load_last(self.folder / "checkpoint")
        return 0 if last is None else int(last[1]["strategy"]["finished_rounds"])

    def check(self) -> None:
        """Check what must hold of the run folder whenever no process runs."""
        last = load_last(self.folder / "checkpoint")
        if last is not None:
            assert all(np.isfinite(array).all() for array in last[0].values())
        path = self.folder / "rounds.csv"
        numbers = [int(row["round"]) for row in table(path)] if path.exists() else []
        assert numbers == list(range(1, len(numbers) + 1))
        assert self.finished() <= len(numbers) <= self.finished() + 1
        assert self.reported <= len(numbers)

    def teardown(self) -> None:
        """Let the run end, and compare it with one without kills in which refused replies were
        never sent."""
        try:
            if self.config:
                self.end()
        finally:
            shutil.rmtree(self.home)

    def end(self) -> None:
        for number in range(len(self.plans) + 1, ROUNDS + 1):
            self.plans[number] = Plan()
        for _ in range(2 * ROUNDS):
            if self.learned and not (self.folder / "model.safetensors").exists():
                self.run(None)
        assert sorted(self.rounds) == list(range(1, ROUNDS + 1))
        if not self.learned:
            assert not any(noted.used for noted in self.rounds.values())
            return
        other = Process(
            1, {number: self.without_refused(number) for number in self.plans}, self.home / "other"
        )
        rounds: dict[int, Noted] = {}
        run_process(other, {**self.config, "unused-rounds": 0}, rounds, self.resumed)
        assert rounds == self.rounds
        one, two = (
            (folder / "model.safetensors").read_bytes() for folder in (self.folder, other.folder)
        )
        assert one == two

    def without_refused(self, number: int) -> Plan:
        """Return the plan of a round in which what was refused is never sent, and what was used is
        sent once."""
        plan = self.plans[number]
        noted = self.rounds[number]

        def quiet(name: str, fault: Fault) -> Fault:
            if fault.delivery in SILENT:
                return fault
            return Fault(mutations=fault.mutations) if name in noted.used else GONE

        training = {name: quiet(name, plan.training.get(name, HONEST)) for name in noted.asked}
        evaluation = {
            name: fault for name, fault in plan.evaluation.items() if fault.delivery in SILENT
        }
        return Plan(plan.online, training, evaluation, plan.restarted)


CASES: Counter[str] = Counter()

# Without the phase `shrink`: it takes minutes where an example is whole runs. Add it to make a
# failure smaller.
SETTINGS = chosen(phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)


def test_a_disturbed_run_equals_that_of_what_it_used() -> None:
    run_state_machine_as_test(Run, settings=chosen(SETTINGS, max_examples=2, stateful_step_count=8))


@pytest.mark.slow
def test_a_run_survives_thousands_of_disturbances() -> None:
    CASES.clear()
    run_state_machine_as_test(
        Run, settings=chosen(SETTINGS, max_examples=300, stateful_step_count=12)
    )
    assert CASES.total() >= 3_000, CASES
