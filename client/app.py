"""The ClientApp: Flower's messages, handed to the client that is behind them.

PyTorch and the data are imported and loaded late, once a process: a deployed SuperNode may start a
new process for every message.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.errors import FairbloomError, ReportableError, reportable
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import Mark, RunSettings, marked
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import check_protocol
from fairbloom.tasks import find_task, forget_tasks, load_task
from fairbloom.tasks.schema import with_files

from .guard.audit_log import recording
from .guard.limits import FEWEST_ROWS, LIMIT_ROWS

if TYPE_CHECKING:
    from .local import LocalClient
    from .states import StateDict

KEPT = "kept"
"""A record of Flower's context that holds a version of what a client keeps is called by this, the
name of what is kept, and the round that made it: kept:personal:3."""

FILES = "files"
"""Key of Flower's node config for how the device's files are written: tables `files` of a schema,
as JSON."""

PLACES = marked(Mark.DEVICE)
"""Where this device keeps things: its owner says it in the node config, which wins over a run's
settings."""


app = ClientApp(mods=[recording])


@contextmanager
def redact_data_errors(context: Context) -> Iterator[None]:
    """Let no error of a deployed client quote its data or places: the server gets words that were written for it."""
    try:
        yield
    except Exception as error:
        if not is_deployed(context):
            raise
        log.error(
            "this client cannot do its work: %s",
            error,
            exc_info=not isinstance(error, FairbloomError),
        )
        raise ReportableError(reportable(error)) from None


@app.query()
def query(message: Message, context: Context) -> Message:
    """Reply this client's name, that it honours all terms, and its number of training examples."""
    from .local import SUPPORTED, find_client_key

    config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
    check_protocol(config)
    with redact_data_errors(context):
        told, partition, name = _who(context)
        settings = RunSettings.of(told)
        task = load_task(settings)
        key = find_client_key(settings, task, partition, name)
        examples = len(task.splits(key).train)
    answer = ConfigRecord(
        {wire.NAME: name or key, wire.NUM_EXAMPLES: examples, wire.HONOURS: SUPPORTED.keys}
    )
    return Message(RecordDict({wire.CLIENT: answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the local training set.

    Reply with it and the metrics that were asked for.
    """
    from .local import SUPPORTED

    def work(local: LocalClient, received: StateDict, terms: Terms) -> RecordDict:
        records = message.content.array_records.items()
        vectors = {name: _state(each) for name, each in records if name != wire.ARRAYS}
        update = local.train(received, terms, vectors)
        save_states(context, local.states.in_memory)
        metrics = MetricRecord({**update.metrics})
        content = RecordDict({wire.ARRAYS: _reply(update.arrays, message), wire.METRICS: metrics})
        if update.second:
            content[update.record] = _reply(update.second, message)
        if terms.work:
            content[wire.CLIENT] = ConfigRecord({wire.HONOURS: SUPPORTED.keys})
        return content

    return _answer(message, context, work)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the received model on the local test set, and on the training set where that is asked for; keep it."""

    def work(local: LocalClient, received: StateDict, terms: Terms) -> RecordDict:
        metrics = MetricRecord({**local.evaluate(received, terms)})
        keep_evaluated(context, local, received, terms)
        return RecordDict({wire.METRICS: metrics})

    return _answer(message, context, work)


def _answer(
    message: Message, context: Context, work: Callable[[LocalClient, StateDict, Terms], RecordDict]
) -> Message:
    """Reply with what a client makes of the received model, and which frozen parameters it has then, if it is asked.

    The client's own frozen parameters stand for those that the message leaves out.
    """
    from fairbloom.tasks.models import frozen_parameters

    from .frozen import complete, digest_frozen
    from .local import LocalClient

    with redact_data_errors(context):
        config = message.content.config_records[wire.CONFIG]
        check_protocol(config)
        terms = Terms.of(config)
        told, partition, name = _who(context)
        if told.get("pooled"):
            raise ReportableError(
                "pooled = true: the training data of all clients lie together in one process only:"
                " leave it out with deployed clients, or use fairbloom run"
            )
        local = LocalClient.of(told, partition, name, load_states(context))
        received = _state(message.content.array_records[wire.ARRAYS])
        digest = config.get(wire.FROZEN)
        if digest is not None and not received.keys() >= set(frozen_parameters(local.model)):
            received = complete(received, local.model, str(digest))
        content = work(local, received, terms)
        if digest is not None:
            said = content.config_records.get(wire.CLIENT, ConfigRecord())
            content[wire.CLIENT] = ConfigRecord({**said, wire.FROZEN: digest_frozen(local.model)})
        return Message(content, reply_to=message)


@lru_cache(maxsize=1)
def begin_run(run_id: int) -> None:
    """Load tasks again for the first message of another run: their files may have changed since the last."""
    forget_tasks()


def is_deployed(context: Context) -> bool:
    """Return whether a client works on a device of its own, so that what it replies leaves the device.

    Flower's simulation is one process on one machine. It numbers its clients and gives them no
    folder of their own.
    """
    node = context.node_config
    return "num-partitions" not in node or any(node.get(key) for key in PLACES)


def load_states(context: Context) -> dict[str, dict[int, StateDict]]:
    """Return what a client keeps in its context, by name and the round that made each version."""
    states: dict[str, dict[int, StateDict]] = {}
    for record, arrays in context.state.array_records.items():
        kind, _, rest = record.partition(":")
        name, _, made = rest.rpartition(":")
        if kind == KEPT:
            states.setdefault(name, {})[int(made)] = _state(arrays)
    return states


def save_states(context: Context, states: Mapping[str, Mapping[int, StateDict]]) -> None:
    """Keep these versions in a client's context, and no others."""
    wanted = {
        f"{KEPT}:{name}:{made}": state
        for name, versions in states.items()
        for made, state in versions.items()
    }
    for record in list(context.state.array_records):
        if record.startswith(f"{KEPT}:") and record not in wanted:
            del context.state[record]
    for record, state in wanted.items():
        context.state[record] = _record(state)


def keep_evaluated(context: Context, local: LocalClient, received: StateDict, terms: Terms) -> None:
    """Keep the evaluated model on a device with a state folder; why it is not kept is logged."""
    from fairbloom.tasks.models import arrays_of

    from .guard.evaluated_model import keep_model

    if not (state_dir := context.node_config.get("state-dir")):
        return
    if any(bool(tensor.isnan().any()) for tensor in received.values()):
        log.warning(
            "the model of round %d is not kept, because it has values that are no numbers",
            terms.server_round,
        )
        return
    config, _, _ = _who(context)
    serves = wire.PERSONAL if terms.local_only else "global"
    try:
        keep_model(
            Path(str(state_dir)),
            config,
            local.task,
            local.key,
            arrays_of(received),
            terms.server_round,
            serves,
        )
    except OSError as error:
        log.warning(
            "the model of round %d is not kept in %s: %s",
            terms.server_round,
            state_dir,
            error.strerror,
        )


def _who(context: Context) -> tuple[dict[str, Any], object, str | None]:
    """Return the settings on this device, which partition of the data is its own, and what the client calls itself."""
    begin_run(context.run_id)
    node = context.node_config
    config = {**context.run_config, **{key: place for key in PLACES if (place := node.get(key))}}
    config[wire.DEPLOYED] = is_deployed(context)
    config[wire.FLOOR] = node.get(LIMIT_ROWS, FEWEST_ROWS)
    if files := node.get(FILES):
        config["schema"] = with_files(str(config.get("schema", "")), json.loads(str(files)))
    partition = node.get("partition-id")
    name = node.get("name")
    if "num-partitions" not in node and find_task(str(config["task"])).reads:
        # a device's data are its own: a number that it was enrolled with chooses nothing there
        partition = None
    return config, partition, None if name is None else str(name)


def _reply(state: StateDict, message: Message) -> ArrayRecord:
    """Return a model with the arrays that the message had."""
    sent = message.content.array_records[wire.ARRAYS]
    return _record({name: tensor for name, tensor in state.items() if name in sent})


def _state(arrays: ArrayRecord) -> StateDict:
    """Return arrays as tensors; Flower refuses to make them before PyTorch is imported."""
    return dict(arrays.to_torch_state_dict())


def _record(state: StateDict) -> ArrayRecord:
    from fairbloom.tasks.models import on_processor, sendable

    return ArrayRecord(OrderedDict(on_processor(sendable(state))))
