"""Arrays and numbers as Flower's records, and the checks that make a reply usable."""

from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.advice import advice_on
from fairbloom.protocol.bfloat16 import BITS_PER_NUMBER
from fairbloom.protocol.codec import Codec, name_of
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.names import (
    CLIENT,
    CONTEXT_STATE,
    FROZEN,
    HONOURS,
    LONGEST_NAME,
    METRICS,
    NAME,
    NUM_EXAMPLES,
    PRIVACY,
    ROWS_MISSING,
    SNAPSHOT,
    UPDATE_BITS,
    ZERO_RATE,
    is_usable_name,
)
from fairbloom.recorddict import read_values, view_of
from fairbloom.text import text_if

from .arrays import Model
from .layout import Layout
from .refusals import one_line
from .screening import LARGEST_COUNT
from .updates import Updates

# Flower's error codes for a message, or a reply, that has exceeded its deadline.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)

# An app without a query function answers with an error that has one of these texts; the second is
# of a NumPyClient.
NO_QUERY = ("No query function registered", "Invalid message type: query")


def size_of(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    return sum(
        len(view_of(array))
        for record in content.array_records.values()
        for array in record.values()
    )


def read_name(reply: Message) -> str:
    """Return the client name in an answer to QUERY, "" without a usable one.

    Names appear in logs and tables, so they are short and have only printable characters.
    """
    name = ""
    if reply.has_content():
        client = reply.content.config_records.get(CLIENT, ConfigRecord())
        name = str(client.get(NAME) or "")
    if is_usable_name(name):
        return name
    if name:
        log.warning(
            "the client of node %d calls itself %s: a name has printable characters, at most %d; it"
            " is called by its node's number",
            reply.metadata.src_node_id,
            one_line(name[:LONGEST_NAME]),
            LONGEST_NAME,
        )
    return ""


def read_examples(content: RecordDict) -> int:
    """Return the training examples that a client reports in its answer to QUERY, 0 if unknown."""
    return _read_count(content, NUM_EXAMPLES)


def read_missing(content: RecordDict) -> int:
    """Return the rows that a device reports in its answer to QUERY as missing, 0 if none are."""
    return _read_count(content, ROWS_MISSING)


def _read_count(content: RecordDict, key: str) -> int:
    count = content.config_records.get(CLIENT, ConfigRecord()).get(key)
    # Not isinstance: True is an int, too.
    return count if type(count) is int and 1 <= count <= LARGEST_COUNT else 0


def read_supported(content: RecordDict) -> frozenset[str]:
    """Return the terms of local work that a client declares to support."""
    keys = content.config_records.get(CLIENT, ConfigRecord()).get(HONOURS)
    return frozenset(map(str, keys)) if isinstance(keys, list) else frozenset()


def read_account(content: RecordDict) -> AccountStatus | None:
    """Return what is left of a client's privacy account, None if it has none."""
    of_client = content.config_records.get(CLIENT, ConfigRecord())
    return AccountStatus.of(of_client.get(PRIVACY))


def claims_impossible_account(content: RecordDict) -> bool:
    """Return whether a client says of a privacy account what none has."""
    says = PRIVACY in content.config_records.get(CLIENT, ConfigRecord())
    return says and read_account(content) is None


def read_context_state(content: RecordDict) -> bool | None:
    """Return whether a client has a state that its node keeps for one run only, None if unsaid."""
    stated = content.config_records.get(CLIENT, ConfigRecord()).get(CONTEXT_STATE)
    return stated if isinstance(stated, bool) else None


def holds_frozen(content: RecordDict, digest: str) -> bool:
    """Return whether a client reports that it holds the frozen parameters with this digest."""
    return content.config_records.get(CLIENT, ConfigRecord()).get(FROZEN) == digest


def has_zero_rate(content: RecordDict) -> bool:
    """Return whether a client reports that all its steps had a learning rate of 0."""
    return content.config_records.get(CLIENT, ConfigRecord()).get(ZERO_RATE) is True


def check_supported(work: Mapping[str, Any], supported: Collection[str]) -> None:
    """Raise FairbloomError if a client does not support a term of its local work."""
    lacking = [key for key in work if key not in supported]
    if lacking:
        terms = ", ".join(f"{key} = {work[key]}" for key in lacking)
        raise FairbloomError(
            f"the client does not support {terms}, which the method requires: a client that acts on"
            f" it lists {', '.join(map(repr, lacking))} under {HONOURS!r} in its answer to QUERY;"
            f" else {advice_on(lacking)}"
        )


def is_expired(reply: Message) -> bool:
    """Return whether Flower reports that the deadline passed."""
    return not reply.has_content() and reply.error.code in EXPIRED


def has_no_query(reply: Message) -> bool:
    """Return whether a reply is the error of an app that answers no QUERY."""
    return reply.has_error() and any(words in str(reply.error.reason) for words in NO_QUERY)


def record_of(model: Model) -> ArrayRecord:
    """Return a model's arrays as Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def message_of(arrays: ArrayRecord, layout: Layout, codec: Codec) -> ArrayRecord:
    """Return a model's arrays as Flower sends them with this codec."""
    if not codec.rounds_model:
        return arrays
    sent = codec.send_model(model_of(arrays), layout.rounded)
    return ArrayRecord({name: arrays.get(name) or Array(values) for name, values in sent.items()})


def model_of(arrays: ArrayRecord) -> Model:
    """Return the arrays of a model from Flower, without a copy and read-only."""
    return {name: read_values(array) for name, array in arrays.items()}


def read_metrics(content: RecordDict) -> MetricRecord:
    """Return the metrics of a reply."""
    record: MetricRecord = _find_record(content.metric_records, METRICS, "MetricRecord")
    return record


def check_rounded(metrics: dict[str, float]) -> None:
    """Raise ValueError if a reply does not say that it has its update in bfloat16."""
    bits = metrics.pop(UPDATE_BITS, None)
    if bits != BITS_PER_NUMBER:
        raise ValueError(
            f"metric {UPDATE_BITS!r} must be {BITS_PER_NUMBER}, got {bits!r}: the reply must have"
            " the update in bfloat16 in place of the model"
        )


def read_arrays(
    content: RecordDict, key: str, layout: Layout, codec: Codec, second: str = ""
) -> Model:
    """Return a reply's arrays; raise ValueError if they do not fit the layout.

    The record may have another name than `key` if it is the only one besides that of a `second`
    model.
    """
    return _read_model(
        _find_record(content.array_records, key, "ArrayRecord", second), layout, codec
    )


def read_second(content: RecordDict, record: str, into: Updates | None, codec: Codec) -> Model:
    """Return the second model of a reply, checked like a first one.

    Unless the record is a snapshot, arrays that are not part of an update are ignored.
    """
    if into is None:
        return {}
    is_snapshot = record == SNAPSHOT
    if record not in content.array_records:
        which = text_if(is_snapshot, ", the model after `snapshot-step` of the `local-steps` steps")
        raise ValueError(f"ArrayRecord {record!r} is missing{which}: {advice_on([record])}")
    used = dict(content.array_records[record])
    if not is_snapshot:
        used = {name: array for name, array in used.items() if name_of(name) in into.layout.arrays}
    try:
        return _read_model(used, into.layout, codec)
    except ValueError as error:
        raise ValueError(f"ArrayRecord {record!r}: {error}") from error


def _read_model(record: Mapping[str, Array], layout: Layout, codec: Codec) -> Model:
    """Return a record's arrays; raise ValueError if names, shapes or kinds of dtype do not fit."""
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = read_values(array)
        except Exception as error:  # a client's bytes can make NumPy raise anything
            raise ValueError(f"array {name!r} can't be read: {error}") from error
    replied = codec.read_update(arrays)
    mismatch = layout.mismatch(replied, has_bits=codec.rounds_updates)
    if mismatch is not None:
        raise ValueError(mismatch)
    return replied


def _find_record(records: Mapping[str, Any], key: str, kind: str, second: str = "") -> Any:
    """Return the record named `key`, or the only record: users' clients may choose its name."""
    if key in records:
        return records[key]
    others = [record for name, record in records.items() if name not in (SNAPSHOT, second)]
    if len(others) != 1:
        raise ValueError(f"{kind} {key!r} is missing")
    return others[0]
