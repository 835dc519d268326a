"""The fleet port's protocol: service, chunks, and ids of messages and clients."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .wire_pb2 import Chunk, Head

Buffer = bytes | bytearray | memoryview

SERVICE = "fairbloom.fleet.v1.Fleet"

# Most bytes of content in one chunk.
CHUNK_BYTES = 1 << 20

# Most bytes of a device's chunk with its head. The server's heads have settings and may be longer.
LARGEST_CHUNK = CHUNK_BYTES + (64 << 10)

# Most bytes of a run's settings, as JSON in UTF-8, that a device takes.
MAX_SETTINGS_BYTES = 1 << 20

# Most bytes of content that travel with the head. A slow line needs long for a chunk, and the head
# must come soon.
BYTES_WITH_HEAD = 32 << 10

# Seconds that a call for the next message is held, and between the signs of life of a device that
# works.
HELD_SECONDS = 50.0
BEAT_SECONDS = 10.0


# Longest time to live of a message: ten years.
LONGEST_SECONDS = 3.2e8


@dataclass(frozen=True)
class Start:
    """One start of a client, as each of its calls names it.

    `session` belongs to the state folder, `process` to the client's process, and `number` is raised
    in the folder by each start. Without a `process` the server cannot notice copies of the folder.
    """

    session: bytes
    process: bytes = b""
    number: int = 0


def seconds_left(head: Head) -> float:
    """Return how long a message is of use, from one second to ten years."""
    return float(min(max(1.0, head.seconds), LONGEST_SECONDS))  # in this order NaN becomes 1


def slices(data: Buffer) -> Iterator[memoryview]:
    """Return content in pieces of at most CHUNK_BYTES, which are not copied."""
    view = memoryview(data)
    return (view[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


def in_chunks(head: Head, pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """Yield a message as the calls send it: a Chunk with the head, then the pieces as they are.

    The first piece comes in the Chunk if it is small.
    """
    rest = iter(pieces)
    first = bytes(next(rest, b""))
    if len(first) <= BYTES_WITH_HEAD:
        yield Chunk(head=head, data=first).SerializeToString()
    else:
        yield Chunk(head=head).SerializeToString()
        yield first
    yield from map(bytes, rest)


def node_id_of(name: str) -> int:
    """Return a client's node id for Flower's apps: it depends only on the name."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 | 1


def id_of(*parts: object) -> str:
    """Return a reproducible message id, a hash of the parts that identify the message."""
    written = "\n".join(map(str, parts))
    return hashlib.sha256(written.encode()).hexdigest()[:32]
