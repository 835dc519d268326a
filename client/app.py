"""The ClientApp: it maps Flower's messages to the work of a client.

PyTorch and the data are imported and loaded late, once per process, because a deployed SuperNode
may start a new process for every message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.errors import FairbloomError, ReportableError, reportable
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.bfloat16 import BITS_PER_NUMBER
from fairbloom.protocol.codec import ENDING, digest_arrays
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import check_protocol
from fairbloom.system.retry import deadline, retrying_writes
from fairbloom.tasks import load_task

from .messages import (
    is_deployed,
    keep_evaluated,
    keep_released,
    log_exchange,
    min_rows_in,
    order_in,
    own_settings,
    received_model,
    record_of,
    state_of,
    wanted_arrays,
)
from .private.door import answer_by_account

if TYPE_CHECKING:
    from .local import LocalClient
    from .states import ClientStates, StateDict

# Prefix of the records in Flower's context that hold a client's stored states. The state's name and
# the round that made it follow: kept:personal:3.
KEPT = "kept"

app = ClientApp(mods=[log_exchange, answer_by_account])


@contextmanager
def redact_data_errors(context: Context) -> Iterator[None]:
    """Raise errors of a deployed client as ReportableError, which quotes no data and no paths."""
    from .guard.accepted_settings import SettingRefusedError

    try:
        yield
    except SettingRefusedError:  # in words on the run, by its code the server knows it
        raise
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
    """Reply this client's name, the terms that it supports, and its number of training examples.

    On a device, the answer also has the number of rows that its data had before and lack now, and a
    number below the owner's floor is left out.
    """
    from .guard.disclosure import Gate
    from .local import find_client_key
    from .local_round import SUPPORTED

    check_protocol(message.content.config_records.get(wire.CONFIG, ConfigRecord()))
    with redact_data_errors(context):
        settings, partition, name = own_settings(context)
        task = load_task(settings)
        key = find_client_key(settings, task, partition, name)
        splits = task.splits(key)
        gate = Gate(min_rows_in(context), task, splits)
        counts = {**gate.pass_count("train", splits.train), **gate.pass_missing()}
    client = ConfigRecord({wire.NAME: name or key, **counts, wire.HONOURS: SUPPORTED.wire_keys})
    return Message(RecordDict({wire.CLIENT: client}), reply_to=message)


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """Store the model that the operator has released, if the device's owner allows that.

    Reply the owner's rule, and nothing of the data.
    """
    from .local import LocalClient

    with redact_data_errors(context):
        local = LocalClient.of(*own_settings(context, begins=False))
        return Message(keep_released(message, context, local), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the local training set.

    Reply with the trained model and the metrics that the terms ask for.
    """
    from .guard.initial_weights import TRAINED, check_first_model, note
    from .local_round import SUPPORTED, train_client
    from .states import ClientStates, fingerprint_of

    def work(local: LocalClient, received: StateDict, terms: Terms) -> RecordDict:
        records = message.content.array_records.items()
        vectors = {name: state_of(each) for name, each in records if name != wire.ARRAYS}
        if local.gate.min_rows > 1 and terms.server_round == 1:
            check_first_model(local, received, rounded=terms.codec.rounds_model)
        update = train_client(local, received, terms, vectors)
        place = local.settings.state_dir
        if place:
            with suppress(OSError):  # without the note, a later run's weights need their owner
                note(Path(place), TRAINED, fingerprint_of(local.settings))
        metrics = MetricRecord({**update.metrics, **_name_rows(local)})
        if terms.codec.rounds_updates:
            metrics[wire.UPDATE_BITS] = BITS_PER_NUMBER
        wanted = wanted_arrays(local, message)

        def record(state: StateDict, states: ClientStates) -> ArrayRecord:
            sent = {name: array for name, array in state.items() if name in wanted}
            if terms.codec.rounds_updates:
                return _rounded_record(local, received, terms, sent, states)
            return record_of(sent)

        content = RecordDict({wire.ARRAYS: record(update.arrays, local.states)})
        content[wire.METRICS] = metrics
        if update.second:
            content[update.record] = record(update.second, ClientStates())
        if terms.work:
            content[wire.CLIENT] = ConfigRecord({wire.HONOURS: SUPPORTED.wire_keys})
        return content

    return _answer(message, context, work)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the received model on the local test set, and store it on a device.

    The terms may also ask for measurements on the training set.
    """
    from .local_round import evaluate_client

    def work(local: LocalClient, received: StateDict, terms: Terms) -> RecordDict:
        metrics = MetricRecord({**evaluate_client(local, received, terms), **_name_rows(local)})
        keep_evaluated(context, local, received, terms)
        return RecordDict({wire.METRICS: metrics})

    return _answer(message, context, work)


def _answer(
    message: Message, context: Context, work: Callable[[LocalClient, StateDict, Terms], RecordDict]
) -> Message:
    """Reply with the client's result and, if asked, the digest of the arrays that are sent once.

    Of these, the message may leave out those that the client has.
    """
    from fairbloom.tasks.models import arrays_of, frozen_parameters, personal_arrays

    from .device import choose_device, computing_in
    from .frozen import arrays_sent_once, complete
    from .guard.disclosure import guarded
    from .local import LocalClient, check_described
    from .states import INITIAL

    with redact_data_errors(context), retrying_writes(deadline(message.metadata.ttl)):
        config = message.content.config_records[wire.CONFIG]
        check_protocol(config)
        terms = Terms.of(config)
        settings, partition, name = own_settings(context)
        if settings.pooled:
            raise ReportableError(
                "pooled = true: the training data of all clients lie together in one process only:"
                " leave it out with deployed clients, or use fairbloom run"
            )
        local = LocalClient.of(settings, partition, name, load_states(context))
        check_described(local.task, str(config.get(wire.MODEL_MADE, "")))
        if is_deployed(context):
            local = guarded(local, min_rows_in(context), order_in(context, settings))
        received = received_model(
            message.content.array_records[wire.ARRAYS], terms.codec, local.model
        )
        own = personal_arrays(local.model, terms.personal_parameters, local.task.output)
        digest = config.get(wire.FROZEN)
        if digest is not None and not received.keys() >= {*frozen_parameters(local.model), *own}:
            received = complete(received, arrays_sent_once(local, own), str(digest))
        elif own:
            local.states.keep(INITIAL, 0, {name: received[name] for name in own})
        with computing_in(local.settings.precision, choose_device(local.settings.device)):
            content = work(local, received, terms)
        save_states(context, local.states.in_memory)
        if digest is not None:
            client = content.config_records.setdefault(wire.CLIENT, ConfigRecord())
            client[wire.FROZEN] = digest_arrays(arrays_of(arrays_sent_once(local, own)))
        return Message(content, reply_to=message)


def _name_rows(local: LocalClient) -> dict[str, int]:
    """Return the number of a device's table, and of its missing rows; {} in one process."""
    version = local.splits.version
    return {wire.ROWS_VERSION: version, **local.gate.pass_missing()} if version else {}


def load_states(context: Context) -> dict[str, dict[int, StateDict]]:
    """Return the states in a client's context, by name and the round that made each version."""
    states: dict[str, dict[int, StateDict]] = {}
    for record, arrays in context.state.array_records.items():
        kind, _, rest = record.partition(":")
        name, _, made = rest.rpartition(":")
        if kind == KEPT:
            states.setdefault(name, {})[int(made)] = state_of(arrays)
    return states


def save_states(context: Context, states: Mapping[str, Mapping[int, StateDict]]) -> None:
    """Store these versions in a client's context, and remove all others."""
    wanted = {
        f"{KEPT}:{name}:{made}": state
        for name, versions in states.items()
        for made, state in versions.items()
    }
    for record in list(context.state.array_records):
        if record.startswith(f"{KEPT}:") and record not in wanted:
            del context.state[record]
    for record, state in wanted.items():
        context.state[record] = record_of(state)


def _rounded_record(
    local: LocalClient,
    received: StateDict,
    terms: Terms,
    state: StateDict,
    states: ClientStates,
) -> ArrayRecord:
    """Return the arrays of `state`; those that are trained as updates in bfloat16."""
    from fairbloom.tasks.models import arrays_of

    from .rules.rounded import round_updates

    parameters = local.model.named_parameters(remove_duplicate=False)
    trained = [name for name, parameter in parameters if parameter.requires_grad and name in state]
    bits = round_updates(
        states,
        terms,
        arrays_of({name: received[name] for name in trained}),
        arrays_of({name: state[name] for name in trained}),
    )
    record = record_of(state, state.keys() - set(trained))
    record.update({f"{name}{ENDING}": Array(each) for name, each in bits.items()})
    return record
