"""What deployed clients with these data would send: a run of one round in this process, with its messages."""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, UserConfig

from fairbloom.client.app import app
from fairbloom.client.limits import LIMIT_ROWS, Limits
from fairbloom.client.record import read_entries
from fairbloom.client.recording import plain_values, question_of
from fairbloom.client.settings import accepted_settings
from fairbloom.errors import FairbloomError, reportable
from fairbloom.flower import ErrorCode
from fairbloom.logs import errors_alone
from fairbloom.private.weighing import GramWeighing
from fairbloom.rounds.flower import FlowerClients, unpack_content
from fairbloom.server.app import federate, measured_in_private
from fairbloom.server.delivery import deliver_model
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task, load_task

from .grid import InProcessGrid

NO_LIMITS = Limits()
"""Those of a device without limits of its owner."""


@dataclass(frozen=True)
class SentReply:
    """One reply of a client: what it was asked (query, about, train, evaluate or keep), sends, and holds back.

    Of arrays, `content` has names, types and shapes alone. In a private run, the content of a train or evaluate message
    is said in words, under "private".
    """

    client: str
    asked: str
    content: Mapping[str, Any]
    held_back: tuple[str, ...] = ()


def rehearse(
    settings: Settings, *, name: str = "", allow: Collection[str] = (), limits: Limits = NO_LIMITS
) -> list[SentReply]:
    """Return what clients with these data send in a run of one round, in the order in which they send it.

    A client with data of its own calls itself `name`, or as its data do. `allow` and `limits` are the device owner's.
    """
    has_clients = find_task(settings.task).has_clients
    config = settings.run_config()
    limits.check(config)
    clients = load_task(config).clients
    place = {"data-dir": settings.data_dir} if settings.data_dir else {}
    nodes: dict[str, dict[str, Any]] = {client: {"partition-id": k, **place} for k, client in enumerate(clients)}
    for client, node in nodes.items():
        if name or len(clients) > 1:
            node["name"] = name if len(clients) == 1 else client
    grid = RecordingGrid(nodes, accepted_settings(config, allow))
    with (
        tempfile.TemporaryDirectory() as folder,
        errors_alone(),
        suppress(FairbloomError),
    ):  # which stands in the replies
        changed = {"num_rounds": 1, "fraction": 1.0, "out": str(Path(folder, "run")), "training_clients": ""}
        changed |= {"sampling": "uniform", "privacy": "none"}  # a private round needs five clients with identities
        if has_clients:
            changed["data_dir"] = ""  # a server has none
        one_round = settings.model_copy(update=changed)
        for context in grid.contexts.values():
            context.node_config["state-dir"] = tempfile.mkdtemp(dir=folder)
            context.node_config[LIMIT_ROWS] = limits.rows
        run = federate(one_round, lambda method: FlowerClients(method, grid, settings.round_timeout), deployed=True)
        deliver_model(run, one_round, grid)
    if settings.privacy == "none":
        return grid.sent
    rounds = ("train", "evaluate")
    sent = [each for each in grid.sent if each.asked not in rounds or "error" in each.content]
    return [*sent, *(SentReply(client, *each) for client in nodes for each in _sent_in_private(settings))]


def _sent_in_private(settings: Settings) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what a client sends in private rounds: when it is asked, and the thing in words."""
    weighing = settings.strategy().private_weighing([], 1, settings.num_rounds, settings.loss_bound)
    metrics = [f"the bins of {name}" if weighing.tier == "counts" else name for name in weighing.metrics]
    weighed = ", ".join(("the number of its examples", "the length of its update", *metrics))
    measured = ", ".join(measured_in_private(load_task(settings.run_config()), settings))
    if settings.evaluation == "counts":
        measured += ", the bin that its score is in"
    keys = "two fresh public keys, signed, with the certificate of its name"
    shares = "shares, encrypted for each other client of the round, of numbers of which sums alone are opened"
    own = "its share of each of these sums"
    opened = [f"{shares}: {weighed}", own]
    if isinstance(weighing, GramWeighing):
        opened = [
            "shares, encrypted for each other client of the round, of its update",
            "its share of the length of each update, and of the angle between each two, which are opened by name",
        ]
    things = {
        "train": [
            *(keys, *opened),
            "its update and its coefficient, masked so that only sums over at least five clients can be read",
            "shares of the keys by which the masks are taken off those sums",
        ],
        "evaluate": [keys, f"{shares}: the number of its test examples, and {measured} with their squares", own],
    }
    for asked, each in things.items():
        yield from ((asked, {"private": thing}) for thing in each)


class RecordingGrid(InProcessGrid):
    """Clients in this process that work as deployed ones do, each with its own node config; it keeps their replies."""

    def __init__(self, nodes: Mapping[str, UserConfig], run_config: UserConfig) -> None:
        super().__init__(app, run_config, len(nodes))
        self._plain = {**run_config, "privacy": "none"}
        self.sent: list[SentReply] = []
        self._names = dict(zip(self.contexts, nodes, strict=True))
        for context, node in zip(self.contexts.values(), nodes.values(), strict=True):
            context.node_config = dict(node)

    def _answer(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        context = self.contexts[node_id]
        if message.metadata.message_type != "query":  # private clients refuse plain work, which shows their errors
            context = replace(context, run_config=self._plain)
        reply = _answer_message(message, context)
        asked = question_of(message.metadata.message_type, unpack_content(message.content))
        content = {"error": reply.error.reason} if reply.has_error() else plain_values(unpack_content(reply.content))
        noted = read_entries(Path(str(self.contexts[node_id].node_config["state-dir"])))[-1]
        sent = SentReply(self._names[node_id], asked, content, tuple(noted.get("held-back", ())))
        if sent not in self.sent:  # it is asked for its name once more when the run is over
            self.sent.append(sent)
        return reply


def _answer_message(message: Message, context: Context) -> Message:
    try:
        return app(message, context)
    except Exception as error:  # as a deployed client replies
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reportable(error)), reply_to=message)
