"""Atomic and durable writes of files and folders, and bounded reads."""

import codecs
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairbloom.errors import FairbloomError

from .lock import open_locked
from .retry import retry_write

# Byte order marks that a text may begin with, and their encodings.
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

# Most bytes that `read_small` reads.
SMALL_BYTES = 1 << 20


def expand_home(place: str | Path, remedy: str = "write the whole path") -> Path:
    """Return a path with `~` replaced; raise FairbloomError, with a remedy, without a home."""
    try:
        return Path(place).expanduser()
    except RuntimeError as error:  # of a user without HOME and without an entry in /etc/passwd
        raise FairbloomError(
            f"{place}: the home folder of this user is not known: set HOME, or {remedy}"
        ) from error


@contextmanager
def whole_file(path: Path, mode: int | None = None, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that appears at `path`, complete and on disk, once the block succeeds.

    If the block raises, `path` is unchanged. The file has the permissions `mode` from the start;
    None applies the umask. If it is not `durable`, a power cut may damage it.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        descriptor = open_locked(draft, mode=0o666 if mode is None else 0o600)
    except BlockingIOError:  # another process is writing the same file: the last to end wins
        descriptor, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".draft"
        )
        draft = Path(name)
    with os.fdopen(descriptor, "wb") as file:  # locked until it is closed
        try:
            file.truncate()  # a killed process may have left bytes in the draft
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def write_whole(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically and durably: it has the old or the new content."""

    def write() -> None:
        with whole_file(path, mode) as file:
            file.write(content)

    retry_write(write, path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner from the first byte on."""
    write_whole(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by all."""
    write_whole(path, content, 0o644)


def append_line(path: Path, line: bytes) -> None:
    """Append a line durably; begin a new one if a full disk or a crash has cut off the last."""

    def append() -> None:
        with open(
            path,
            "a+b",
            buffering=0,
            opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600),
        ) as file:
            is_torn = file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            rest = (b"\n" if is_torn else b"") + line + b"\n"
            while rest:  # the system may write only a part of it
                rest = rest[os.write(file.fileno(), rest) :]
            os.fsync(file.fileno())

    retry_write(append, path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and its missing parents, for their owner only, durably."""

    def make() -> None:
        missing = [place for place in folder.parents if not place.exists()]
        # one by one: mkdir(parents=True) would give the parents the umask's mode
        for place in (*reversed(missing), folder):
            is_new = not place.exists()
            place.mkdir(mode=0o700, exist_ok=True)
            if is_new:
                sync_folder(place.parent)

    retry_write(make, folder)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, or a file's content, to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def read_small(file: Path) -> str:
    """Return a text file's content; raise OSError or ValueError if it cannot be read.

    Only a regular file of at most SMALL_BYTES is read: a pipe would block for ever, and a device
    may have no end.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > SMALL_BYTES:
        raise ValueError(f"{file} is not a file of at most {SMALL_BYTES} bytes")
    return file.read_text()


def read_text(file: Path) -> str:
    """Return the text of a person's file, with line ends as on Linux.

    It is in UTF-8, or as its byte order mark says, which Notepad and PowerShell write. Raise
    OSError or ValueError if it cannot be read.
    """
    content = file.read_bytes()
    marked = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    return content.decode(marked).replace("\r\n", "\n").replace("\r", "\n")


def read_toml(file: Path) -> dict[str, Any]:
    """Return what a person's TOML file says; raise OSError, or ValueError if it is not TOML."""
    try:
        return tomllib.loads(read_text(file))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
