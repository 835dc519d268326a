"""A hostile ClientApp: it trains as ours does, but sends another invalid reply in each round.

The owner of a device can run any app, by the key `app` of owner.toml.
"""

import math
import os
from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client import app as honest

GIGABYTE = 1 << 30

app = ClientApp()
app.query()(honest.query)
app.evaluate()(honest.evaluate)


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(str(message.content.config_records["config"]["server-round"]))
    reply = honest.train(message, context)
    if not os.environ.get("HOSTILE_TRAINS"):
        reply.content = ATTACKS[list(ATTACKS)[(number - 1) % len(ATTACKS)]](reply.content)
    return reply


def with_metrics(content: RecordDict, **changed: float) -> RecordDict:
    metrics = {
        **content.metric_records["metrics"],
        **{key.replace("_", "-"): value for key, value in changed.items()},
    }
    return RecordDict({"arrays": content.array_records["arrays"], "metrics": MetricRecord(metrics)})


def with_arrays(content: RecordDict, arrays: Mapping[str, Array]) -> RecordDict:
    return RecordDict(
        {"arrays": ArrayRecord(dict(arrays)), "metrics": content.metric_records["metrics"]}
    )


def huge(content: RecordDict) -> RecordDict:
    return with_arrays(content, {"weight": Array(np.zeros(GIGABYTE // 4, np.float32))})


def many(content: RecordDict) -> RecordDict:
    return with_arrays(
        content, {f"weight-{i}": Array(np.full(1, i, np.float32)) for i in range(20_000)}
    )


def long_list(content: RecordDict, numbers: int) -> RecordDict:
    content["more"] = ConfigRecord({"numbers": [0.5] * numbers})
    return content


def lying_header(content: RecordDict) -> RecordDict:
    arrays = dict(content.array_records["arrays"])
    first = next(iter(arrays))
    data = arrays[first].data.replace(b"'shape': (", b"'shape': (9999", 1)
    arrays[first] = Array(
        dtype="float32", shape=tuple(arrays[first].shape), stype="numpy.ndarray", data=data
    )
    return with_arrays(content, arrays)


def python_objects(content: RecordDict) -> RecordDict:
    arrays = dict(content.array_records["arrays"])
    first = next(iter(arrays))
    header = (
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117)
        + b"\n"
    )
    arrays[first] = Array(
        dtype="object",
        shape=tuple(arrays[first].shape),
        stype="numpy.ndarray",
        data=header + b"cos\nsystem\n(S'id'\ntR.",
    )
    return with_arrays(content, arrays)


def infinite(content: RecordDict) -> RecordDict:
    arrays = dict(content.array_records["arrays"])
    first = next(iter(arrays))
    arrays[first] = Array(np.full_like(arrays[first].numpy(), math.inf))
    return with_arrays(content, arrays)


# The reply of each round, in this order. The first is honest, so that a later count can jump.
ATTACKS: Mapping[str, Callable[[RecordDict], RecordDict]] = {
    "honest": lambda content: content,
    "1 GB": huge,
    "20,000 arrays": many,
    "a list of 8 MB": lambda content: long_list(content, 1_000_000),
    "a lying header": lying_header,
    "Python objects": python_objects,
    "infinite weights": infinite,
    "a loss of 1e300": lambda content: with_metrics(content, loss_before=1e300),
    "2^60 examples": lambda content: with_metrics(content, num_examples=1 << 60),
    "100 times the examples": lambda content: with_metrics(content, num_examples=100 * 72),
    "no examples": lambda content: with_metrics(content, num_examples=0),
    "24 MB in one piece": lambda content: long_list(content, 3_000_000),
}
