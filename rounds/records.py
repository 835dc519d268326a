"""Arrays and numbers as Flower's records, and what a reply must hold to be usable."""

from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from fairbloom.logs import log
from fairbloom.protocol.advice import advice_on
from fairbloom.protocol.names import (
    CLIENT,
    FROZEN,
    HONOURS,
    LONGEST_NAME,
    METRICS,
    NAME,
    NUM_EXAMPLES,
    SNAPSHOT,
    is_usable_name,
)

from .arrays import Model
from .layout import Layout
from .refusals import one_line
from .screening import LARGEST_COUNT
from .updates import Updates

EXPIRED = (3, 4)
"""Flower's error codes for a message, or a reply, that has outlived its deadline."""

NO_QUERY = ("No query function registered", "Invalid message type: query")
"""An app without a query function answers with an error that has one of these texts; the second is
of a NumPyClient."""


def frozen_digest(content: RecordDict) -> str:
    """Return the digest that a client says its frozen parameters have, "" where it says nothing that can be one."""
    said = content.config_records.get(CLIENT, ConfigRecord()).get(FROZEN)
    return said if isinstance(said, str) else ""


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    return sum(
        len(array.data) for record in content.array_records.values() for array in record.values()
    )


def name_in(reply: Message) -> str:
    """Return the name that a client gives itself in its answer to a QUERY, "" where there is none that can be used.

    It stands in logs and tables, so it has printable characters alone, and not too many.
    """
    client = reply.content.config_records.get(CLIENT) if reply.has_content() else None
    name = str(client[NAME]) if client and client.get(NAME) else ""
    if is_usable_name(name):
        return name
    if name:
        words = (
            "the client of node %d calls itself %s: a name has printable characters, at most %d; it"
            " is called by %s"
        )
        node = reply.metadata.src_node_id
        log.warning(words, node, one_line(name[:LONGEST_NAME]), LONGEST_NAME, "its node's number")
    return ""


def examples_in(content: RecordDict) -> int:
    """Return how many training examples a client says it has in its answer to a QUERY, 0 where that is no number."""
    said = content.config_records.get(CLIENT, ConfigRecord()).get(NUM_EXAMPLES)
    return said if type(said) is int and 1 <= said <= LARGEST_COUNT else 0


def read_honoured(content: RecordDict) -> frozenset[str]:
    """Return the terms of local work on which a client says that it acts."""
    keys = content.config_records.get(CLIENT, ConfigRecord()).get(HONOURS)
    return frozenset(map(str, keys)) if isinstance(keys, list) else frozenset()


def check_honoured(work: Mapping[str, Any], honours: Collection[str]) -> None:
    """Raise ValueError, with the remedy, where a client does not say that it acts on all terms of its local work."""
    lacking = [key for key in work if key not in honours]
    if lacking:
        terms = ", ".join(f"{key} = {work[key]}" for key in lacking)
        raise ValueError(
            f"it does not support {terms}, which the method requires: a client that acts on it"
            f" lists {', '.join(map(repr, lacking))} under {HONOURS!r} in its answer to QUERY; else"
            f" {advice_on(lacking)}"
        )


def is_expired(reply: Message) -> bool:
    """Return whether a reply is the grid's word that no answer came in time."""
    return not reply.has_content() and reply.error.code in EXPIRED


def has_no_query(reply: Message) -> bool:
    """Return whether a reply is the error of an app that answers no QUERY."""
    return reply.has_error() and any(words in str(reply.error.reason) for words in NO_QUERY)


def record_of(model: Model) -> ArrayRecord:
    """Return a model's arrays as Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def model_of(arrays: ArrayRecord) -> Model:
    """Return the arrays of a model that came from Flower, without a copy and read-only."""
    return {name: view(array) for name, array in arrays.items()}


def reported(content: RecordDict) -> MetricRecord:
    """Return the metrics of a reply."""
    record: MetricRecord = _only(content.metric_records, METRICS, "MetricRecord")
    return record


def usable_arrays(content: RecordDict, key: str, layout: Layout, second: str = "") -> Model:
    """Return a reply's arrays, if their names, shapes and kinds of dtype are the model's.

    The record may have another name than `key`, if it is the only one apart from that of a `second`
    model.
    """
    return _readable(_only(content.array_records, key, "ArrayRecord", second), layout)


def usable_second(content: RecordDict, record: str, into: Updates | None) -> Model:
    """Return the second model of a reply, checked as a first one is.

    Of a record that is no snapshot, arrays that are no part of an update are ignored.
    """
    if into is None:
        return {}
    if record not in content.array_records:
        which = (
            ", the model after `snapshot-step` of the `local-steps` steps"
            if record == SNAPSHOT
            else ""
        )
        raise ValueError(f"ArrayRecord {record!r} is missing{which}: {advice_on([record])}")
    received = content.array_records[record]
    layout = into.layout
    used = {
        name: array
        for name, array in received.items()
        if record == SNAPSHOT or name in layout.arrays
    }
    try:
        return _readable(used, layout)
    except ValueError as error:
        raise ValueError(f"ArrayRecord {record!r}: {error}") from error


def _readable(record: Mapping[str, Array], layout: Layout) -> Model:
    """Return the arrays of a record, if their names, shapes and kinds of dtype are those of a layout."""
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = view(array)
        except Exception as error:  # nothing bounds what a client's bytes make NumPy raise
            raise ValueError(f"array {name!r} can't be read: {error}") from error
    if (mismatch := layout.mismatch(arrays)) is not None:
        raise ValueError(mismatch)
    return arrays


def view(array: Array) -> NDArray[Any]:
    """Return the values of a Flower Array, read-only: its bytes are a file as numpy.save writes it.

    They are a copy only where their byte order is not this machine's.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, not as 'numpy.ndarray'")
    file = BytesIO(array.data)
    if read_magic(file) == (1, 0):
        shape, fortran, dtype = read_array_header_1_0(file)
    else:
        shape, fortran, dtype = read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return values.astype(dtype.newbyteorder("="), copy=False).reshape(
        shape, order="F" if fortran else "C"
    )


def _only(records: Mapping[str, Any], key: str, kind: str, second: str = "") -> Any:
    """Return the record named `key`, or the only one there is: foreign clients choose its name."""
    if key in records:
        return records[key]
    others = [record for name, record in records.items() if name not in (SNAPSHOT, second)]
    if len(others) != 1:
        raise ValueError(f"{kind} {key!r} is missing")
    return others[0]
