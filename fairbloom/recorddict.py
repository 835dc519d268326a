"""Flower's wire format of a RecordDict, with arrays that are written and read without copies.

Protocol Buffers would copy each array as a message is made, written, parsed and read. This module
writes and reads the arrays' parts of the format, and leaves all else to Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from .flower import from_proto, to_proto

# Most bytes of the head of an array's file (numpy.save) that NumPy reads.
HEAD_BYTES = 10_100

# From this number on, Protocol Buffers reads a size of an array as a negative one.
SIZES = 1 << 31

EMPTY = memoryview(b"")

# The type of a field on the wire that has a length and then bytes.
WITH_LENGTH = 2

# Most dimensions of a NumPy array.
MAX_DIMENSIONS = 64

# The name of what is counted in a content (0), and in its records by their field on the wire.
COUNTED: Mapping[int, str] = {0: "records", 2: "arrays", 3: "values", 4: "values"}


class BorrowedArray(Array):
    """An array of which the bytes are part of a received message, and are copied when asked for."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, view: memoryview) -> None:
        self.dtype = dtype
        self.shape = shape
        self.stype = stype
        self.view = view

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """A copy of the bytes."""
        return bytes(self.view)

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the values."""
        return np.array(read_values(self)) if self.stype == "numpy.ndarray" else super().numpy()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.stype, self.view) == (
            other.dtype,
            other.shape,
            other.stype,
            view_of(other),
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


def view_of(array: Array) -> memoryview:
    """Return an array's bytes without a copy."""
    return array.view if isinstance(array, BorrowedArray) else memoryview(array.data)


def read_values(array: Array) -> NDArray[Any]:
    """Return the values of a Flower Array, read-only: its bytes are a file of numpy.save.

    They are copied only if their byte order is not this machine's.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, not as 'numpy.ndarray'")
    view = view_of(array)
    file = BytesIO(view[:HEAD_BYTES])
    read_header = read_array_header_1_0 if read_magic(file) == (1, 0) else read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    values = np.frombuffer(view, dtype, offset=file.tell())
    return values.astype(dtype.newbyteorder("="), copy=False).reshape(
        shape, order="F" if fortran else "C"
    )


# Writing ------------------------------------------------------------------------------------------


def serialize(content: RecordDict) -> bytes:
    """Return a message's content in Flower's wire format."""
    return b"".join(serialize_in_pieces(content))


def serialize_in_pieces(content: RecordDict) -> list[bytes | memoryview]:
    """Return what `serialize` joins: the arrays' bytes are in pieces of their own, not copied."""
    pieces: list[bytes | memoryview] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            items = [piece for key, array in record.items() for piece in _write_item(key, array)]
            size = sum(map(len, items))
            name_and_head = _write_bytes(1, name.encode()) + _head(2, size)
            pieces += [_head(1, len(name_and_head) + size) + name_and_head, *items]
        else:
            pieces.append(to_proto(RecordDict({name: record})))
    return pieces


def _write_item(key: str, array: Array) -> list[bytes | memoryview]:
    """Return an item of an ArrayRecord: all before the array's bytes, and these."""
    data = view_of(array)
    about = (
        _write_bytes(1, array.dtype.encode())
        + _write_bytes(2, b"".join(map(_write_number, array.shape)))
        + _write_bytes(3, array.stype.encode())
    )
    if data:
        about += _head(4, len(data))
    before = _write_bytes(1, key.encode()) + _head(2, len(about) + len(data)) + about
    return [_head(1, len(before) + len(data)) + before, data]


def _head(field: int, size: int) -> bytes:
    """Return what precedes the bytes of a field."""
    return bytes([field << 3 | WITH_LENGTH]) + _write_number(size)


def _write_bytes(field: int, value: bytes) -> bytes:
    """Return a field, which is left out if it is empty."""
    return _head(field, len(value)) + value if value else b""


def _write_number(number: int) -> bytes:
    """Return a number of 7 bits a byte, the lowest first; all bytes but the last are marked."""
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


# Reading ------------------------------------------------------------------------------------------


class UnusualError(ValueError):
    """Content that Flower would write in another way, or that is damaged."""


def deserialize(
    data: bytes | bytearray | memoryview, most: Mapping[str, int] | None = None
) -> RecordDict:
    """Return the content that `serialize` was given; errors are Protocol Buffers'.

    Its arrays refer to `data`, which must not change. Content that is written in another way than
    Flower's is left to Protocol Buffers.

    With `most`, raise ValueError if there are more records, or more arrays or values in one. They
    are counted before they are read, so content that is written in another way is refused, too.
    """
    view = memoryview(data)
    try:
        return _read_content(view, most or {})
    except UnusualError:
        if most:
            raise UnusualError("it is damaged, or not written as Flower writes it") from None
        return from_proto(bytes(view))


def _check_counts(parts: Mapping[int, memoryview], most: Mapping[str, int]) -> None:
    """Raise ValueError if a part has more items than it may, and count no further."""
    for field, part in parts.items():
        name = COUNTED.get(field, "")
        if name in most and sum(1 for _ in islice(_read_fields(part), most[name] + 1)) > most[name]:
            raise ValueError(f"more than {most[name]:,} {name}, the limit for this message")


def _read_content(view: memoryview, most: Mapping[str, int]) -> RecordDict:
    _check_counts({0: view}, most)
    content = RecordDict()
    for number, item, whole in _read_fields(view):
        if number != 1:
            raise UnusualError
        fields = _read_parts(item)
        _check_counts(fields, most)
        if fields.keys() == {1, 2}:
            content[_read_text(fields[1])] = _read_arrays(fields[2])
        else:
            content.update(from_proto(bytes(whole)))
    return content


def _read_arrays(view: memoryview) -> ArrayRecord:
    arrays = ArrayRecord()  # its constructor would copy the arrays
    for number, item, _ in _read_fields(view):
        fields = _read_parts(item)
        if number != 1 or fields.keys() != {1, 2}:
            raise UnusualError
        parts = _read_parts(fields[2])
        if not parts.keys() <= {1, 2, 3, 4}:
            raise UnusualError
        arrays[_read_text(fields[1])] = BorrowedArray(
            dtype=_read_text(parts.get(1, EMPTY)),
            shape=_read_shape(parts.get(2, EMPTY)),
            stype=_read_text(parts.get(3, EMPTY)),
            view=parts.get(4, EMPTY),
        )
    return arrays


def _read_parts(view: memoryview) -> dict[int, memoryview]:
    """Return the fields of a message by their numbers, of which each is larger than the last."""
    parts = dict[int, memoryview]()
    for number, value, _ in _read_fields(view):
        if number <= max(parts, default=0):
            raise UnusualError
        parts[number] = value
    return parts


def _read_fields(view: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield each field of a message: its number, its bytes, and these with what precedes them."""
    start = 0
    while start < len(view):
        size, place = _read_number(view, start + 1)
        if view[start] & 7 != WITH_LENGTH or view[start] > 127 or size > len(view) - place:
            raise UnusualError
        yield view[start] >> 3, view[place : place + size], view[start : place + size]
        start = place + size


def _read_number(view: memoryview, place: int) -> tuple[int, int]:
    """Return a number as `_write_number` writes it, and the place after it."""
    number = 0
    for shift in range(0, 35, 7):
        if place >= len(view):
            raise UnusualError
        number |= (view[place] & 127) << shift
        place += 1
        if view[place - 1] <= 127:
            return number, place
    raise UnusualError


def _read_shape(view: memoryview) -> tuple[int, ...]:
    shape = list[int]()
    place = 0
    while place < len(view):
        size, place = _read_number(view, place)
        if size >= SIZES or len(shape) == MAX_DIMENSIONS:
            raise UnusualError
        shape.append(size)
    return tuple(shape)


def _read_text(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        raise UnusualError from None
