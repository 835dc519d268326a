"""Content of messages and replies: bytes if they are few, and else a file without a name.

A file can be read in pieces, passed to another process, and mapped, without a copy as a whole.
"""

import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Self

from blake3 import blake3

from fairbloom.logs import log

from .messages import CHUNK_BYTES, Buffer, slices

# Content of at most this many bytes needs no file, and goes through pipes.
SMALL_BYTES = 64 << 10

# Bytes of content held in memory, unless federation.toml sets mailbox-memory.
MEMORY_BYTES = 256 << 20

# Larger content than this rests on the disk: services and containers limit shared memory.
MEMORY_FILE_BYTES = 64 << 20


class Content:
    """Bytes in memory or in an open file, which is closed once nothing refers to this object."""

    def __init__(self, data: Buffer = b"", file: FileIO | None = None) -> None:
        self.data = data
        self.file = file
        self.size = len(data) if file is None else os.fstat(file.fileno()).st_size

    def pieces(self) -> Iterator[Buffer]:
        """Return the bytes in pieces of at most CHUNK_BYTES; a file's are copies."""
        return slices(self.data) if self.file is None else self._read(self.file)

    def map(self) -> Buffer:
        """Return the bytes as one; a file is mapped."""
        if self.file is None:
            return self.data
        return memoryview(mmap(self.file.fileno(), self.size, prot=PROT_READ))

    def digest(self) -> bytes:
        """Return the BLAKE3 of the bytes."""
        digest = blake3()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()

    def _read(self, file: FileIO) -> Iterator[Buffer]:
        """Yield the file's bytes; as a method, it keeps the file open while they are sent."""
        for start in range(0, self.size, CHUNK_BYTES):
            yield os.pread(file.fileno(), CHUNK_BYTES, start)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


def write(
    pieces: Sequence[Buffer], open_file: Callable[[], FileIO], memory: int = MEMORY_FILE_BYTES
) -> Content:
    """Return content of these pieces; beyond `memory` bytes it is in a file of `open_file`."""
    size = sum(map(len, pieces))
    if size <= SMALL_BYTES:
        return Content(b"".join(pieces))
    if size > memory:
        try:
            return Content(file=fill(open_file(), pieces))
        except OSError as error:
            log.warning(
                "a message of %d bytes stays in memory only, as no file could be written: %s",
                size,
                error.strerror,
            )
    return Content(file=fill(open_memory_file(), pieces))


def fill(file: FileIO, pieces: Sequence[Buffer]) -> FileIO:
    """Append pieces to a file, and return it; close it if that fails."""
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:  # a single write may take only a part
                view = view[file.write(view) :]
    except BaseException:
        file.close()
        raise
    return file


def open_memory_file() -> FileIO:
    """Return a new file without a name, in memory if the system has such files."""
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("content"), "w+")
    return open_on_disk(tempfile.gettempdir())  # on macOS


def open_on_disk(folder: str) -> FileIO:
    """Return a new file without a name, in a folder."""
    return tempfile.TemporaryFile(buffering=0, dir=folder)


class MemoryBudget:
    """The memory that contents share, and the folder of files for the rest, at most `files`."""

    def __init__(self, folder: Path, memory: int = MEMORY_BYTES, files: int = 10_000) -> None:
        self.folder = folder
        self.used = 0
        self._memory = memory
        self._files = files
        self._lock = threading.Lock()  # any thread may free a content

    def take(self, size: int) -> bool:
        """Take memory; return False and take none if it is not enough, or too much for one."""
        with self._lock:
            enough = size <= min(MEMORY_FILE_BYTES, self._memory - self.used)
            self.used += size * enough
        return enough

    def give_back(self, size: int, files: int) -> None:
        """Count memory and files as free."""
        with self._lock:
            self.used -= size
            self._files += files

    def open_file(self, *, in_memory: bool) -> FileIO:
        """Return a new unnamed file; raise OSError without room or beyond the number of files."""
        if self._files <= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_memory_file() if in_memory else open_on_disk(str(self.folder))


class StoredContent(Content):
    """Content that is appended in pieces, up to a size that is known before, with its BLAKE3.

    It rests in memory if the budget has room for it, and else on the disk; `file` is kept instead
    of a new one where that is possible. Raise OSError if the disk is full.
    """

    def __init__(self, budget: MemoryBudget, size: int, file: FileIO | None = None) -> None:
        self._small = bytearray()
        super().__init__(self._small)
        self._budget = budget
        self._hash = blake3()
        in_memory = budget.take(size)
        self._held = size * in_memory
        self._files = 0
        try:
            if file is not None and (in_memory or size > MEMORY_FILE_BYTES):
                self.file = file
            elif size > SMALL_BYTES or not in_memory:
                self.file = budget.open_file(in_memory=in_memory)
        except OSError:
            if not in_memory:
                raise
        self._files = int(self.file is not None)
        budget.give_back(0, -self._files)

    @classmethod
    def of(cls, budget: MemoryBudget, content: Content) -> Self:
        """Return content that another process has passed; its file is kept if possible."""
        stored = cls(budget, content.size, content.file)
        if stored.file is not None and stored.file is content.file:
            for piece in content.pieces():
                stored._count(piece)
            content.file = None
        else:
            for piece in content.pieces():
                stored.append(piece)
        return stored

    def digest(self) -> bytes:
        """Return the BLAKE3 of the bytes so far."""
        return self._hash.digest()

    def append(self, piece: Buffer) -> None:
        """Add a piece."""
        if self.file is None:
            self._small += piece
        else:
            fill(self.file, [piece])
        self._count(piece)

    def close(self) -> None:
        """Free the memory and the file."""
        self._budget.give_back(self._held, self._files)
        self._held = 0
        self._files = 0
        self.data = b""
        super().__del__()

    def _count(self, piece: Buffer) -> None:
        self._hash.update(piece)
        self.size += len(piece)

    def __del__(self) -> None:
        self.close()
