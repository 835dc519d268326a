"""Clients that keep vectors between rounds, as METHODS of SCAFFOLD and FedDyn have it, written out in NumPy.

They speak Flower's messages, and keep their states before and after their last reply, as real ones do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fairbloom.protocol.terms import WORK
from fairbloom.rounds.updates import FloatArray
from tests.federation import record, unpack

Gradient = Callable[[FloatArray], FloatArray]


class Keeping:
    """A client with the loss ½ Σ a (x − b)², which takes full-batch steps at these rates.

    Attributes
    ----------
    states
        Its states by the round of the reply that made them: that before its last reply, and that after it.
    sent
        The config of each message to train.
    """

    def __init__(
        self, name: str, a: FloatArray, b: FloatArray, *, examples: int = 1, rates: Sequence[float] = (0.1,)
    ) -> None:
        self.name, self.a, self.b, self.examples, self.rates = name, a, b, examples, rates
        self.states: dict[int, FloatArray] = {}
        self.sent: list[Mapping[str, Any]] = []

    def gradient(self, x: FloatArray) -> FloatArray:
        return self.a * (x - self.b)

    def loss(self, x: FloatArray) -> float:
        return 0.5 * float(self.a @ (x - self.b) ** 2)

    def state(self, number: int) -> FloatArray:
        """Return the state after the reply of a round, zeros for round 0."""
        return self.states[number] if number else np.zeros_like(self.b)

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            about = {"name": self.name, "num-examples": self.examples, "honours": list(WORK)}
            return Message(RecordDict({"client": ConfigRecord(about)}), reply_to=message)
        config: Mapping[str, Any] = message.content.config_records["config"]
        w = unpack(message.content.array_records["arrays"])["w"]
        if message.metadata.message_type == MessageType.EVALUATE:
            metrics: dict[str, Any] = {"num-examples": self.examples, "loss": self.loss(w)}
            return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
        self.sent.append(dict(config))
        control = message.content.array_records.get("control")
        x, kept = self.trained(w, config, None if control is None else unpack(control)["w"])
        metrics = {"num-examples": self.examples, "loss-before": self.loss(w), **kept}
        if "step-sum" in config.get("measure", ()):
            metrics["step-sum"] = float(sum(self.rates))
        content = RecordDict({"arrays": record({"w": x}), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    def trained(
        self, w: FloatArray, config: Mapping[str, Any], control: FloatArray | None
    ) -> tuple[FloatArray, dict[str, int]]:
        """Return the model after the local steps, and the round of the state that it went on from, if it keeps any."""
        mu = config.get("proximal-mu", 0.0)
        if "state-round" not in config:
            return self.descended(w, lambda x: self.gradient(x) + mu * (x - w)), {}
        asked = int(config["state-round"])
        from_round = asked if asked in self.states else 0
        state, c = self.state(from_round), np.zeros_like(w) if control is None else control
        alpha = config.get("dynamic-alpha", 0.0)
        if config.get("control-variates"):
            x = self.descended(w, lambda y: self.gradient(y) + mu * (y - w) - state + c)
            after = state - c + (w - x) / sum(self.rates) if len(self.rates) else state
        else:
            x = self.descended(w, lambda y: self.gradient(y) + mu * (y - w) - state + alpha * (y - w))
            after = state + alpha * (w - x)
        self.states = {from_round: state, int(config["server-round"]): after}
        self.states.pop(0, None)
        return x, {"state-round": from_round}

    def descended(self, w: FloatArray, gradient: Gradient) -> FloatArray:
        x = w
        for rate in self.rates:
            x = x - rate * gradient(x)
        return x

    def lose(self) -> None:
        """Lose what is kept, as a device without a folder that stays does when it is restarted."""
        self.states = {}


def keeping(
    m: int, *, seed: int = 0, dim: int = 3, steps: int | None = 7, same_examples: bool = False
) -> dict[str, Keeping]:
    """Return m clients with unlike curvatures, optima, examples and numbers of steps; `steps` is that of the first."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k in range(m):
        count = 1 if steps is None else 1 + (steps - 1 + 3 * k) % (steps + 4)
        clients[f"site-{k}"] = Keeping(
            f"site-{k}",
            rng.uniform(0.5, 2.0, dim),
            2.0 * rng.normal(size=dim),
            examples=20 if same_examples else int(rng.integers(5, 60)),
            rates=[0.1] if steps is None else list(rng.uniform(0.02, 0.1, count)),
        )
    return clients


def minimiser(clients: Mapping[str, Keeping], *, by_examples: bool) -> FloatArray:
    """Return where the mean loss is least, weighted by examples or uniformly."""
    n = {name: client.examples if by_examples else 1 for name, client in clients.items()}
    curvature = sum(n[name] * client.a for name, client in clients.items())
    return np.asarray(sum(n[name] * client.a * client.b for name, client in clients.items()) / curvature)
