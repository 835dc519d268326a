"""Atomic writes of files."""

import os
import stat
import threading
from pathlib import Path

import pytest

from fairbloom.system.files import (
    make_folder,
    whole_file,
    write_private,
    write_public,
    write_whole,
)


def test_a_reader_sees_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = b"a" * 100_000
    new = b"b" * 100_000
    write_private(path, old)
    over = threading.Event()
    seen = set[bytes]()

    def look() -> None:
        while not over.is_set():
            seen.add(path.read_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(20):
        write_private(path, new)
        write_private(path, old)
    over.set()
    looking.join()
    assert seen <= {old, new}


def test_of_two_writers_at_once_the_last_to_end_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with whole_file(path) as first:
        first.write(b"first")
        with whole_file(path) as second:
            second.write(b"second, which is longer")
        assert path.read_bytes() == b"second, which is longer"
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_a_killed_writers_draft_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".table.draft").write_bytes(b"much that was never finished")
    write_whole(tmp_path / "table", b"new")
    assert (tmp_path / "table").read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    write_private(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_link_in_the_drafts_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".table.draft").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "table", b"new")
    assert (tmp_path / "precious").read_text() == "precious"


def test_permissions_are_never_wider_than_asked_for(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    modes: list[int] = []
    for mode in (0o600, 0o644):
        with subtests.test(mode=mode):
            with whole_file(tmp_path / str(mode), mode) as file:
                modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    assert modes == [0o600, 0o600]
    assert [stat.S_IMODE((tmp_path / str(mode)).stat().st_mode) for mode in (0o600, 0o644)] == [
        0o600,
        0o644,
    ]
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "by-umask", b"")
        write_public(tmp_path / "public", b"")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("by-umask", "public")] == [
        0o640,
        0o644,
    ]


def test_each_new_folder_on_the_way_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_folder(tmp_path / "a/b/c")
        make_folder(tmp_path / "a/b/c")
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file/below")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
