"""Large content goes from process to process of one machine in a file without a name."""

import errno
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Sequence
from io import FileIO
from mmap import mmap
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.fleet.connections import list_open_files
from fairbloom.deploy.fleet.content import MEMORY_FILE_BYTES, SMALL_BYTES, open_on_disk, write
from fairbloom.deploy.fleet.messages import Buffer
from fairbloom.deploy.fleet.passing import receive, send

LARGE: list[Buffer] = [b"a" * SMALL_BYTES, memoryview(b"b")]


def passed(pieces: Sequence[Buffer], folder: Path) -> tuple[Any, Buffer]:
    """Return what another end of a pipe receives."""
    ours, theirs = Pipe()
    with ours, theirs:
        given = [write(pieces, lambda: open_on_disk(str(folder)))]
        sender = threading.Thread(target=send, args=(ours, "head", given))
        sender.start()
        head, (content,) = receive(theirs)
        sender.join()
    return head, content.map()


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES])
def test_small_content_goes_through_the_pipe(size: int, tmp_path: Path) -> None:
    half = size // 2
    head, content = passed([b"x" * half, b"y" * (size - half)], tmp_path)
    assert (head, content) == ("head", b"x" * half + b"y" * (size - half))


def test_large_content_is_mapped_and_its_file_closed(tmp_path: Path) -> None:
    before = list_open_files()
    head, content = passed(LARGE, tmp_path)
    assert (head, bytes(content)) == ("head", b"".join(LARGE))
    assert isinstance(content, memoryview)
    assert isinstance(content.obj, mmap)
    assert content.readonly
    # the map keeps a file of its own open until the content is freed
    del content
    assert len(list_open_files()) == len(before)


def test_content_beyond_the_limit_rests_on_the_disk(tmp_path: Path) -> None:
    opened = list[str]()

    def note() -> FileIO:
        opened.append("opened")
        return open_on_disk(str(tmp_path))

    limit = SMALL_BYTES + 1
    assert bytes(write(LARGE, note, limit).map()) == b"".join(LARGE)
    assert opened == []  # exactly the limit
    assert bytes(write([*LARGE, b"c"], note, limit).map()) == b"".join(LARGE) + b"c"
    assert opened == ["opened"]
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(bytes(data[:600]))

    before = len(list_open_files())
    content = write(LARGE, lambda: Full(tmp_path / "file", "w"), 0)
    assert bytes(content.map()) == b"".join(LARGE)
    assert [record.message for record in caplog.records] == [
        f"a message of {SMALL_BYTES + 1} bytes stays in memory only, as no file could be written:"
        " No space left on device"
    ]
    del content
    assert len(list_open_files()) == before


def test_a_system_without_memory_files_uses_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert passed(LARGE, tmp_path)[1] == b"".join(LARGE)


def test_what_is_passed_is_copied_into_the_file_only(tmp_path: Path) -> None:
    pieces = [bytes(1 << 20) for _ in range(8)]
    assert sum(map(len, pieces)) < MEMORY_FILE_BYTES
    tracemalloc.start()
    _, content = passed(pieces, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(content) == 8 << 20
    assert peak < 1 << 20
