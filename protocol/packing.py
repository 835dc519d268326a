"""A message's content in few parts, between a server and an app that says that it can.

Flower sends each array of a model as two objects, each record as one, and asks for every object by a separate call:
130 calls for a message with a ResNet-18. Packed, all records of a content are one text of bytes, in pieces of 4 MiB.

A client's replies say whether its app packs. Only then is it sent packed messages; it answers them packed.
"""

from collections.abc import Mapping
from typing import Any

PACKS = "packs"
"""In the record `client` of a reply, this says that the app takes packed messages."""

PACKED, BYTES = "packed", "bytes"
"""The records packed, packed-1, packed-2, … hold the pieces, each by the key bytes."""

PIECE_BYTES = 4 << 20
"""Bytes of a piece, the last one aside. A SuperLink takes calls of up to 16 MiB."""

MAX_PACKED_BYTES = 1 << 30
"""A message with more bytes of arrays is not packed: protobuf writes 2 GiB at most, and packing copies."""


def pieces(content: bytes) -> dict[str, dict[str, bytes]]:
    """Return the records that hold a content."""
    parts = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
    return {name_of(number): {BYTES: part} for number, part in enumerate(parts)}


def join_pieces(records: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the content that records hold; raise ValueError where there are other records, or they hold no bytes."""
    parts = [records.get(name_of(number), {}).get(BYTES) for number in range(len(records))]
    if not all(isinstance(part, bytes) for part in parts):
        raise ValueError("a packed content has a piece that is missing, or holds no bytes")
    return b"".join(part for part in parts if part is not None)


def name_of(number: int) -> str:
    """Return the name of a record with a piece."""
    return f"{PACKED}-{number}" if number else PACKED
