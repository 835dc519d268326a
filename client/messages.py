"""What a client reads in Flower's messages and context: its settings, and arrays as tensors.

A mod logs what each message asked, and what left in reply.

PyTorch and the data are imported late, as in `fairbloom.client.app`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Set
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fairbloom.errors import ReportableError, reportable
from fairbloom.logs import escape_unprintable, log
from fairbloom.protocol import names as wire
from fairbloom.protocol.codec import Codec, digest_arrays, name_of
from fairbloom.protocol.settings import FINGERPRINT, Mark, RunSettings, marked
from fairbloom.protocol.terms import Terms
from fairbloom.recorddict import read_values, view_of
from fairbloom.system.retry import deadline, retrying_writes
from fairbloom.system.versions import NAME
from fairbloom.tables.folders import place_of
from fairbloom.tables.schema import with_files
from fairbloom.tasks import find_task, forget_tasks

from .gate import NOTED
from .guard.accepted_schemas import SHOWN, digest_of
from .guard.accepted_settings import SCHEMA_KEY
from .guard.limits import DEFAULT_MIN_ROWS
from .guard.log_entries import shorten
from .guard.log_files import open_log

if TYPE_CHECKING:
    from torch.nn import Module

    from fairbloom.flower import ClientAppCallable

    from .local import LocalClient
    from .states import StateDict

# Settings that are paths on this device. The owner sets them in the node config, which overrides a
# run's settings.
PLACES = marked(Mark.DEVICE)

# The key of the secret of a client without a state folder, in its record of Flower's context.
KEY = "secret"


@lru_cache(maxsize=1)
def begin_run(run_id: int) -> None:
    """Forget loaded tasks at the first message of another run, as their files may have changed."""
    forget_tasks()


def is_deployed(context: Context) -> bool:
    """Return whether a client runs on its own device, so that its replies leave the device.

    Flower's simulation runs on one machine. It numbers its clients, and gives them no folders.
    """
    return "num-partitions" not in context.node_config or any(
        context.node_config.get(key) for key in PLACES
    )


def min_rows_in(context: Context) -> int:
    """Return the fewest rows behind a number that leaves the device; 0 in one process."""
    if not is_deployed(context):
        return 0
    return int(context.node_config.get(wire.MIN_ROWS, DEFAULT_MIN_ROWS))


def order_in(context: Context, settings: RunSettings) -> int | str | None:
    """Return the seed of the order if it is the owner's choice, or in the context, else None."""
    from .states import fingerprint_of

    if context.node_config.get(wire.ORDER) == wire.ORDER_OF_RUN:
        return settings.seed
    if settings.state_dir:
        return None
    kept = context.state.config_records.setdefault(NAME, ConfigRecord({KEY: token_hex()}))
    return f"{kept[KEY]!s} {fingerprint_of(settings)}"


def own_settings(
    context: Context, *, begins: bool = True
) -> tuple[RunSettings, object, str | None]:
    """Return the run's settings on this device, the client's partition, and its name.

    `begins`: the device's data are used with the weights that the run begins with, if any.
    """
    from .guard.initial_weights import check_weights

    begin_run(context.run_id)
    node = context.node_config
    places = {key: node[key] for key in PLACES if node.get(key)}
    config = {**context.run_config, **places}
    config[wire.DEPLOYED] = is_deployed(context)
    name = node.get("name")
    if name and config[wire.DEPLOYED] and config.get("task") == "csv":
        config["data-dir"] = place_of(str(config.get("data-dir", "")), str(name))
        config[wire.ONE_CLIENT] = True
    files = json.loads(str(node.get(wire.FILES, "{}")))
    config["schema"] = with_files(str(config.get("schema", "")), files, str(name or ""))
    partition = node.get("partition-id")
    if "num-partitions" not in node and find_task(str(config["task"])).reads:
        # A device reads its own data, so its enrolment number chooses no partition of them.
        partition = None
    settings = RunSettings.of(config)
    if begins and is_deployed(context):
        check_weights(settings, str(node.get("weights", "")))
    return settings, partition, None if name is None else str(name)


def state_of(arrays: ArrayRecord) -> StateDict:
    """Return arrays as tensors. PyTorch must be imported before, or Flower refuses to make them."""
    return dict(arrays.to_torch_state_dict())


def received_model(arrays: ArrayRecord, codec: Codec, model: Module) -> StateDict:
    """Return the received model; arrays that were rounded get the dtype of the client's own."""
    if not codec.rounds_model:
        return state_of(arrays)
    from fairbloom.tasks.models import arrays_of, sendable

    received = {name: read_values(array) for name, array in arrays.items()}
    own = arrays_of(sendable(model.state_dict()))
    kinds = {name: array.dtype for name, array in own.items()}
    decoded = codec.receive_model(received, kinds)
    whole = {name: arrays.get(name) or Array(values) for name, values in decoded.items()}
    return state_of(ArrayRecord(whole))


def record_of(state: StateDict, names: Set[str] | None = None) -> ArrayRecord:
    """Return the arrays with these names, None for all."""
    from fairbloom.tasks.models import on_processor, sendable

    chosen = state
    if names is not None:
        chosen = {name: tensor for name, tensor in state.items() if name in names}
    here = on_processor(sendable(chosen))
    return ArrayRecord(OrderedDict(here))


def wanted_arrays(local: LocalClient, message: Message) -> Set[str]:
    """Return the names of the arrays that a reply needs: those that the message had.

    A server that compares digests of frozen parameters has these already.
    """
    from fairbloom.tasks.models import frozen_parameters

    sent = {name_of(name) for name in message.content.array_records[wire.ARRAYS]}
    if wire.FROZEN not in message.content.config_records[wire.CONFIG]:
        return sent
    return sent - set(frozen_parameters(local.model))


def keep_evaluated(context: Context, local: LocalClient, received: StateDict, terms: Terms) -> None:
    """Store the evaluated model on a device with a state folder; log the reason if it fails."""
    from fairbloom.tasks.models import arrays_of

    from .guard.evaluated_model import keep_model
    from .guard.initial_weights import accept_final

    state_dir = context.node_config.get("state-dir")
    if not state_dir:
        return
    if any(bool(tensor.isnan().any()) for tensor in received.values()):
        log.warning(
            "the model of round %d is not kept, because it has values that are not numbers",
            terms.server_round,
        )
        return
    serves = wire.PERSONAL if terms.local_only else "global"
    arrays = arrays_of(received)
    try:
        keep_model(
            Path(str(state_dir)),
            local.settings,
            local.task,
            local.key,
            arrays,
            terms.server_round,
            serves,
        )
        if not terms.local_only and terms.server_round >= local.settings.num_rounds:
            accept_final(local.settings, Path(str(state_dir)), digest_arrays(arrays))
    except OSError as error:
        log.warning(
            "the model of round %d is not kept in %s: %s",
            terms.server_round,
            state_dir,
            error.strerror,
        )


def keep_released(message: Message, context: Context, local: LocalClient) -> RecordDict:
    """Treat a released model as the device's owner says, and return the rule.

    Raise ReportableError if it is not a model of the run's settings, or the disk refuses it.
    """
    from fairbloom.tasks.models import arrays_of

    from .guard.released_model import store_released
    from .states import explain_disk_errors

    node = context.node_config
    rule = str(node.get(wire.RELEASE_LIMIT, wire.TAKE) if node.get("state-dir") else wire.OFF)
    if rule != wire.OFF:
        config = message.content.config_records[wire.CONFIG]
        received = state_of(message.content.array_records[wire.ARRAYS])
        own = local.model.state_dict()
        if {name: each.shape for name, each in received.items()} != {
            name: each.shape for name, each in own.items()
        } or not all(bool(each.isfinite().all()) for each in received.values()):
            raise ReportableError(
                "the released model has other arrays than its settings make on this device, or"
                " values that are not finite: release the model of another run"
            )
        about: dict[str, Any] = {}
        for name in ("run", "method", "day"):
            said = shorten(config.get(name, "unknown"))
            about[name] = escape_unprintable(str(said))
        about["round"] = Terms.of(config).server_round
        with explain_disk_errors("written to"):
            rule = store_released(
                Path(str(node["state-dir"])), local, arrays_of(received), about, rule
            )
    return RecordDict({wire.CLIENT: ConfigRecord({wire.RELEASE_LIMIT: rule})})


# The log of a device ------------------------------------------------------------------------------


def log_exchange(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Log a message and its reply, if the client has a state-dir; a mod of Flower's.

    `fairbloom client` makes the state-dir, and puts this mod around an owner's own app, too.
    """
    place = str(context.node_config.get("state-dir", ""))
    folder = Path(place)
    # another one of this mod, around the app, logs already
    if NOTED.get() is not None or not place or not folder.is_dir():
        return answer(message, context)
    until = deadline(message.metadata.ttl)
    config: Mapping[str, Any] = message.content.config_records.get(wire.CONFIG) or {}
    settings = context.run_config
    entry: dict[str, Any] = {
        "run": message.metadata.run_id,
        "message": message.metadata.message_id,
        "asked": message.metadata.message_type,
        "task": shorten(settings.get("task", "unknown")),
        "settings-digest": str(settings.get(FINGERPRINT, ""))[:SHOWN],
        "terms": shorten({key: value for key, value in config.items() if key != wire.FROZEN}),
    }
    schema = str(settings.get(SCHEMA_KEY, ""))
    if schema:
        entry["schema"] = digest_of(schema)[:SHOWN]
    models = message.content.array_records
    if models:
        entry["received"] = {name: digest_record(model) for name, model in models.items()}
    noted: dict[str, Any] = {}
    token = NOTED.set(noted)
    try:
        reply = answer(message, context)
    except (Exception, SystemExit) as error:
        open_log(folder).note({**entry, "refused": reportable(error)}, settings)
        raise
    finally:
        NOTED.reset(token)
    if reply.has_error():  # of another mod
        open_log(folder).note({**entry, "refused": str(reply.error.reason)}, settings)
        return reply
    sent = {**entry, "sent": plain_values(reply.content), **noted}
    try:  # before it leaves
        with retrying_writes(until):
            open_log(folder).note(sent, settings)
    except OSError as error:
        raise ReportableError(
            "the log of what leaves this client cannot be written to its state-dir"
            f" ({error.strerror}), and nothing leaves unlogged: free space on its disk"
        ) from error
    return reply


def digest_record(arrays: ArrayRecord) -> str:
    """Return the beginning of the digest of arrays with their names, after its algorithm.

    It is of their bytes as they came: an own app's arrays need not be NumPy's, and `digest_arrays`
    would have to decode a hostile server's before they are logged.
    """
    total = blake3()
    for name, array in arrays.items():
        total.update(f"{name} {array.dtype} {array.shape} ".encode())
        total.update(view_of(array))
    return f"blake3 {total.hexdigest()[:SHOWN]}"


def _describe_arrays(record: ArrayRecord) -> dict[str, str]:
    """Return the type and shape of each array, as in "float32, 3×5"."""
    shapes = {key: "×".join(map(str, array.shape)) for key, array in record.items()}
    return {key: f"{array.dtype}, {shapes[key]}" for key, array in record.items()}


def plain_values(content: RecordDict) -> dict[str, Any]:
    """Return the records of a reply as plain values; arrays as their types and shapes."""
    models = content.array_records.items()
    arrays = {name: _describe_arrays(record) for name, record in models}
    return {
        shorten(name): shorten(arrays.get(name) or dict(record)) for name, record in content.items()
    }
