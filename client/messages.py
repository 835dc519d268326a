"""What a client reads in Flower's messages and context: its settings, and arrays as tensors.

PyTorch and the data are imported late, as in `fairbloom.client.app`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Set
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, Context, Message

from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.codec import Codec, name_of
from fairbloom.protocol.settings import Mark, RunSettings, marked
from fairbloom.protocol.terms import Terms
from fairbloom.recorddict import read_values
from fairbloom.tables.schema import with_files
from fairbloom.tasks import find_task, forget_tasks

from .guard.limits import DEFAULT_MIN_ROWS

if TYPE_CHECKING:
    from torch.nn import Module

    from .local import LocalClient
    from .states import StateDict

# Settings that are paths on this device. The owner sets them in the node config, which overrides a
# run's settings.
PLACES = marked(Mark.DEVICE)


@lru_cache(maxsize=1)
def begin_run(run_id: int) -> None:
    """Forget loaded tasks at the first message of another run, as their files may have changed."""
    forget_tasks()


def is_deployed(context: Context) -> bool:
    """Return whether a client runs on its own device, so that its replies leave the device.

    Flower's simulation runs on one machine. It numbers its clients, and gives them no folders.
    """
    node = context.node_config
    return "num-partitions" not in node or any(node.get(key) for key in PLACES)


def min_rows_in(context: Context) -> int | None:
    """Return the fewest rows behind a number that leaves the device; None in one process."""
    if not is_deployed(context):
        return None
    return int(context.node_config.get(wire.MIN_ROWS, DEFAULT_MIN_ROWS))


def own_settings(context: Context) -> tuple[RunSettings, object, str | None]:
    """Return the run's settings on this device, the client's partition, and its name."""
    from .guard.initial_weights import check_weights

    begin_run(context.run_id)
    node = context.node_config
    config = {**context.run_config, **{key: place for key in PLACES if (place := node.get(key))}}
    config[wire.DEPLOYED] = is_deployed(context)
    name = node.get("name")
    config["schema"] = with_files(
        str(config.get("schema", "")),
        json.loads(str(node.get(wire.FILES, "{}"))),
        str(name or ""),
    )
    partition = node.get("partition-id")
    if "num-partitions" not in node and find_task(str(config["task"])).reads:
        # A device reads its own data, so its enrolment number chooses no partition of them.
        partition = None
    settings = RunSettings.of(config)
    if is_deployed(context):
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

    own = arrays_of(sendable(model.state_dict()))
    decoded = codec.receive_model(
        {name: read_values(array) for name, array in arrays.items()},
        {name: array.dtype for name, array in own.items()},
    )
    return state_of(
        ArrayRecord({name: arrays.get(name) or Array(values) for name, values in decoded.items()})
    )


def record_of(state: StateDict, names: Set[str] | None = None) -> ArrayRecord:
    """Return the arrays with these names, None for all."""
    from fairbloom.tasks.models import on_processor, sendable

    chosen = {name: tensor for name, tensor in state.items() if names is None or name in names}
    return ArrayRecord(OrderedDict(on_processor(sendable(chosen))))


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

    if not (state_dir := context.node_config.get("state-dir")):
        return
    if any(bool(tensor.isnan().any()) for tensor in received.values()):
        log.warning(
            "the model of round %d is not kept, because it has values that are not numbers",
            terms.server_round,
        )
        return
    serves = wire.PERSONAL if terms.local_only else "global"
    try:
        keep_model(
            Path(str(state_dir)),
            local.settings,
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
