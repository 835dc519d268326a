"""The wire format of a RecordDict is that of Protocol Buffers, and arrays are not copied."""

import copy
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fairbloom.flower import from_proto, to_proto
from fairbloom.recorddict import (
    UnusualError,
    deserialize,
    read_values,
    serialize,
    serialize_in_pieces,
)

CONTENTS = {
    "nothing": RecordDict(),
    "empty records": RecordDict(
        {"a": ArrayRecord(), "m": MetricRecord(), "c": ConfigRecord(), "": ArrayRecord()}
    ),
    "arrays": RecordDict(
        {
            "model": ArrayRecord(
                {
                    "scalar": Array(np.array(3.0, np.float32)),
                    "weights": Array(np.arange(300, dtype=np.float32).reshape(3, 100)),
                    "none": Array(np.empty((0, 70_000), np.float64)),
                    "fortran": Array(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
                    "größe": Array(np.array([True, False])),
                }
            )
        }
    ),
    "odd arrays": RecordDict(
        {
            "r": ArrayRecord(
                {"": Array("", (), "", b""), "x": Array("int8", (2**31 - 1,), "s", b"x")}
            )
        }
    ),
    "all records": RecordDict(
        {
            "config": ConfigRecord({"x": 1, "texts": ["a", "b"], "bytes": b"\xff", "yes": True}),
            "arrays": ArrayRecord({"w": Array(np.ones(5, np.int64))}),
            "metrics": MetricRecord({"loss": 0.5, "counts": [1, 2**63]}),
        }
    ),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_is_written_as_protobuf_writes_it(name: str) -> None:
    content = CONTENTS[name]
    written = serialize(content)
    assert written == to_proto(content)
    read = deserialize(written)
    assert read == from_proto(written) == content
    assert [*read] == [*content]
    assert serialize(read) == written


def test_damaged_content_is_read_as_protobuf_reads_it() -> None:
    drawn = random.Random(1)
    contents = [serialize(content) for content in CONTENTS.values() if content]
    read_both = 0
    for _ in range(6000):
        damaged = bytearray(drawn.choice(contents))
        for _ in range(drawn.randint(1, 3)):
            place = drawn.randrange(min(len(damaged), 200))
            if drawn.random() < 0.5:
                damaged[place] = drawn.choice([0, 1, 10, 18, 26, 34, 127, 128, 255])
            else:
                damaged[place : place + drawn.randint(0, 3)] = drawn.randbytes(drawn.randint(0, 3))
        try:
            expected = from_proto(bytes(damaged))
        except Exception:
            with pytest.raises(Exception):  # noqa: B017, PT011 (of the same or another part)
                deserialize(damaged)
        else:
            read_both += 1
            assert to_proto(deserialize(damaged)) == to_proto(expected)
    assert read_both > 500


MOST = {"records": 3, "arrays": 2, "values": 4}


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def item(value: bytes = b"") -> bytes:
    return field(1, field(1, b"same name") + field(2, value))


@pytest.mark.parametrize(
    ("part", "one", "words"),
    [
        (lambda records: records, item(), "3 records"),
        (lambda items: field(1, field(1, b"r") + field(2, items)), item(), "2 arrays"),
        (lambda items: field(1, field(2, items)), item(), "2 arrays"),  # without a name
        (lambda items: field(1, field(3, items)), item(b"\x09" + bytes(8)), "4 values"),
        (lambda items: field(1, field(4, items)), item(b"\x09" + bytes(8)), "4 values"),
    ],
)
def test_items_are_counted_before_they_are_read(
    part: Callable[[bytes], bytes], one: bytes, words: str
) -> None:
    most = part(one * int(words[0]))
    assert deserialize(most, MOST) == deserialize(most)
    more = part(one * (int(words[0]) + 1) + b"\xff")  # the damage behind is not met
    with pytest.raises(ValueError, match=f"more than {words}, the limit"):
        deserialize(more, MOST)


@pytest.mark.parametrize(
    "strange",
    [
        field(2, field(1, b"int8")) + field(1, b"k"),  # the value comes before its name
        field(1, b"k") + field(2, field(2, b"\x01" * 65)),  # it has 65 dimensions
    ],
)
def test_counted_content_is_written_as_flower_writes_it(strange: bytes) -> None:
    written = field(1, field(1, b"r") + field(2, field(1, strange)))
    assert [*deserialize(written)["r"]] == ["k"]
    with pytest.raises(UnusualError, match="as Flower writes it"):
        deserialize(written, MOST)


def test_arrays_are_neither_written_nor_read_by_copies() -> None:
    array = Array(np.arange(1000.0))
    pieces = serialize_in_pieces(RecordDict({"arrays": ArrayRecord({"w": array})}))
    sent = np.frombuffer(array.data, np.uint8)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), sent) for piece in pieces)
    data = b"".join(pieces)
    values = read_values(deserialize(data).array_records["arrays"]["w"])
    assert np.shares_memory(values, np.frombuffer(data, np.uint8))
    assert not values.flags.writeable
    np.testing.assert_array_equal(values, np.arange(1000.0))


def test_a_borrowed_array_is_an_array_of_flower() -> None:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(4, dtype=">f4"))})})
    read = deserialize(serialize(content))
    array = read.array_records["arrays"]["w"]
    assert isinstance(array.data, bytes)
    assert array.numpy().flags.writeable
    np.testing.assert_array_equal(array.numpy(), np.arange(4))
    assert copy.deepcopy(read) == pickle.loads(pickle.dumps(read)) == read == content  # noqa: S301
    assert array != Array(np.arange(5, dtype=">f4"))
    assert array != 1
    with pytest.raises(TypeError):
        deserialize(serialize(CONTENTS["odd arrays"])).array_records["r"]["x"].numpy()
