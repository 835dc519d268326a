"""Files that a person writes, by whatever editor."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fairbloom.system import retry
from fairbloom.system.files import (
    append_line,
    make_folder,
    read_toml,
    write_private,
    write_public,
    write_whole,
)
from fairbloom.system.retry import deadline, retrying_writes

WRITTEN = '# Bärn\ndata-dir = "/srv/nörd"\n[limits]\nrows = 9\n'

# As Notepad and PowerShell write texts, and most others do.
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_mark_and_line_ends_change_nothing(tmp_path: Path, encoding: str, end: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    file = tmp_path / "owner.toml"
    file.write_bytes((mark + WRITTEN.replace("\n", end)).encode(encoding))
    assert read_toml(file) == {"data-dir": "/srv/nörd", "limits": {"rows": 9}}


@pytest.mark.parametrize(
    "content",
    [WRITTEN.encode("latin-1"), WRITTEN.encode("utf-16-le"), b"a = " + b"[" * 9_999, b"\xff\xfea"],
)
def test_what_is_no_toml_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owner.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_toml(tmp_path / "owner.toml")


# A full disk --------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Path], None]] = {
    "private": lambda folder: write_private(folder / "new", b"line\n"),
    "public": lambda folder: write_public(folder / "new", b"line\n"),
    "whole": lambda folder: write_whole(folder / "new", b"line\n"),
    "line": lambda folder: append_line(folder / "new", b"line"),
    "folder": lambda folder: make_folder(folder / "new" / "below"),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_waits_for_room_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Outside of such a block, and once the time is over, it fails at once."""
    sync = os.fsync
    refusals = iter([True, True])

    def fsync(descriptor: int) -> None:
        if next(refusals, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(os, "fsync", fsync)
    with retrying_writes(deadline(60.0)):
        WRITES[kind](tmp_path)
    assert next(refusals, None) is None
    made = tmp_path / "new"
    assert made.is_dir() if kind == "folder" else made.read_bytes().endswith(b"line\n")
    for name, block in (("outside", nullcontext()), ("late", retrying_writes(deadline(-1.0)))):
        again = tmp_path / name
        again.mkdir()
        refusals = iter([True])
        with block, pytest.raises(OSError, match="No space left"):
            WRITES[kind](again)
