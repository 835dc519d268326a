"""What a device remembers of the rows behind the numbers that have left it, without the rows.

Each row is a keyed digest of 8 bytes, and each set of rows a bit for each row that the ledger knows. The key is made
here and never leaves the device. So the ledger can say by how many rows two sets differ, and nothing of the rows.
"""

import io
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import open_locked
from fairbloom.tasks.row_digests import Digests

LEDGER = "ledger.npz"

MAX_BYTES = 64 * 2**20
"""The most bytes of a ledger: with 10,000 rows there is room for 50,000 sets of rows, with a million for 450."""


def keyed_digest(key: bytes, content: bytes) -> int:
    """Return the digest of a row's content, or of a kind, 8 bytes as a number."""
    return int.from_bytes(blake2b(content, digest_size=8, key=key).digest())


@dataclass(frozen=True, eq=False)
class Book:
    """What a ledger holds: the digests of all known rows, and which of them each set has, eight to a byte.

    Two sets are compared where their `kinds`, digests of the numbers that they are behind, are the same.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    rows: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    kinds: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    sets: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))

    def add(self, kind: str, rows: Digests, least: int, own: Sequence[Digests] = ()) -> "Book | None":
        """Return the book with one more set of rows; itself where it has that set; None where the set is too near.

        A set is too near where it shares rows with an earlier one of its kind and differs from it by 1 to `least` − 1,
        unless that is one of `own`.
        """
        known = np.concatenate([self.rows, np.setdiff1d(rows, self.rows)])
        bits = np.packbits(np.isin(known, rows))
        sets = np.pad(self.sets, ((0, 0), (0, len(bits) - self.sets.shape[1])))
        kind_digest = np.uint64(keyed_digest(self.key, kind.encode()))
        same = sets[self.kinds == kind_digest]
        apart = np.bitwise_count(same ^ bits).sum(axis=1)
        if (apart == 0).any():
            return self
        near = (apart < least) & (np.bitwise_count(same & bits).sum(axis=1) > 0)
        for each in own if near.any() else ():
            near &= (same != np.packbits(np.isin(known, each))).any(axis=1)
        if near.any():
            return None
        return replace(
            self, rows=known, kinds=np.append(self.kinds, kind_digest), sets=np.concatenate([sets, bits[None]])
        )

    def encode(self) -> bytes:
        """Return the file of a book."""
        file = io.BytesIO()
        key = np.frombuffer(self.key, np.uint8)
        np.savez(file, key=key, rows=self.rows, kinds=self.kinds, sets=self.sets)
        return file.getvalue()

    @classmethod
    def decode(cls, content: bytes) -> "Book":
        """Return what `encode` was called on; raise ValueError or KeyError for any other content."""
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found: dict[str, Any] = {name: file[name] for name in ("rows", "kinds", "sets")}
            return cls(file["key"].tobytes(), **found)


class Ledger:
    """The ledger of a device, in its state folder; without one, in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / LEDGER
        self._book = Book()
        self._remembered: set[bytes] = set()  # what is in the book, as `_mark` has it: large sets take long to compare

    def read_key(self) -> bytes:
        """Return the key of the digests, made where there is none; raise ReportableError where the file is damaged."""
        with self._held():
            return self._book.key

    def holds(self, kind: str, rows: Digests) -> bool:
        """Return whether a number of this kind and these rows has left the device."""
        with self._held():
            mark = self._mark(kind, rows)
            if mark not in self._remembered and self._book.add(kind, rows, 0) is self._book:
                self._remembered.add(mark)
            return mark in self._remembered

    def admit(self, numbers: Sequence[tuple[str, Digests]], least: int, own: Sequence[Digests] = ()) -> bool:
        """Return whether numbers may leave, each a kind and the rows behind it, and remember the rows if so.

        Two sets of one kind that share rows must differ by at least `least`; sets of the client's `own` are not
        compared. A ledger that is damaged, full or cannot be written raises ReportableError: then no number leaves.
        """
        with self._held():
            book: Book | None = self._book
            for kind, rows in numbers:
                if book is not None and self._mark(kind, rows) not in self._remembered:
                    book = book.add(kind, rows, least, own)
            if book is None:
                return False
            if book is not self._book:
                self._write(book)
            self._remembered.update(self._mark(kind, rows) for kind, rows in numbers)
            return True

    def _mark(self, kind: str, rows: Digests) -> bytes:
        """Return what stands for a set of rows in this book."""
        return blake2b(kind.encode() + b"\0" + rows.tobytes(), key=self._book.key).digest()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Have the newest book, and keep other processes from changing it."""
        if self._path is None:
            yield
            return
        make_folder(self._path.parent)
        lock = open_locked(self._path.with_suffix(".lock"), wait=True, mode=0o600)
        try:
            if self._path.exists():
                self._book = self._read(self._path)
            else:
                self._write(Book())
            yield
        finally:
            os.close(lock)

    def _read(self, path: Path) -> Book:
        try:
            return Book.decode(path.read_bytes())
        except (OSError, ValueError, KeyError, EOFError, SyntaxError) as error:
            raise ReportableError(
                f"{path} cannot be read ({error}): without it nobody knows which rows are behind earlier numbers; "
                "bring it back from a backup, or delete it to begin again",
                "its ledger of the numbers that have left it cannot be read: its own log says what its owner can do",
            ) from error

    def _write(self, book: Book) -> None:
        if self._path is not None:
            content = book.encode()
            if len(content) > MAX_BYTES:
                raise ReportableError(
                    f"{self._path} is full ({MAX_BYTES:,} bytes): delete it to begin again, if those who submit runs "
                    "may learn how numbers of earlier runs differ from later ones",
                    "its ledger of the numbers that have left it is full: its own log says what its owner can do",
                )
            try:
                write_private(self._path, content)
            except OSError as error:
                raise ReportableError(
                    f"{self._path} cannot be written ({error.strerror}): give it a disk with free space",
                    "its ledger of the numbers that leave it cannot be written: its own log says why",
                ) from error
        self._book = book
