"""Cohorts from rows, a Flower grid in memory, and clients that train or misbehave."""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.terms import WORK
from fairbloom.rounds.cohort import Cohort, Kept
from fairbloom.rounds.method import Method
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import METHODS, FairStrategy

Arrays = dict[str, NDArray[Any]]

CORNERS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"weighting": "uniform"}],
    "fedprox": [{"mu": 0.1}],
    "scaffold": [{}, {"server_lr": 0.5, "weighting": "uniform"}],
    "feddyn": [{}, {"alpha": 0.5}],
    "fedavgn": [{}, {"server_lr": 0.5, "decay": 0.1, "weighting": "examples"}],
    "qfedavg": [{"q": 1.0, "lipschitz": 10.0}, {"q": 0.0, "lipschitz": 2.0}, {"q": 5.0, "lipschitz": 1.0}],
    "qfedsgd": [{"q": 1.0, "lipschitz": 10.0}, {"q": 0.0, "lipschitz": 2.0}, {"q": 5.0, "lipschitz": 1.0}],
    "term": [{"tilt": 0.05}, {"tilt": 0.0, "weighting": "uniform"}, {"tilt": -0.2}],
    "afl": [{"gamma": 0.001}, {"gamma": 0.02, "weighting": "uniform"}, {"gamma": 0.0}],
    "drfa": [{"gamma": 0.0002}, {"gamma": 0.01, "local_steps": 3}],
    "deltafl": [{"theta": 0.5}, {"theta": 1.0, "weighting": "uniform"}, {"theta": 1e-6}],
    "propfair": [{"baseline": 5.0}, {"baseline": 50.0, "epsilon": 1.0, "weighting": "uniform"}],
    "gifair": [{"strength": 0.5}, {"strength": 0.99, "weighting": "uniform"}],
    "vred": [{"beta": 0.005}, {"beta": 0.03, "weighting": "uniform"}],
    "semivred": [{"beta": 0.005}, {"beta": 0.03, "weighting": "uniform"}],
    "eagle": [{"lam": 0.005}, {"lam": 0.03, "weighting": "examples"}],
    "aaggff": [{}, {"rule": "ftrl"}, {"cdf": "normal"}, {"rule": "ftrl", "cdf": "frechet"}],
    "fedfa": [
        {},
        {"alpha": 1.0, "beta": 0.0, "server_momentum": 0.0},
        {"alpha": 0.0, "beta": 2.0, "server_momentum": 0.9, "client_momentum": 0.0},
    ],
    "fairfed": [{}, {"beta": 0.0}, {"beta": 0.05}],
    "fedmgda": [{}, {"epsilon": 0.1, "server_lr": 0.7, "weighting": "examples"}],
    "fedmgdaplus": [{}, {"epsilon": 0.2, "server_lr": 0.5, "decay": 0.1, "weighting": "examples"}],
    "mgdaprox": [{"mu": 0.1}, {"mu": 0.0, "epsilon": 0.2, "server_lr": 0.5, "decay": 0.1, "weighting": "examples"}],
    "fedfv": [{}, {"alpha": 0.0, "tau": 3}, {"alpha": 0.5, "tau": 0, "order": "reverse"}, {"order": "random"}],
    "adafed": [{}, {"gamma": 0.0, "server_lr": 0.5}, {"gamma": 0.5}],
    "fedlf": [{}, {"guidance": "gradient", "server_lr": 0.5}, {"history": False}],
    "fedmdfg": [{}, {"angle": 1.0, "guidance": "gradient", "server_lr": 0.5}, {"angle": 89.0, "history": False}],
    "fcfl": [
        {"delta": 5.0},
        {"budget": 1.0, "delta_decay": 0.5, "delta_factor": 0.01},
        {"stage1_rounds": 2, "budgets": {"site-1": 0.5}, "delta": 20.0, "disparity": "equal-opportunity"},
    ],
    "ditto": [{"lam": 0.1}, {"lam": 0.0, "personal_epochs": 3, "weighting": "uniform"}],
    "local": [{}],
}
"""Constructor arguments for each method: its defaults where it has them, then other corners."""


def needed(name: str) -> dict[str, Any]:
    """Return a value for each parameter of a method that has no default."""
    return {each.argument: each.example for each in parameters_of(name, METHODS[name]) if each.default is None}


ARGUMENTS = {name: CORNERS.get(name) or [needed(name)] for name in METHODS}
"""The same for every method: one that has no corners yet is tried by its declared parameters."""

CASES = [(name, arguments) for name, several in ARGUMENTS.items() for arguments in several]


def make(name: str, arguments: Mapping[str, Any], **options: Any) -> FairStrategy:
    return METHODS[name](**arguments, **options)


def told(method: Method, server_round: int) -> dict[str, Any]:
    """What the clients are told of their work beside the round and what to measure."""
    config = method.terms(server_round).to_config()
    return {key: value for key, value in config.items() if key not in ("server-round", "measure")}


# Cohorts ------------------------------------------------------------------------------------------------------------


def client_names(m: int) -> tuple[str, ...]:
    return tuple(f"client-{k:03}" for k in range(m))


def cohort_of(
    U: FloatArray,
    *,
    losses: Iterable[float] | None = None,
    counts: Iterable[float] | None = None,
    weighting: str = "uniform",
    round: int = 1,
    num_rounds: int | None = 10,
    names: Sequence[str] | None = None,
    memory: Mapping[Kept, FloatArray] | None = None,
    accuracies: Iterable[float] | None = None,
    rates: Iterable[float] | None = None,
    draws: Iterable[float] | None = None,
    groups: Mapping[str, Iterable[float]] | None = None,
    baselines: Iterable[float] | None = None,
    steps: Iterable[float] | None = None,
    roster: Mapping[str, float] | None = None,
    arrays: Mapping[str, int] | None = None,
    seconds: FloatArray | None = None,
    disparities: Iterable[float] | None = None,
    online: Sequence[str] = (),
    sent: Mapping[str, float] | None = None,
) -> Cohort:
    """Return the cohort of updates U, and of second ones, shape (m, d), which a method sees by inner products alone.

    `arrays` says how many of the d numbers each array of the model has; by default there is one.
    """
    U, memory = np.asarray(U, np.float64), memory or {}
    m = len(U)
    n = np.ones(m) if counts is None else np.asarray(list(counts), np.float64)
    F = 1.0 + np.arange(m) if losses is None else np.asarray(list(losses), np.float64)
    rows = np.vstack([U, *([] if seconds is None else [seconds]), *memory.values()])
    sizes = {"w": U.shape[1]} if arrays is None else arrays
    fragments = np.split(rows, np.cumsum(list(sizes.values()))[:-1], axis=1)[: len(sizes)]
    names = tuple(names or client_names(m))
    return Cohort(
        round=round,
        num_rounds=num_rounds,
        names=names,
        counts=n,
        prior=n / n.sum() if weighting == "examples" else np.full(m, 1.0 / m),
        draws=np.ones(m) if draws is None else np.asarray(list(draws), np.float64),
        arrays=tuple(sizes),
        online=tuple(online),
        gram_of=lambda: rows @ rows.T,
        grams_of=lambda: np.reshape([part @ part.T for part in fragments], (len(sizes), len(rows), len(rows))),
        squared_norms_of=lambda: np.einsum("kj,kj->k", U, U),
        metrics={
            "loss-before": F,
            "accuracy-after": accuracies_of(F) if accuracies is None else np.asarray(list(accuracies), np.float64),
            "learning-rate": rates_of(n) if rates is None else np.asarray(list(rates), np.float64),
            "accuracy-before": accuracies_of(F) if accuracies is None else np.asarray(list(accuracies), np.float64),
            **{name: np.asarray(list(each), np.float64) for name, each in (groups or group_counts_of(F, n)).items()},
            "loss-baseline": baselines_of(F) if baselines is None else np.asarray(list(baselines), np.float64),
            "disparity": disparities_of(n) if disparities is None else np.asarray(list(disparities), np.float64),
            "step-sum": rates_of(n) if steps is None else np.asarray(list(steps), np.float64),
        },
        memory=tuple(memory),
        declared_roster=dict(zip(names, n.tolist(), strict=True)) if roster is None else roster,
        second=seconds is not None,
        sent=sent or {},
    )


@st.composite
def edgy_updates(draw: st.DrawFn, min_size: int = 1) -> FloatArray:
    """Rows of which some are zero, equal, opposite or of another scale."""
    m, d = draw(st.integers(min_size, 5)), draw(st.integers(1, 6))
    U = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=(m, d))
    for k in range(m):
        kind = draw(st.sampled_from(("as it is", "zero", "equal", "opposite", "large", "small")))
        factor = {"zero": 0.0, "opposite": -1.0, "large": 1e3, "small": 1e-3}.get(kind, 1.0)
        U[k] = factor * U[0 if kind in ("equal", "opposite") else k]
    return U


@st.composite
def generic_updates(draw: st.DrawFn, min_size: int = 1) -> FloatArray:
    """Rows in general position, more or less alike: no inner product is zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, d, alike = draw(st.integers(min_size, 5)), draw(st.integers(5, 8)), draw(st.sampled_from((-1.0, 0.0, 1.0)))
    return rng.normal(size=(m, d)) * rng.uniform(0.2, 5.0, size=(m, 1)) + alike * rng.normal(size=d)


def losses_and_counts(m: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(m)
    return rng.uniform(0.1, 3.0, m), rng.integers(1, 50, m).astype(np.float64)


def accuracies_of(losses: FloatArray) -> FloatArray:
    """An accuracy for each client where a test says none: the higher the loss, the lower it is."""
    return 1.0 / (1.0 + np.maximum(losses, 0.0))


def rates_of(counts: FloatArray) -> FloatArray:
    """A learning rate for each client where a test says none, 0.1 to 0.5."""
    return 0.1 * (1.0 + counts % 5)


def group_counts_of(losses: FloatArray, counts: FloatArray) -> dict[str, FloatArray]:
    """Return positive examples of two groups, and those that the model finds, where a test says none; 0 for some."""
    accuracies = accuracies_of(losses)
    positives = [np.floor(0.2 * counts), np.floor(0.3 * counts)]
    hits = [np.floor(accuracies * positives[0]), np.floor((1.0 - accuracies) * positives[1])]
    return dict(zip(("positives-0", "positives-1", "hits-0", "hits-1"), (*positives, *hits), strict=True))


def baselines_of(losses: FloatArray) -> FloatArray:
    """What each client reaches alone where a test says nothing: no fixed share of its loss."""
    return 0.1 * np.sqrt(np.abs(losses))


def draws_of(counts: FloatArray) -> FloatArray:
    """How often each client was drawn, where a test of DRFA says nothing: 1 to 3 times."""
    return 1.0 + counts % 3


def disparities_of(counts: FloatArray) -> FloatArray:
    """A disparity for each client where a test says none, from −0.12 to 0.12."""
    return 0.06 * (counts % 5 - 2.0)


def seconds_of(U: FloatArray) -> FloatArray:
    """Second updates where a test says none: each is half as long as the first one, and points elsewhere."""
    return 0.5 * np.roll(U, 1, axis=1)


# Clients ------------------------------------------------------------------------------------------------------------

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


def record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def unpack(arrays: ArrayRecord) -> Arrays:
    return {name: _decode(array.data) for name, array in arrays.items()}


@lru_cache(maxsize=1000)
def _decode(data: bytes) -> NDArray[Any]:
    """Return an array that nobody may change: all clients of a round decode the same model."""
    array: NDArray[Any] = np.load(BytesIO(data))
    array.setflags(write=False)
    return array


def flat(arrays: Mapping[str, NDArray[Any]]) -> FloatArray:
    """The trainable arrays as one float64 vector."""
    return np.concatenate([arrays[name].ravel().astype(np.float64) for name in TRAINABLE])


def unflat(vector: FloatArray, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The trainable arrays, in the shapes and dtypes that they have in `arrays`, from one vector."""
    places = np.split(vector, np.cumsum([arrays[name].size for name in TRAINABLE])[:-1])
    pairs = zip(TRAINABLE, places, strict=True)
    return {name: place.reshape(arrays[name].shape).astype(arrays[name].dtype) for name, place in pairs}


class Quadratic:
    """A client whose loss is ½ Σ a (w − target)²; a step of its training is one gradient step at its own rate.

    It takes one step, or `local-steps` where the config says so; then it also replies its model after
    `snapshot-step` of them. Its disparity is the sine of an inner product, and where the config names one it also
    replies the model after a step down that. It keeps nothing, and says that it went on from whatever state it is
    asked for.
    """

    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.name, self.examples = name, int(rng.integers(5, 100))
        self.curvature, self.target = rng.uniform(0.5, 1.5, 10), 3.0 * rng.normal(size=10)
        self.mean = rng.normal(size=2)
        self.rate = float(rng.uniform(0.2, 0.4))
        self.baseline = 0.5 * self.rate
        """What it claims to reach alone; its least loss is 0."""
        self.slope = rng.normal(size=10) / 5.0

    def loss(self, arrays: Arrays) -> float:
        return 0.5 * float(self.curvature @ (flat(arrays) - self.target) ** 2)

    def disparity(self, arrays: Arrays) -> float:
        return float(np.sin(self.slope @ flat(arrays)))

    def evened(self, arrays: Arrays) -> Arrays:
        """Return the trainable arrays after a step down |disparity|."""
        w = flat(arrays)
        return unflat(w - self.rate * np.sign(self.disparity(arrays)) * np.cos(self.slope @ w) * self.slope, arrays)

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
            client = ConfigRecord({"name": self.name, "num-examples": self.examples, "honours": list(WORK)})
            return Message(RecordDict({"client": client}), reply_to=message)
        before: Arrays = unpack(message.content.array_records["arrays"])
        config: Mapping[str, Any] = message.content.config_records.get("config", ConfigRecord())
        if message.metadata.message_type == MessageType.EVALUATE:
            loss = self.loss(before)
            numbers = {"num-examples": self.examples, "loss": loss, "accuracy": self.accuracy(before)}
            if "train-loss" in config.get("measure", []):
                numbers["train-loss"] = loss
            return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)
        after = before if config.get("local-only") else self.trained(before, int(config.get("local-steps", 1)))
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
        numbers |= {key: value for key, value in available.items() if key in config.get("measure", [])}
        content = RecordDict({"arrays": record(after), "metrics": MetricRecord(numbers)})
        if "snapshot-step" in config:
            content["snapshot"] = record(self.trained(before, int(config["snapshot-step"])))
        if "disparity" in config:
            content["arrays-disparity"] = record(self.evened(before))
        return Message(content, reply_to=message)


def quadratics(n: int) -> dict[str, Quadratic]:
    return {name: Quadratic(name) for name in (f"site-{k}" for k in range(n))}


# The grid -----------------------------------------------------------------------------------------------------------

Fault = Callable[[Message, Message], list[Message]]
"""From an instruction and the good reply to it to what arrives in its place."""


class MemoryGrid(Grid):
    """A grid whose nodes are functions in this process: random node ids, random order of arrival.

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
        self.clients, self.faults, self.registered = clients, faults or {}, registered
        self.sent: list[Message] = []
        self.held: list[Message] = []
        self._mailbox: dict[str, list[Message]] = {}

    def sent_to(self, message_type: str) -> list[tuple[str, Message]]:
        """Client and message of everything sent of one type, in the order of sending."""
        return [(self.nodes[m.metadata.dst_node_id], m) for m in self.sent if m.metadata.message_type == message_type]

    def release(self) -> None:
        """Let the replies that were held back arrive."""
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

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = self.pull_messages(self.push_messages(messages))
        return [replies[i] for i in self._rng.permutation(len(replies))]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        names = {node: name if name in self.registered else "" for node, name in self.nodes.items()}
        return [NodeInfo(node_id=node, name=name) for node, name in names.items()]

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @cached_property
    def run(self) -> Run:
        raise NotImplementedError


# What goes wrong ----------------------------------------------------------------------------------------------------


def no_reply(sent: Message, reply: Message) -> list[Message]:
    return []


def error(sent: Message, reply: Message) -> list[Message]:
    return [Message(Error(2, "out of memory"), reply_to=sent)]


def node_unavailable(sent: Message, reply: Message) -> list[Message]:
    gone = Message(Error(5, "node unavailable"), reply_to=sent)
    gone.metadata.__dict__["_src_node_id"] = 1  # the server's
    return [gone]


def duplicate(sent: Message, reply: Message) -> list[Message]:
    return [reply, reply]


def to_unknown_message(sent: Message, reply: Message) -> list[Message]:
    stray = Message(reply.content, reply_to=sent)
    stray.metadata.__dict__["_reply_to_message_id"] = "0" * 32
    return [reply, stray]


def arrays(**changed: Any) -> Fault:
    """The same reply with arrays replaced, or left out where None is given ("_" stands for a dot)."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        changes = {name.replace("_", "."): value for name, value in changed.items()}
        kept = {**reply.content.array_records["arrays"], **changes}
        records = {
            name: array if isinstance(array, Array) else Array(np.asarray(array))
            for name, array in kept.items()
            if array is not None
        }
        content = RecordDict({**reply.content, "arrays": ArrayRecord(records)})
        return [Message(content, reply_to=sent)]

    return fault


def metrics(changed: Mapping[str, Any]) -> Fault:
    """The same reply with metrics replaced, or left out where None is given."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        numbers = {**reply.content.metric_records["metrics"], **changed}
        record = MetricRecord({key: value for key, value in numbers.items() if value is not None})
        return [Message(RecordDict({**reply.content, "metrics": record}), reply_to=sent)]

    return fault


def without(kind: str) -> Fault:
    """The same reply without one of its records."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        kept = {key: value for key, value in reply.content.items() if key != kind}
        return [Message(RecordDict(kept), reply_to=sent)]

    return fault


def corrupt(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(3,), stype=stype, data=data)


BROKEN: dict[str, tuple[Fault, str]] = {
    "error": (error, "out of memory"),
    "node unavailable": (node_unavailable, "node unavailable"),
    "nan": (arrays(bias=np.float32([1, np.nan, 2])), "'bias' is not finite"),
    "infinite": (arrays(bias=np.float32([1, -np.inf, 2])), "'bias' is not finite"),
    "nan in 0-d": (arrays(scale=np.float32(np.nan)), "'scale' is not finite"),
    "nan in buffer": (arrays(norm_mean=np.float32([np.nan, 0])), "'norm.mean' is not finite"),
    "shape": (arrays(bias=np.zeros(4, np.float32)), "'bias' has shape (4,)"),
    "broadcastable shape": (arrays(bias=np.zeros(1, np.float32)), "'bias' has shape (1,)"),
    "shape of 0-d": (arrays(scale=np.zeros(1, np.float32)), "'scale' has shape (1,)"),
    "integers for floats": (arrays(bias=np.zeros(3, np.int64)), "'bias' has dtype int64"),
    "floats for integers": (arrays(norm_steps=np.float32(1)), "'norm.steps' has dtype float32"),
    "complex": (arrays(bias=np.zeros(3, np.complex64)), "'bias' has dtype complex64"),
    "text": (arrays(bias=np.array(["a", "b", "c"])), "'bias' has dtype <U1"),
    "missing array": (arrays(bias=None), "'bias' is missing"),
    "added array": (arrays(extra=np.float32(1)), "'extra' is not in the model"),
    "no arrays": (without("arrays"), "'arrays' is missing"),
    "corrupt bytes": (arrays(bias=corrupt(b"\x93NUMPY\x01\x00nonsense")), "'bias' can't be read"),
    "no bytes": (arrays(bias=corrupt(b"")), "'bias' can't be read"),
    "unknown serialisation": (arrays(bias=corrupt(b"abc", "pickle")), "'bias' can't be read"),
    "no metrics": (without("metrics"), "'metrics' is missing"),
    "no num-examples": (metrics({"num-examples": None}), "num-examples must be an integer of at least 1, got None"),
    "zero examples": (metrics({"num-examples": 0}), "num-examples must be an integer of at least 1, got 0"),
    "negative examples": (metrics({"num-examples": -3}), "num-examples must be an integer of at least 1, got -3"),
    "half an example": (metrics({"num-examples": 0.5}), "num-examples must be an integer of at least 1, got 0.5"),
    "examples as float": (metrics({"num-examples": 3.0}), "num-examples must be an integer of at least 1, got 3.0"),
    "more examples than a float counts": (metrics({"num-examples": 2**53 + 1}), "num-examples must be at most 2**53"),
    "examples as list": (metrics({"num-examples": [3]}), "num-examples must be an integer of at least 1, got [3]"),
}
"""Replies that no method can use, and what the reason for their refusal says."""

UNMEASURED: dict[str, tuple[Fault, str]] = {
    "no loss": (metrics({"loss-before": None}), "'loss-before' must be a finite number, got None"),
    "nan loss": (metrics({"loss-before": np.nan}), "'loss-before' must be a finite number, got nan"),
    "infinite loss": (metrics({"loss-before": np.inf}), "'loss-before' must be a finite number, got inf"),
    "list for a loss": (metrics({"loss-before": [1.0]}), "'loss-before' must be a finite number, got [1.0]"),
}
"""Replies that a method which needs the loss can't use."""


@st.composite
def histories(draw: st.DrawFn, lowest: float = 0.0) -> list[dict[str, float]]:
    """Losses of random participants over some rounds; clients come in one by one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names, rounds = client_names(6), []
    for t in range(draw(st.integers(1, 8))):
        known = names[: 2 + t]
        present = [name for name in known if rng.random() < 0.6] or [known[0]]
        rounds.append({name: float(rng.uniform(lowest, 3.0)) for name in present})
    return rounds
