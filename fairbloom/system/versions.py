"""Versions of states in a folder, each with a checksum, and sealed files.

A device keeps digests of its rows under a secret of its own, in one folder of its state: with the
letters that have left (`deploy.device.today`), and with the sides of rows (`tasks.sides`). Each
of these files begins with a check of the secret: under another one, no row would be known.

The process of a device imports this module, which therefore loads no large library.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import NamedTuple

from blake3 import blake3

from fairbloom.errors import ReportableError
from fairbloom.logs import log

from .files import make_folder, whole_file, write_private


class Point(NamedTuple):
    """A point of a run at which a state may change: a round, and the work in it, from 0."""

    round: int
    work: int = 0


# The point of a state without rounds.
FIRST = Point(0)


class VersionEntry(NamedTuple):
    """A version of the state with this key, as it is stored."""

    key: str
    step: Point
    content: bytes


# The last line of a file with versions.
END = b"end\n"

# The beginning of a sealed file names the algorithm of the digest, which follows.
SEAL = b"blake3\n"
DIGEST_BYTES = 32


# The folder of what a device keeps of its rows, in its state folder.
FOLDER = "profiles"

# The secret's file in a state folder; of a client without one, its record in Flower's context.
NAME = "order-secret"

# Bytes of a secret.
SIZE = 32


class Place(NamedTuple):
    """Where the content of a version is, and its digest; see `digest_of`."""

    file: Path
    start: int
    size: int
    digest: str


class Versions:
    """The versions of states in a folder, by the key of a state and the step that made a version.

    A file has the versions that are written together: one on a device, and in one process all
    clients' at a checkpoint. In front of each is a line with its key, step, size and digest, so
    that damage costs few versions. Of several versions of a step, the last counts. One process at a
    time writes a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, dict[Point, Place]] = {}
        self._counts: dict[Path, int] = {}
        for number in self._numbers():
            self._index(self._path(number))

    def steps(self, key: str) -> list[Point]:
        """Return the steps that have made a version of a state, in order."""
        return sorted(self._places.get(key, ()))

    def read(self, key: str, step: Point) -> bytes | None:
        """Return a version, or None if it is missing or damaged; a damaged one is left out."""
        place = self._places.get(key, {}).get(step)
        if place is None:
            return None
        with place.file.open("rb") as file:
            file.seek(place.start)
            content = file.read(place.size)
        if digest_of(key, step, content) == place.digest:
            return content
        log.warning("%s is damaged: %s of round %d is lost", place.file, key, step.round)
        del self._places[key][step]
        return None

    def last(self, key: str) -> tuple[Point, bytes] | None:
        """Return the last undamaged version and its step, or None."""
        return next(
            (
                (step, content)
                for step in reversed(self.steps(key))
                if (content := self.read(key, step)) is not None
            ),
            None,
        )

    def write(self, versions: Iterable[VersionEntry]) -> None:
        """Write versions to the next file, one after the other."""
        make_folder(self.folder)
        file = self._path(max(self._numbers(), default=0) + 1)
        with whole_file(file, 0o600) as opened:
            for key, step, content in versions:
                head = [key, *step, len(content), digest_of(key, step, content)]
                opened.writelines([json.dumps(head).encode(), b"\n", content])
            opened.write(END)
        self._index(file)

    def retain(self, key: str, steps: Collection[Point]) -> None:
        """Keep only these steps' versions of a state; see `tidy`."""
        for step in self.steps(key):
            if step not in steps:
                del self._places[key][step]

    def tidy(self) -> None:
        """Remove files without a version in use; write the others anew if most is not in use."""
        used = Counter(place.file for each in self._places.values() for place in each.values())
        for file in self._counts.keys() - used.keys():
            del self._counts[file]
            file.unlink(missing_ok=True)
        for draft in self.folder.glob(".*.draft"):  # of a process that was killed
            draft.unlink(missing_ok=True)
        if 2 * used.total() < sum(self._counts.values()):
            with suppress(OSError):  # the versions stay in their files: a full disk loses none
                self.write(
                    VersionEntry(key, step, content)
                    for key in self._places
                    for step in self.steps(key)
                    if (content := self.read(key, step)) is not None
                )
                self.tidy()

    def rewind(self, key: str, step: Point) -> tuple[Point, bytes] | None:
        """Remove the versions from a step on; return the last one before it, or None."""
        self.retain(key, [made for made in self.steps(key) if made < step])
        self.tidy()
        return self.last(key)

    def save(self, key: str, step: Point, content: bytes) -> None:
        """Write the version of a step, and remove those that no repeated round needs.

        The run may have to repeat the round before the last.
        """
        self.write([VersionEntry(key, step, content)])
        self.retain(key, needed_since(self.steps(key), step.round - 1))
        self.tidy()

    def _index(self, file: Path) -> None:
        """Note the versions in a file, up to the first line that is damaged."""
        self._counts[file] = 0
        with file.open("rb") as opened:
            for line in iter(opened.readline, END):
                try:
                    key, number, work, size, digest = json.loads(line)
                    start = opened.tell()
                    opened.seek(start + size)
                except (ValueError, TypeError, OSError, RecursionError):  # what damage causes
                    log.warning(
                        "%s is damaged: its versions from byte %d on are lost", file, opened.tell()
                    )
                    return
                self._places.setdefault(key, {})[Point(number, work)] = Place(
                    file, start, size, digest
                )
                self._counts[file] += 1

    def _numbers(self) -> list[int]:
        """Return the numbers of the files, in ascending order."""
        return sorted(
            int(path.stem) for path in self.folder.glob("[0-9]*.versions") if path.stem.isdecimal()
        )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.versions"


def digest_of(key: str, step: Point, content: bytes) -> str:
    """Return the digest of a version, after the name of its algorithm."""
    digest = blake3(json.dumps([key, *step]).encode())
    digest.update(content)
    return f"blake3 {digest.hexdigest()}"


def needed_since(steps: Iterable[Point], number: int) -> list[Point]:
    """Return the steps with a version that a run may need which goes back to round `number`.

    Repeated work begins with the version that it had the first time: the steps since that round,
    and the last one before it.
    """
    ordered = sorted(steps)
    earlier = [step for step in ordered if step.round < number]
    return earlier[-1:] + ordered[len(earlier) :]


def write_sealed(
    file: Path, head: bytes, rest: bytes | bytearray | memoryview, *, durable: bool = True
) -> None:
    """Write a head after its digest and size, then the rest, which has no digest of its own.

    The file is for this account only; see `whole_file`.
    """
    with whole_file(file, 0o600, durable=durable) as opened:
        opened.writelines([SEAL, blake3(head).digest(), len(head).to_bytes(4, "big"), head, rest])


def read_sealed(file: Path, loss: str) -> tuple[bytes, bytes]:
    """Return head and rest of a sealed file; b"" for both if it is missing or damaged.

    Damage of the head is logged, with the `loss` that it means. A file with another seal is of
    another version, and is left out too.
    """
    kept = file.read_bytes() if file.exists() else b""
    if not kept.startswith(SEAL):
        return b"", b""
    start = len(SEAL) + DIGEST_BYTES + 4
    end = start + int.from_bytes(kept[start - 4 : start], "big")
    head = kept[start:end]
    if blake3(head).digest() != kept[len(SEAL) : start - 4]:
        log.error("%s is damaged: %s", file, loss)
        return b"", b""
    return head, kept[end:]


def secret_of(folder: Path) -> bytes:
    """Return the secret in a state folder, of SIZE bytes; it is made if needed."""
    path = folder / NAME
    if not path.exists() or path.stat().st_size != SIZE:
        make_folder(folder)
        write_private(path, token_bytes(SIZE))
    return path.read_bytes()


def write_kept(path: Path, content: bytes, secret: bytes) -> None:
    """Write what is kept of rows into a sealed file."""
    make_folder(path.parent)
    write_sealed(path, b"\n".join([_check_of(secret), content]), b"")


def read_kept(path: Path, secret: bytes, loss: str) -> bytes:
    """Return what `write_kept` wrote, b"" if there is no such file.

    Raise ReportableError, which says what the `loss` means, if it is damaged or of another secret.
    """
    if not path.exists():
        return b""
    head, _ = read_sealed(path, loss)
    check, _, content = head.partition(b"\n")
    if check != _check_of(secret):
        fault = f"is damaged, or of another {NAME}: {loss}"
        raise ReportableError(f"{path} {fault}", f"a file in its state-dir {fault}")
    return content


def _check_of(secret: bytes) -> bytes:
    return blake3(b"profiles", key=secret).hexdigest().encode()
