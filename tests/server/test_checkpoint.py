"""Checkpoints: what goes in comes out, damage is noticed, and a file is replaced whole or not at
all.

Two processes and one run folder: the second says who has it, at once or after a minute in which
it waits.
"""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from fairbloom.server.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    load_last,
    load_model,
    save_checkpoint,
    save_model,
    save_round,
)
from fairbloom.server.run_folder import lock as folder_lock
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.simulation.run import simulate
from fairbloom.system import lock
from fairbloom.system.sealed import DamagedFileError
from tests.simulation.helpers import Outcome, run, small
from tests.system.helpers import held_elsewhere

arrays = arrays_of.arrays(
    st.sampled_from((np.float32, np.float64, np.int64, np.uint8, np.bool_)),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
names = st.text(max_size=8)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names
states = st.recursive(
    plain | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def assert_same(one: Any, other: Any) -> None:
    """Compare two states, arrays by dtype, shape and bits."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """Let no file grow beyond `free` bytes; Python ignores the signal, so that writing raises
    OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


hooked: list[bool] = []
looking: list[tuple[str, Callable[[], None]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event in ("os.rename", "os.remove")
        and looking
        and str(arguments[0]).startswith(looking[0][0])
    ):
        folder, look = looking.pop()  # files that the look itself opens are not looked at
        look()
        looking.append((folder, look))


@contextmanager
def watched(folder: Path, look: Callable[[], None]) -> Iterator[None]:
    """Look at a folder before a file in it is renamed or removed; a hook cannot be taken away, so
    there is one."""
    if not hooked:
        sys.addaudithook(_audit)
        hooked.append(True)
    looking.append((str(folder), look))
    yield
    looking.clear()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint") / "round.safetensors"


@given(
    model=st.dictionaries(names, arrays, max_size=3),
    state=st.dictionaries(names, states, max_size=4),
)
def test_model_and_state_come_back_as_they_were(
    path: Path, model: dict[str, NDArray[Any]], state: dict[str, Any]
) -> None:
    save_checkpoint(path, model, state)
    assert_same(load_checkpoint(path), (model, state))


def test_arrays_that_are_views_come_back_by_value(path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    save_checkpoint(path, {"w": whole.T, "v": whole[::2, 1::3]}, {"row": whole[:, 2]})
    model, state = load_checkpoint(path)
    np.testing.assert_array_equal(model["w"], whole.T)
    np.testing.assert_array_equal(model["v"], whole[::2, 1::3])
    np.testing.assert_array_equal(state["row"], whole[:, 2])


def test_a_model_file_can_be_read_by_anyone(path: Path) -> None:
    save_model(path, {"w": np.eye(2, dtype=np.float32)}, {"round": 7, "mean": 61.5})
    with safe_open(path, framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("w"), np.eye(2))
        assert json.loads(file.metadata()["about"]).items() > {"round": 7, "mean": 61.5}.items()


def test_the_same_model_is_the_same_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(20)]
    for file in files:
        save_model(file, {"w": np.eye(2), "b": np.ones(2)}, {"round": 7, "mean": 61.5, "seed": 0})
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("free", [0, 1, 100, 1000, 8000])
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, free: int) -> None:
    path = tmp_path / "round.safetensors"
    save_checkpoint(path, {"w": np.ones(4)}, {"round": 1})
    before = path.read_bytes()
    with full_disk(free), pytest.raises(OSError, match="File too large"):
        save_checkpoint(path, {"w": np.ones(1000)}, {"round": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TypeError):
        save_checkpoint(path, {}, {"round": object()})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    save_checkpoint(path, {"w": np.ones(1000)}, {"round": 2})
    assert load_checkpoint(path)[1] == {"round": 2}


# Damage -------------------------------------------------------------------------------------------

CONTENT: tuple[dict[str, NDArray[Any]], dict[str, Any]] = (
    {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)},
    {"round": 7, "rows": [np.array([1, 2, 3])], "loss": 0.1},
)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "7.safetensors", *CONTENT)
    return tmp_path / "7.safetensors"


def test_a_checkpoint_cut_off_anywhere_is_damaged(whole: Path, subtests: pytest.Subtests) -> None:
    content = whole.read_bytes()
    for length in range(len(content)):
        with subtests.test(length=length):
            whole.write_bytes(content[:length])
            with pytest.raises(
                DamagedFileError,
                match=f"is damaged: it is {'no whole file' if length else 'empty'}",
            ):
                load_checkpoint(whole)


def test_a_flipped_bit_in_any_byte_is_noticed_or_changes_nothing(whole: Path) -> None:
    """Bits of the padding after the header, and of letters that JSON reads alike, mean nothing."""
    content = whole.read_bytes()
    unnoticed = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        whole.write_bytes(damaged)
        try:
            loaded = load_checkpoint(whole)
        except DamagedFileError:
            continue
        unnoticed += 1
        assert_same(loaded, CONTENT)
    assert unnoticed < 20


@pytest.mark.parametrize(
    "content",
    [
        *(bytes(4096), b"\x89PNG\r\n" * 100, b"{}", b"\xff" * 8),
        *(  # another program's
            save({"w": np.zeros(3)}, metadata=metadata)
            for metadata in (
                None,
                {},
                {"about": "[]"},
                {"about": "{}"},
                {"about": '{"blake3": "0"}'},
            )
        ),
    ],
    ids=range(9),
)
def test_something_else_in_place_of_a_checkpoint_is_damage(whole: Path, content: bytes) -> None:
    whole.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"7\.safetensors is damaged"):
        load_checkpoint(whole)


def test_a_folder_in_place_of_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "7.safetensors").mkdir()
    with pytest.raises(DamagedFileError, match=r"7\.safetensors cannot be read"):
        load_checkpoint(tmp_path / "7.safetensors")


@pytest.mark.parametrize(
    "changed",
    [
        {"a": np.ones(2), "b": np.zeros(2)},
        {"c": np.arange(4.0)},
        {"c": np.arange(4.0).reshape(2, 2).view(np.int64)},
    ],
    ids=["exchanged", "reshaped", "another type"],
)
def test_two_models_exchanged_array_by_array_are_noticed(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The checksum is of names and shapes too, not of the bytes alone."""
    path = tmp_path / "model.safetensors"
    arrays = {"a": np.zeros(2), "b": np.ones(2), "c": np.arange(4.0).reshape(2, 2)}
    save_model(path, arrays, {})
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    path.write_bytes(save({**arrays, **changed}, metadata=metadata))
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        load_model(path)


# The last two -------------------------------------------------------------------------------------


def save_rounds(folder: Path, *numbers: int, after: int = 0) -> None:
    """Save the checkpoints of rounds of a run that goes on after round `after`."""
    for before, number in pairwise((after, *numbers)):
        save_round(folder, number, {"w": np.full(3, number)}, {"round": number}, before)


def rounds_kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    save_rounds(tmp_path, 1, 2, 5, 7, 10, 11)
    assert rounds_kept(tmp_path) == ["10.safetensors", "11.safetensors"]
    last = load_last(tmp_path)
    assert last is not None
    assert_same(last, ({"w": np.full(3, 11)}, {"round": 11}))


def test_the_checkpoint_before_a_damaged_one_is_loaded(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    save_rounds(tmp_path, 9, 10)
    (tmp_path / "10.safetensors").write_bytes(b"")
    assert load_last(tmp_path)[1] == {"round": 9}
    ((level, words),) = {(record.levelname, record.getMessage()) for record in said.records}
    assert level == "WARNING"
    assert f"{tmp_path}/10.safetensors is damaged" in words
    assert "9.safetensors" in words


def test_the_intact_checkpoint_is_kept_while_the_next_is_written(tmp_path: Path) -> None:
    save_rounds(tmp_path, 1, 2)
    (tmp_path / "2.safetensors").write_bytes(b"")
    with full_disk(10), pytest.raises(OSError, match="File too large"):
        save_rounds(tmp_path, 2, after=1)
    assert load_last(tmp_path)[1] == {"round": 1}
    save_rounds(tmp_path, 2, after=1)
    assert rounds_kept(tmp_path) == ["1.safetensors", "2.safetensors"]


@pytest.mark.parametrize("again", [3, 5, 8])
def test_a_damaged_checkpoint_goes_after_the_next_intact_one(tmp_path: Path, again: int) -> None:
    """Rounds share checkpoints by the time they take, so that the next one is rarely of the damaged
    one's round."""
    folder = tmp_path / str(again)
    folder.mkdir()
    save_rounds(folder, 2, 5)
    (folder / "5.safetensors").write_bytes(b"")
    save_rounds(folder, again, after=2)
    assert rounds_kept(folder) == ["2.safetensors", f"{again}.safetensors"]


def test_a_folder_of_damaged_checkpoints_is_refused(tmp_path: Path) -> None:
    save_rounds(tmp_path, 4, 5)
    for name in ("4.safetensors", "5.safetensors"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    with pytest.raises(RunFolderError) as refusal:
        load_last(tmp_path)
    faults = [
        f"{tmp_path}/{number}.safetensors is damaged: it is no whole file" for number in (5, 4)
    ]
    remedy = "Put back a copy, or choose another folder (--out) to begin again"
    assert str(refusal.value) == f"the run cannot be continued: {'; '.join(faults)}. {remedy}"


@pytest.mark.parametrize("name", ["round.safetensors", ".7.safetensors.draft", "notes"])
def test_a_folder_without_checkpoints_has_none(tmp_path: Path, name: str) -> None:
    assert load_last(tmp_path / "no-folder") is None
    assert load_last(tmp_path) is None
    (tmp_path / name).write_text("")
    assert load_last(tmp_path) is None


def test_an_interrupted_save_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    """The file system is looked at before each of its changes, as a killed process would leave
    it."""
    looks: list[list[int]] = []

    def look() -> None:
        looks.append([load_checkpoint(path)[1]["round"] for path in list_checkpoints(tmp_path)])

    with watched(tmp_path, look):
        save_rounds(tmp_path, 1, 2, 3, 4)
    assert {tuple(whole) for whole in looks} == {(), (1,), (2, 1), (3, 2, 1), (3, 2), (4, 3, 2)}


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(lock, "LOCK_RETRY_SECONDS", 0.05)


@pytest.fixture
def holder(out: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to the folder until its input ends."""
    out.mkdir()
    with held_elsewhere(out / ".lock") as process:
        yield process


def test_the_second_process_names_the_first_and_changes_nothing(
    out: Path, holder: subprocess.Popen[str], said: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunFolderError) as refusal, locked_folder(out):
        pass
    who = f"process {holder.pid} on {socket.gethostname()}"
    assert (
        str(refusal.value)
        == f"{out} is written by {who}: wait for it to end, or choose another folder (--out)"
    )
    assert [*dict.fromkeys(words for words in said.messages if "written by" in words)] == [
        f"{out} is written by {who}: waiting up to a minute for it to end"
    ]
    assert [path.name for path in out.iterdir()] == [".lock"]


def test_two_runs_at_once_in_one_process_do_not_write_together(out: Path) -> None:
    refused: list[str] = []

    def second(recorded: object) -> None:
        with pytest.raises(RunFolderError, match=f"is written by process {os.getpid()} on"):
            simulate(small(out, num_rounds=2))
        refused.append("refused")

    simulate(small(out, num_rounds=2), second)
    assert refused == ["refused", "refused"]
    assert not Outcome.of(out).differences(Outcome.of(run(out.with_name("alone"), num_rounds=2)))


def test_a_finished_run_in_an_unlockable_folder_is_shown(out: Path) -> None:
    run(out, num_rounds=2)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with locked_folder(out):
        assert simulate(small(out, num_rounds=2)) == out
    assert {path: path.stat().st_mtime_ns for path in before if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }
