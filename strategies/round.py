"""A round as data: what went out, what came back, and what the strategy hands on of it."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("flwr").getChild("fairbloom")


EXPIRED = (3, 4)
"""Flower's error codes for a message, or a reply, that has outlived its deadline."""


def expired(reply: Any) -> bool:
    """Return whether a reply is the grid's word that no answer came in time."""
    return not reply.has_content() and reply.error.code in EXPIRED


LONGEST_REASON = 2000
"""Characters of a reason: a client's error may be a whole traceback, or a flood."""


def one_line(text: str) -> str:
    """Return what a client may have written as one line that is safe to print, without its middle where it is long."""
    if len(text) > LONGEST_REASON:
        text = f"{text[: LONGEST_REASON // 2]} … {text[-LONGEST_REASON // 2 :]}"
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))


DECIDING_SHARE = 0.9
"""Of the absolute coefficients of a round, from which on one client of three or more decides it."""


def decides(coefficients: Mapping[str, float]) -> tuple[str, float]:
    """Return the one client of three or more that decides a round, and its share; "" and 0 where none does."""
    weights = {name: abs(c) for name, c in coefficients.items()}
    total = sum(weights.values())
    if len(weights) < 3 or not 0.0 < total < math.inf:
        return "", 0.0
    name = max(weights, key=lambda client: weights[client])
    share = weights[name] / total
    return (name, share) if share >= DECIDING_SHARE else ("", 0.0)


@dataclass(frozen=True, kw_only=True)
class Round:
    """A finished round, as `on_round` gets it.

    Attributes
    ----------
    number
        t, from 1.
    participants
        The clients drawn for training, in the order of their names.
    refused
        Why a reply was not used, by client name.
    missing
        The participants that did not answer before the deadline.
    coefficients
        c_k of the step w ← w − Σ c_k u_k, by name of the clients whose reply was used; empty in a skipped round.
    arrays
        The global model after the round, a Flower ArrayRecord.
    decided_by
        The client that has nearly all the weight of a round of three or more: at least 0.9 of Σ|c|; "" for none.
    metrics
        Means over the used replies, and the method's own metrics.
    train_metrics
        What each used client reported of its training.
    evaluations
        What each client reported of its test split, where the round was evaluated.
    bytes_sent, bytes_received
        Size of the arrays that went out and came in.
    """

    number: int
    participants: tuple[str, ...]
    refused: Mapping[str, str]
    missing: tuple[str, ...]
    coefficients: Mapping[str, float]
    arrays: Any
    metrics: Mapping[str, Any]
    train_metrics: Mapping[str, Mapping[str, float]]
    evaluations: Mapping[str, Mapping[str, float]]
    bytes_sent: int
    bytes_received: int
    decided_by: str = ""


@dataclass
class Exchange:
    """The Flower messages of one phase of a round, and what became of them, by client name.

    `strays` holds the ids of other messages that were answered meanwhile: late replies, which are not used.
    """

    round: int = 0
    messages: dict[str, Any] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)
    refused: dict[str, list[str]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The clients that were sent a message and did not answer, in the order of names."""
        return sorted(set(self.messages) - self.answered)

    def refuse(self, name: str, reason: str) -> None:
        """Record, and log, why a reply of `name` is not used."""
        reason = one_line(reason)
        self.refused.setdefault(name, []).append(reason)
        log.warning("refused a reply of client %s: %s", name, reason, extra={"client": name, "round": self.round})

    def sort(self, replies: Iterable[Any], roster: Mapping[str, int]) -> list[tuple[str, Any]]:
        """Return client name and content of each reply to this exchange, in the order of names; refuse the others."""
        sender = self.senders()
        contents: dict[str, Any] = {}
        for reply in replies:
            name = sender(reply)
            if name is None:
                self.strays.add(reply.metadata.reply_to_message_id)
                node_id = reply.metadata.src_node_id
                known = (client for client, node in roster.items() if node == node_id)
                self.refuse(next(known, f"node {node_id}"), "it answers no message of this round")
            elif expired(reply):
                continue
            elif name in self.answered:
                self.refuse(name, "a second reply to the same message")
            else:
                self.answered.add(name)
                if reply.has_content():
                    contents[name] = reply.content
                else:
                    self.refuse(name, f"error {reply.error.code}: {reply.error.reason}")
        return sorted(contents.items())

    def senders(self) -> Callable[[Any], str | None]:
        """Return a look-up of who was sent the message that a reply answers, None for a message of another round.

        It goes by message id, since a node that Flower reports as gone is reported with the server's node id; by node
        id where no grid gave the messages an id.
        """
        sent = {(m.metadata.message_id or m.metadata.dst_node_id): name for name, m in self.messages.items()}
        return lambda reply: sent.get(reply.metadata.reply_to_message_id or reply.metadata.src_node_id)

    def means(self, weight_key: str) -> dict[str, float]:
        """Return the means, weighted by `weight_key`, of the metrics that all used replies have."""
        used = list(self.metrics.values())
        total = sum(metrics[weight_key] for metrics in used)
        common = [key for key in (used[0] if used else ()) if all(key in metrics for metrics in used)]
        return {
            key: sum(metrics[weight_key] / total * metrics[key] for metrics in used)
            for key in common
            if key != weight_key
        }
