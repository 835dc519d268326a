"""Locks on files: one process at a time holds a lock, and its end releases it.

Atomic writes of files.
"""

import contextlib
import math
import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.logs import log
from fairbloom.system import lock
from fairbloom.system.files import make_folder, whole_file, write_private, write_public, write_whole
from fairbloom.system.lock import LockedError, exclusive_lock, is_held, open_locked

from .helpers import at_once, held_elsewhere


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_RETRY_SECONDS", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    with held_elsewhere(path) as process:
        yield process


def test_a_held_lock_is_refused_at_once_with_its_name(
    path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(lock.time, "sleep", sleep)
    with pytest.raises(LockedError) as refusal, exclusive_lock(path):
        pass
    assert refusal.value.holder == f"process {holder.pid} on {socket.gethostname()}"
    assert str(path) in str(refusal.value)
    assert is_held(path)


@pytest.mark.parametrize("seconds", [60.0, math.inf])
def test_who_waits_gets_the_lock_when_the_other_process_ends(
    path: Path, holder: subprocess.Popen[str], seconds: float
) -> None:
    waited_for: list[str] = []
    end_holder = holder.stdin.close

    def note(name: str) -> None:
        waited_for.append(name)
        end_holder()

    if seconds == math.inf:  # it waits in the kernel, and calls nothing
        threading.Timer(0.2, end_holder).start()
    with exclusive_lock(path, seconds=seconds, on_wait=note):
        assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert waited_for == [f"process {holder.pid} on {socket.gethostname()}"] * (seconds < math.inf)
    assert not path.exists()
    assert not is_held(path)


def test_a_killed_process_holds_no_lock(path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert path.exists()
    assert not is_held(path)
    with exclusive_lock(path):
        assert is_held(path)


def test_a_lock_is_given_back_when_the_block_fails(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive_lock(path):
        raise ZeroDivisionError
    with exclusive_lock(path):
        pass


@pytest.mark.parametrize("seconds", [60.0, math.inf])
def test_of_many_who_wait_one_at_a_time_has_the_lock(path: Path, seconds: float) -> None:
    """Each holder removes the file: a thread that has it open must open the new one."""
    inside = 0
    together = 0
    rounds = 0

    def work() -> None:
        nonlocal inside, together, rounds
        for _ in range(50):
            with exclusive_lock(path, seconds=seconds):
                inside += 1
                together = max(together, inside)
                rounds += 1
                os.sched_yield()
                inside -= 1

    at_once(4, work)
    assert (together, rounds) == (1, 200)


def test_without_waiting_only_a_holder_is_a_refusal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first holder ends after the second one has opened the file and before it locks it."""
    flock = lock.fcntl.flock
    ended = []
    first = contextlib.ExitStack()
    first.enter_context(exclusive_lock(path))

    def flock_late(descriptor: int, operation: int) -> None:
        if not ended:
            ended.append(first.close())
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", flock_late)
    with exclusive_lock(path):
        assert path.read_text().startswith(f"process {os.getpid()} ")
    assert ended


def test_a_file_that_took_the_locks_place_is_left(path: Path) -> None:
    """This happens if a folder is replaced by its backup while it is locked."""
    with exclusive_lock(path):
        path.unlink()
        path.write_text("another")
    assert path.read_text() == "another"


def test_a_forked_process_does_not_hold_on_to_a_lock(path: Path) -> None:
    read, write = os.pipe()
    with exclusive_lock(path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        with exclusive_lock(path):
            pass
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_link_in_the_files_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), exclusive_lock(path):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_system_without_locks_is_said_once_and_used(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    monkeypatch.setattr(log.parent, "propagate", True)
    for _ in range(2):
        with exclusive_lock(path):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        f"{path.parent} cannot be locked (Operation not supported): let only one process write"
        " there"
    ]


def test_an_open_file_is_locked_until_it_is_closed(path: Path) -> None:
    first = open_locked(path)
    with pytest.raises(BlockingIOError):
        open_locked(path)
    os.close(first)
    os.close(open_locked(path))


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
