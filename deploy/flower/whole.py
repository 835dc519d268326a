"""Messages that travel whole, or as much of them as one call of the fleet's port may have."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import exchange_pb2

LARGEST_PARTS, PART_BYTES = 14 << 20, 100
"""Most bytes of a message's tree and parts in one call, of the 16 MiB that it may have with its head, and what each
part has beside its content."""


def identifiers(tree: Any) -> Iterator[str]:
    """Give the ids of all objects of a tree."""
    left = [tree]
    while left:
        below = left.pop()
        yield below.object_id
        left.extend(below.children)


def pack_parts(contents: Mapping[str, bytes], names: Iterable[str] | None = None) -> list[Any]:
    """Return parts as they travel, by default all."""
    return [exchange_pb2.Part(id=name, content=contents[name]) for name in (contents if names is None else names)]


def room_for(parts: Mapping[str, bytes], taken: int) -> list[str]:
    """Return the parts that fit into a call, of which `taken` bytes are used."""
    chosen = list[str]()
    for name, content in parts.items():
        size = len(content) + PART_BYTES
        if taken + size <= LARGEST_PARTS:
            chosen.append(name)
            taken += size
    return chosen
