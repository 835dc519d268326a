"""A federation in memory: clients that train quadratics or misbehave, a Flower grid, and runs of
methods over it."""

import copy
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
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
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.run import Run
from numpy.typing import NDArray

from fairbloom.protocol.terms import WORK, Terms
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import NOTHING, Replies, TrainReplies
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.refusals import Refusals
from fairbloom.strategies import METHODS, FairStrategy, FedDyn, Round

from .strategies.helpers import ARGUMENTS, Arrays, group_counts_of, make

# Clients ------------------------------------------------------------------------------------------

TRAINABLE = ("weight", "bias", "scale")
BUFFERS = ("norm.mean",)
Answer = Callable[[Message], Message | None]


def initial_model() -> Arrays:
    rng = np.random.default_rng(1)
    return {
        "weight": rng.normal(size=(2, 3)).astype(np.float32),
        "norm.mean": np.zeros(2, np.float32),
        "bias": rng.normal(size=3).astype(np.float32),
        "norm.steps": np.array(5, np.int64),
        "scale": np.array(0.5, np.float32),
    }


def in_float64() -> Arrays:
    """Return the initial model with wider floats."""
    return {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in initial_model().items()
    }


def record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def unpack(arrays: ArrayRecord) -> Arrays:
    return {name: _decode(array.data) for name, array in arrays.items()}


@lru_cache(maxsize=1000)
def _decode(data: bytes) -> NDArray[Any]:
    """Return a read-only array: all clients of a round decode the same model."""
    array: NDArray[Any] = np.load(BytesIO(data))
    array.setflags(write=False)
    return array


def flat(arrays: Mapping[str, NDArray[Any]]) -> FloatArray:
    """The trainable arrays as one float64 vector."""
    return np.concatenate([arrays[name].ravel().astype(np.float64) for name in TRAINABLE])


def unflat(vector: FloatArray, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The trainable arrays, in the shapes and dtypes that they have in `arrays`, from one
    vector."""
    places = np.split(vector, np.cumsum([arrays[name].size for name in TRAINABLE])[:-1])
    return {
        name: place.reshape(arrays[name].shape).astype(arrays[name].dtype)
        for name, place in zip(TRAINABLE, places, strict=True)
    }


class Quadratic:
    """A client with the loss ½ Σ a (w − target)², which takes gradient steps at its own rate.

    It takes one step, or the config's `local-steps`; then it also replies its model after
    `snapshot-step` of them. Its disparity is the sine of an inner product. If the config names a
    disparity, it also replies the model after a step down that. It keeps no state, and always
    claims to have continued from the requested one.
    """

    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.name = name
        self.examples = int(rng.integers(5, 100))
        self.curvature = rng.uniform(0.5, 1.5, 10)
        self.target = 3.0 * rng.normal(size=10)
        self.mean = rng.normal(size=2)
        self.rate = float(rng.uniform(0.2, 0.4))
        # The loss that it claims to reach alone; its least loss is 0.
        self.baseline = 0.5 * self.rate
        self.slope = rng.normal(size=10) / 5.0

    def loss(self, arrays: Arrays) -> float:
        return 0.5 * float(self.curvature @ (flat(arrays) - self.target) ** 2)

    def disparity(self, arrays: Arrays) -> float:
        return float(np.sin(self.slope @ flat(arrays)))

    def evened(self, arrays: Arrays) -> Arrays:
        """Return the trainable arrays after a step down |disparity|."""
        w = flat(arrays)
        return unflat(
            w - self.rate * np.sign(self.disparity(arrays)) * np.cos(self.slope @ w) * self.slope,
            arrays,
        )

    def accuracy(self, arrays: Arrays) -> float:
        return 1.0 / (1.0 + self.loss(arrays))

    def group_counts(self, arrays: Arrays) -> dict[str, int]:
        counts = group_counts_of(np.array([self.loss(arrays)]), np.array([float(self.examples)]))
        return {name: int(only) for name, (only,) in counts.items()}

    def trained(self, arrays: Arrays, steps: int = 1) -> Arrays:
        """Return the arrays after training, in the dtypes they came in."""
        w = flat(arrays)
        after = self.target + (1.0 - self.rate * self.curvature) ** steps * (w - self.target)
        new = unflat(after, arrays)
        new["norm.mean"] = (arrays["norm.mean"] + self.mean) / 2
        new["norm.steps"] = arrays["norm.steps"] + self.examples
        return {name: np.asarray(new[name]).astype(array.dtype) for name, array in arrays.items()}

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            client = ConfigRecord(
                {"name": self.name, "num-examples": self.examples, "honours": list(WORK)}
            )
            return Message(RecordDict({"client": client}), reply_to=message)
        before: Arrays = unpack(message.content.array_records["arrays"])
        config: Mapping[str, Any] = message.content.config_records.get("config", ConfigRecord())
        if message.metadata.message_type == MessageType.EVALUATE:
            loss = self.loss(before)
            numbers = {
                "num-examples": self.examples,
                "loss": loss,
                "accuracy": self.accuracy(before),
            }
            if "train-loss" in config.get("measure", []):
                numbers["train-loss"] = loss
            return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)
        after = (
            before
            if config.get("local-only")
            else self.trained(before, int(config.get("local-steps", 1)))
        )
        available = {
            "accuracy-after": self.accuracy(after),
            "learning-rate": self.rate,
            "step-sum": int(config.get("local-steps", 1)) * self.rate,
            "loss-baseline": self.baseline,
            "accuracy-before": self.accuracy(before),
            "disparity": self.disparity(before),
            **self.group_counts(before),
        }
        numbers = {"num-examples": self.examples, "loss-before": self.loss(before)}
        numbers |= {key: config[key] for key in ("state-round",) if key in config}
        numbers |= {
            key: value for key, value in available.items() if key in config.get("measure", [])
        }
        content = RecordDict({"arrays": record(after), "metrics": MetricRecord(numbers)})
        if "snapshot-step" in config:
            content["snapshot"] = record(self.trained(before, int(config["snapshot-step"])))
        if "disparity" in config:
            content["arrays-disparity"] = record(self.evened(before))
        return Message(content, reply_to=message)


def answering(client: Answer, **others: Answer) -> Answer:
    """Return a client with other answers to some kinds of messages: query, train or evaluate."""
    return lambda message: others.get(message.metadata.message_type, client)(message)


def about_itself(client: Answer, **about: Any) -> Answer:
    """Return a client with these values in its answer to QUERY."""
    content = RecordDict({"client": ConfigRecord(about)})
    return answering(client, query=lambda message: Message(content, reply_to=message))


def replying(
    name: str,
    train: Callable[[Arrays, int], Mapping[str, NDArray[Any]]],
    metrics: Mapping[str, Any],
) -> Answer:
    """Return a client that maps a model and the round to its reply, and reports these metrics: of
    10 examples."""
    numbers = {"num-examples": 10, **metrics}

    def answer(message: Message) -> Message:
        content = RecordDict({"metrics": MetricRecord(numbers)})
        if message.metadata.message_type == MessageType.QUERY:
            about = {"name": name, "num-examples": numbers["num-examples"], "honours": list(WORK)}
            content = RecordDict({"client": ConfigRecord(about)})
        if message.metadata.message_type == MessageType.TRAIN:
            number = int(str(message.content.config_records["config"]["server-round"]))
            content["arrays"] = record(
                train(unpack(message.content.array_records["arrays"]), number)
            )
        return Message(content, reply_to=message)

    return answer


def quadratics(n: int) -> dict[str, Quadratic]:
    return {name: Quadratic(name) for name in (f"site-{k}" for k in range(n))}


# The grid -----------------------------------------------------------------------------------------

# Maps an instruction and the good reply to the replies that arrive instead.
Fault = Callable[[Message, Message], list[Message]]


class MemoryGrid(Grid):
    """A grid with functions of this process as nodes: random node ids, random order of arrival.

    `faults` holds what goes wrong with the reply of a client to the TRAIN message of a round.
    """

    def __init__(
        self,
        clients: Mapping[str, Answer],
        *,
        seed: int = 0,
        faults: Mapping[tuple[str, int], Fault] | None = None,
        registered: Collection[str] = (),
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes = {int(self._rng.integers(2, 2**62)): name for name in clients}
        self.clients = clients
        self.faults = faults or {}
        self.registered = registered
        self.sent: list[Message] = []
        self.held: list[Message] = []
        self._mailbox: dict[str, list[Message]] = {}

    def sent_to(self, message_type: str) -> list[tuple[str, Message]]:
        """Client and message of everything sent of one type, in the order of sending."""
        return [
            (self.nodes[m.metadata.dst_node_id], m)
            for m in self.sent
            if m.metadata.message_type == message_type
        ]

    def release(self) -> None:
        """Deliver the replies that were held back."""
        for reply in self.held:
            self._mailbox.setdefault(reply.metadata.reply_to_message_id, []).append(reply)
        self.held = []

    def _answers(self, message: Message) -> list[Message]:
        name = self.nodes[message.metadata.dst_node_id]
        reply = self.clients[name](message)
        if reply is None:
            return []
        config = message.content.config_records.get("config", ConfigRecord())
        fault = self.faults.get((name, int(str(config.get("server-round", 0)))))
        if fault is None or message.metadata.message_type != MessageType.TRAIN:
            return [reply]
        if fault is no_reply:
            self.held.append(reply)
        return fault(message, reply)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(self._rng.bytes(16).hex())
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.sent.append(message)
            self._mailbox[ids[-1]] = self._answers(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for message_id in message_ids for reply in self._mailbox.pop(message_id, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = self.pull_messages(self.push_messages(messages))
        return [replies[i] for i in self._rng.permutation(len(replies))]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        names = {node: name if name in self.registered else "" for node, name in self.nodes.items()}
        return [NodeInfo(node_id=node, name=name) for node, name in names.items()]

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @cached_property
    def run(self) -> Run:
        raise NotImplementedError


# What goes wrong ----------------------------------------------------------------------------------


def no_reply(sent: Message, reply: Message) -> list[Message]:
    return []


def error(sent: Message, reply: Message) -> list[Message]:
    return [Message(Error(2, "out of memory"), reply_to=sent)]


def duplicate(sent: Message, reply: Message) -> list[Message]:
    return [reply, reply]


def to_unknown_message(sent: Message, reply: Message) -> list[Message]:
    stray = Message(reply.content, reply_to=sent)
    stray.metadata.__dict__["_reply_to_message_id"] = "0" * 32
    return [reply, stray]


def arrays(**changed: Any) -> Fault:
    """The same reply with arrays replaced, or left out where None is given ("_" stands for a
    dot)."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        changes = {name.replace("_", "."): value for name, value in changed.items()}
        kept = {**reply.content.array_records["arrays"], **changes}.items()
        records = {
            k: a if isinstance(a, Array) else Array(np.asarray(a)) for k, a in kept if a is not None
        }
        return [
            Message(RecordDict({**reply.content, "arrays": ArrayRecord(records)}), reply_to=sent)
        ]

    return fault


def metrics(changed: Mapping[str, Any]) -> Fault:
    """The same reply with metrics replaced, or left out where None is given."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        numbers = {**reply.content.metric_records.get("metrics", {}), **changed}
        record = MetricRecord({key: value for key, value in numbers.items() if value is not None})
        return [Message(RecordDict({**reply.content, "metrics": record}), reply_to=sent)]

    return fault


def without(kind: str) -> Fault:
    """The same reply without one of its records."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        kept = {key: value for key, value in reply.content.items() if key != kind}
        return [Message(RecordDict(kept), reply_to=sent)]

    return fault


# Runs of methods ----------------------------------------------------------------------------------


# One method for each set of needs: what a round has measured, sent, replied, computed and
# remembered for it.
KINDS = sorted(
    {
        (method.needs, method.second, method.own_terms, frozenset(method.requires)): name
        for name, method in sorted(METHODS.items(), reverse=True)
    }.values()
)

OPTIONS: dict[str, Any] = {"buffers": BUFFERS, "fraction_train": 0.6, "seed": 3}


def run(
    strategy: FairStrategy,
    clients: MemoryGrid | Mapping[str, Answer] | None = None,
    rounds: int = 4,
    faults: Mapping[tuple[str, int], Fault] | None = None,
    **arguments: Any,
) -> tuple[Result, list[Round]]:
    """Run over a grid, or over one of clients with faults: six quadratics by default."""
    finished: list[Round] = []
    arguments.setdefault("initial_arrays", record(initial_model()))
    grid = (
        clients
        if isinstance(clients, MemoryGrid)
        else MemoryGrid(clients or quadratics(6), faults=faults)
    )
    return strategy.start(grid, num_rounds=rounds, on_round=finished.append, **arguments), finished


@cache
def undisturbed(name: str) -> tuple[Result, list[Round]]:
    """Return four rounds of a method with OPTIONS; the same again, since many tests compare theirs
    with them."""
    return run(make(name, ARGUMENTS[name][0], **OPTIONS))


def assert_resumes(
    made: Callable[[], FairStrategy],
    rounds: int = 4,
    stops: Iterable[int] = (2,),
    clients: Mapping[str, Answer] | None = None,
    first: ArrayRecord | None = None,
) -> list[Round]:
    """Check that a run that is resumed after some round ends with the bits, rounds and state of a
    whole one."""
    clients = clients or quadratics(6)
    first = first or record(initial_model())
    states = []
    finished = list[Round]()
    strategy = made()

    def on_round(each: Round) -> None:
        finished.append(each)
        states.append(copy.deepcopy(strategy.state_dict()))

    strategy.start(MemoryGrid(clients), first, rounds, on_round=on_round)
    assert_plain(states[-1])
    for stop in stops:
        again = made()
        _, rest = run(
            again,
            MemoryGrid(clients, seed=9),
            rounds,
            initial_arrays=finished[stop - 1].arrays,
            resume=states[stop - 1],
        )
        assert [contents_of(each) for each in rest] == [
            contents_of(each) for each in finished[stop:]
        ], strategy
        np.testing.assert_equal(again.state_dict(), states[-1])
    return finished


def assert_plain(value: Any) -> None:
    assert type(value) in (str, int, float, bool, type(None), list, dict, np.ndarray), type(value)
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        assert_plain(inner)
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)


def contents_of(finished: Round) -> dict[str, Any]:
    """Return all values of a round, its arrays as bytes."""
    arrays = {
        name: each and bits(each)
        for name, each in (("arrays", finished.arrays), ("average", finished.average))
    }
    return {**vars(finished), **arrays}


def bits(arrays: ArrayRecord) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in unpack(arrays).items()}


# A seed with which DRFA, too, draws site-2 in round 1.
SITE_2_IS_DRAWN = 4


@cache
def one_faulty(name: str, fault: Fault | None) -> tuple[Result, Round]:
    """Return a round in which site-2 misbehaves; the same again, since many tests compare theirs
    with one."""
    result, (only,) = run(
        make(name, ARGUMENTS[name][0], buffers=BUFFERS, seed=SITE_2_IS_DRAWN),
        MemoryGrid(quadratics(6), faults={} if fault is None else {("site-2", 1): fault}),
        rounds=1,
    )
    return result, only


# Clients with quadratic losses and known solutions ------------------------------------------------


class Bowl:
    """A client with the loss ½ (x − a)ᵀ A (x − a) + b of a model of one array, w, and full-batch
    steps at these rates.

    As METHODS has it for SCAFFOLD and FedDyn, it keeps a vector between rounds: `states` by the
    round of the reply that made them, before and after its last reply.
    """

    def __init__(
        self,
        name: str,
        A: FloatArray,
        a: FloatArray,
        b: float = 0.0,
        examples: int = 1,
        rates: Sequence[float] = (0.2,),
    ) -> None:
        self.name = name
        self.A = A
        self.a = a
        self.b = b
        self.examples = examples
        self.rates = rates
        self.states: dict[int, FloatArray] = {}

    def loss(self, x: FloatArray) -> float:
        return float(0.5 * (x - self.a) @ self.A @ (x - self.a)) + self.b

    def gradient(self, x: FloatArray) -> FloatArray:
        return self.A @ (x - self.a)

    def state(self, number: int) -> FloatArray:
        """Return the state after the reply of a round, zeros for round 0."""
        return self.states[number] if number else np.zeros_like(self.a)

    def train(
        self, w: FloatArray, config: Mapping[str, Any], control: FloatArray | None
    ) -> list[FloatArray]:
        """Return the model before the first local step and after each; keep the state that
        follows."""
        mu = config.get("proximal-mu", 0.0)
        alpha = config.get("dynamic-alpha", 0.0)
        shift = np.zeros_like(w)
        if "state-round" in config:
            state = self.state(self.from_round(config))
            c = np.zeros_like(w) if control is None else control
            shift = c - state if config.get("control-variates") else -state
        path = [w]
        rates = list(self.rates[:1]) * int(config.get("local-steps", 0)) or self.rates
        for rate in () if config.get("local-only") else rates:
            x = path[-1]
            room = config.get("propfair-baseline", self.loss(x) + 1.0) - self.loss(x)
            slope = 1.0 / max(room, config.get("propfair-epsilon", 0.0))
            path.append(x - rate * (slope * self.gradient(x) + (mu + alpha) * (x - w) + shift))
        if "state-round" in config:
            after = (
                ((w - path[-1]) / sum(rates) if len(rates) else shift) - shift
                if config.get("control-variates")
                else state + alpha * (w - path[-1])
            )
            self.states = {self.from_round(config): state, int(config["server-round"]): after}
            self.states.pop(0, None)
        return path

    def from_round(self, config: Mapping[str, Any]) -> int:
        """Return the round of the state from which it continues: 0 if it has lost the requested
        one."""
        return config["state-round"] if config["state-round"] in self.states else 0

    def report(self, w: FloatArray, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return its metrics of a round's training, before it trains."""
        kept = {"state-round": self.from_round(config)} if "state-round" in config else {}
        return {
            "num-examples": self.examples,
            "loss-before": self.loss(w),
            "accuracy-after": 0.5,
            **{"learning-rate": float(sum(self.rates[:1])), "step-sum": float(sum(self.rates))},
            **kept,
        }

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            about = {"name": self.name, "num-examples": self.examples, "honours": list(WORK)}
            return Message(RecordDict({"client": ConfigRecord(about)}), reply_to=message)
        config = message.content.config_records["config"]
        w = unpack(message.content.array_records["arrays"])["w"]
        if message.metadata.message_type == MessageType.EVALUATE:
            measured = MetricRecord({"num-examples": self.examples, "loss": self.loss(w)})
            return Message(RecordDict({"metrics": measured}), reply_to=message)
        control = message.content.array_records.get("control")
        numbers = MetricRecord(self.report(w, config))
        path = self.train(w, config, None if control is None else unpack(control)["w"])
        return Message(
            RecordDict({"arrays": record({"w": path[-1]}), "metrics": numbers}), reply_to=message
        )


class Bowls:
    """Such clients without messages; see rounds/clients.py. `joins` has the first round of later
    clients."""

    def __init__(
        self, method: FairStrategy, clients: Iterable[Bowl], joins: Mapping[str, int]
    ) -> None:
        self._method = method
        self._clients = {c.name: c for c in clients}
        self._joins = joins
        self._round = 1

    def online(self, fewest: int) -> Sequence[str]:
        return [name for name in sorted(self._clients) if self._joins.get(name, 1) <= self._round]

    def free(self) -> Sequence[str]:
        return self.online(1)

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        return {name: float(self._clients[name].examples) for name in names}

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        layout = self._method.layout_of(model)
        self._round = terms.server_round + 1
        trained = TrainReplies.empty(
            layout, refused=Refusals(terms.server_round), second=self._method.second
        )
        for client in map(self._clients.__getitem__, names):
            config = terms.of_client(client.name).to_config()
            report = client.report(model["w"], config)
            path = client.train(model["w"], config, sent["control"]["w"] if sent else None)
            trained.add(client.name, report, {"w": path[-1]}, {"w": path[terms.snapshot_step or 0]})
        return trained

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        reports = {
            name: {"num-examples": 1, "loss": loss, "train-loss": loss}
            for name, loss in {name: self._clients[name].loss(model["w"]) for name in names}.items()
        }
        return Replies(metrics=reports, refused=Refusals(terms.server_round))

    def probe(self, names: Sequence[str], model: Model, terms: Terms) -> Replies:
        return self.evaluate(names, model, terms, names)


def descend(
    method: FairStrategy,
    clients: Iterable[Bowl],
    rounds: int,
    joins: Mapping[str, int] = MappingProxyType({}),
) -> FloatArray:
    """Return the model before the first round and after each, shape (rounds + 1, 3), without
    messages."""
    start = np.full(3, 2.0)
    finished = Rounds(method, Bowls(method, clients, joins), rounds).run(
        {"w": start}, measure=lambda number: [], measure_after=[]
    )
    return np.array([start, *(each.arrays["w"] for each in finished)])


def minimiser_of_means(clients: Iterable[Bowl], *, by_examples: bool) -> FloatArray:
    """Return the minimiser of the mean loss, weighted by examples or uniformly."""
    weighted = [(client.examples if by_examples else 1, client) for client in clients]
    return np.linalg.solve(
        sum(n * c.A for n, c in weighted), sum(n * c.A @ c.a for n, c in weighted)
    )


def keeping(m: int) -> dict[str, Bowl]:
    """Return m clients with unlike curvatures, optima, examples and numbers of steps, the first
    with 7."""
    rng = np.random.default_rng(0)
    clients = dict[str, Bowl]()
    for name in (f"site-{k}" for k in range(m)):
        A = np.diag(rng.uniform(0.5, 2.0, 3))
        a = 2.0 * rng.normal(size=3)
        examples = int(rng.integers(5, 60))
        clients[name] = Bowl(
            name, A, a, 0.0, examples, list(rng.uniform(0.02, 0.1, 1 + (6 + 3 * len(clients)) % 11))
        )
    return clients


QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "unused_rounds": 0, "update_limit": float("inf")}


@dataclass
class Course:
    """A run of such clients by messages: the model before the first round and after each, the
    rounds and the states.

    `inconsistencies` has what `inconsistency` was after each round, `sent` the config of each
    message to train by round and client, and `controlled` the rounds in which a control variate
    went out.
    """

    method: FairStrategy
    clients: Mapping[str, Bowl]
    models: list[FloatArray]
    rounds: list[Round] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[int, dict[str, ConfigRecord]] = field(default_factory=dict)
    controlled: set[int] = field(default_factory=set)
    inconsistencies: list[float] = field(default_factory=list)

    @property
    def used_states(self) -> dict[str, FloatArray]:
        """Each client's state as the server knows it: that after its last reply that was used."""
        numbers = self.method.run_state.states.of(self.clients)
        return {name: client.state(numbers[name]) for name, client in self.clients.items()}

    def inconsistency(self) -> float:
        """Return how far the clients' states and the server's are from agreeing.

        Of FedDyn that is Σ h_k − alpha R; else Σ n_k (c − c_k) / Σ n_k over all clients that the
        server has known.
        """
        rows = [np.asarray(row.blocks[0][0]) for row in self.method.run_state.kept.values()]
        states = self.used_states
        kept = rows[0] if rows else np.zeros(1)
        if isinstance(self.method, FedDyn):
            return float(np.abs(sum(states.values()) - self.method.alpha * kept).max())
        by_examples = self.method.weighting == "examples"
        n = {
            name: size if by_examples else 1.0
            for name, size in self.method.run_state.roster.items()
        }
        total = sum(n.values()) or 1.0
        return float(
            np.abs(sum(n[name] * (kept / total - states[name]) for name in n) / total).max()
        )


def follow(
    method: FairStrategy,
    clients: Mapping[str, Bowl],
    rounds: int,
    *,
    faults: Mapping[tuple[str, int], Fault] | None = None,
    before: Callable[[int, MemoryGrid], None] = lambda number, grid: None,
    first: FloatArray | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Course:
    """Run such clients by messages; `before` is called before each round, with its number and the
    grid.

    `resume` and `first` continue a run, from a state and the model of its round.
    """
    grid = MemoryGrid(clients, faults=faults)
    start = np.full(3, 3.0) if first is None else first
    course = Course(method, clients, [start])

    def over(finished: Round) -> None:
        course.rounds.append(finished)
        course.models.append(unpack(finished.arrays)["w"])
        course.states.append(method.state_dict())
        course.inconsistencies.append(course.inconsistency())
        before(finished.number + 1, grid)

    before(1 if resume is None else int(resume["finished_rounds"]) + 1, grid)
    method.start(grid, record({"w": start}), num_rounds=rounds, on_round=over, resume=resume)
    for name, message in grid.sent_to(MessageType.TRAIN):
        config = message.content.config_records["config"]
        number = int(str(config["server-round"]))
        course.sent.setdefault(number, {})[name] = config
        if "control" in message.content.array_records:
            course.controlled.add(number)
    return course
