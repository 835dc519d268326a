"""The states of all clients of one process, in a file for each checkpoint."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from fairbloom.client.states import PERSONAL, ClientStates, store
from fairbloom.system import versions
from fairbloom.system.files import whole_file
from fairbloom.system.versions import Versions

from .test_states import model_of, value_of

NAMES = ("a", "São Paulo", "../../b", 'c"]', "x\udcff")


class Fleet:
    """Clients that share files."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder = folder
        self.versions = Versions(folder)
        self.states = {name: ClientStates(self.versions, name, at_once=False) for name in names}

    def keep(self, number: int, *names: str, origin: int | None = None) -> None:
        """Let clients keep a version of a round; of all, if no name is given."""
        for place, (name, states) in enumerate(self.states.items()):
            if not names or name in names:
                states.keep(PERSONAL, number, model_of(number + place / 100), origin)

    def store(self, since: int) -> None:
        store(self.versions, self.states.values(), since)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def last(self, name: str, before: int = 1000) -> float | None:
        found = self.states[name].find(PERSONAL, before)
        return None if found is None else value_of(found.state)


def stored(folder: Path, *rounds: int) -> Fleet:
    fleet = Fleet(folder)
    for number in rounds:
        fleet.keep(number)
        fleet.store(since=number - 1)
    return fleet


def test_a_checkpoint_is_a_file_of_all_clients(tmp_path: Path, subtests: pytest.Subtests) -> None:
    assert stored(tmp_path, 1).files() == ["1.versions"]
    assert (tmp_path / "1.versions").stat().st_mode & 0o077 == 0
    resumed = Fleet(tmp_path)
    for place, name in enumerate(NAMES):
        with subtests.test(name=name):
            assert resumed.last(name) == pytest.approx(1 + place / 100)
            found = resumed.states[name].find(PERSONAL, 2)
            assert found.made == 1
            assert found.state["count"] == 7
    assert Fleet(tmp_path, ("nobody",)).last("nobody") is None


def test_a_version_names_the_algorithm_of_its_digest(tmp_path: Path) -> None:
    stored(tmp_path, 1)
    with (tmp_path / "1.versions").open("rb") as file:
        digest = json.loads(file.readline())[-1]
    assert re.fullmatch(r"blake3 [0-9a-f]{64}", digest)


def test_a_thousand_clients_take_one_file_and_two_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    fleet = Fleet(tmp_path, tuple(f"client-{k}" for k in range(1000)))
    for number in range(1, 9):
        fleet.keep(number, origin=number - 1)
        synced.clear()
        fleet.store(since=number - 1)
        assert len(synced) == 2  # the file, and its name
        assert len(fleet.files()) <= 3
    assert Fleet(tmp_path, tuple(fleet.states)).last("client-999") == pytest.approx(8 + 9.99)


def test_nothing_new_is_no_file(tmp_path: Path) -> None:
    fleet = stored(tmp_path, 1)
    fleet.store(since=1)
    assert fleet.files() == ["1.versions"]
    Fleet(tmp_path / "empty").store(since=0)
    assert not (tmp_path / "empty").exists()


def train_ever_fewer(fleet: Fleet, since: int = 0) -> None:
    """Let one client less train in each round, so that each file has one last version."""
    names = [*fleet.states]
    for number in range(since + 1, len(names) + 1):
        fleet.keep(number, *names[number - 1 :])
        fleet.store(since=number - 1)


MANY = tuple(f"client-{k}" for k in range(20))


def test_files_are_written_anew_once_most_is_of_no_use(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, MANY)
    train_ever_fewer(fleet)
    assert "1.versions" not in fleet.files()
    assert len(fleet.files()) < len(MANY) / 2
    resumed = Fleet(tmp_path, MANY)
    assert [resumed.last(name) for name in MANY] == pytest.approx(
        [1 + place + place / 100 for place in range(len(MANY))]
    )
    # and the version before, for the checkpoint before the last
    assert resumed.last(MANY[-1], before=len(MANY)) == pytest.approx(len(MANY) - 1 + 0.19)


def test_a_kill_at_any_file_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Before each file that is written, and before each that is removed."""

    def train(folder: Path, kill_at: int) -> int:
        """Return how often files were touched."""
        touches = 0
        remove = Path.unlink

        def touch() -> None:
            nonlocal touches
            touches += 1
            if touches == kill_at:
                raise KeyboardInterrupt

        @contextmanager
        def write(path: Path, mode: int) -> Iterator[IO[bytes]]:
            touch()
            with whole_file(path, mode) as opened:
                yield opened

        def unlink(path: Path, missing_ok: bool = False) -> None:
            touch()
            remove(path, missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(versions, "whole_file", write)
            patched.setattr(os, "fsync", lambda opened: None)  # the disk is not what this is about
            patched.setattr(Path, "unlink", unlink)
            train_ever_fewer(Fleet(folder, MANY))
        return touches

    moments = train(tmp_path / "whole", -1)
    whole = Fleet(tmp_path / "whole", MANY)
    for moment in range(1, moments + 1):
        with subtests.test(moment=moment):
            folder = tmp_path / str(moment)
            with pytest.raises(KeyboardInterrupt):
                train(folder, moment)
            resumed = Fleet(folder, MANY)
            last = max(int(resumed.last(name) or 0) for name in MANY)
            train_ever_fewer(resumed, since=max(0, last - 1))
            again = Fleet(folder, MANY)
            assert [again.last(name) for name in MANY] == [whole.last(name) for name in MANY]


def test_a_damaged_version_costs_one_client_one_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tmp_path, 3, 4)
    file = tmp_path / "2.versions"
    content = bytearray(file.read_bytes())
    content[-30] ^= 4
    file.write_bytes(content)
    resumed = Fleet(tmp_path)
    found = {name: resumed.states[name].find(PERSONAL, 5) for name in NAMES}
    assert sorted(each.made for each in found.values() if each is not None) == [3, 4, 4, 4, 4]
    assert caplog.text.count("2.versions is damaged: ") == 1


@pytest.mark.parametrize(
    ("cut", "rest"),
    [(0, b""), (20, b""), (20, bytes(20)), (0, b"not a model"), (0, b"[" * 10**5)],
)
def test_a_damaged_file_costs_its_versions_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int, rest: bytes
) -> None:
    stored(tmp_path, 3, 4)
    file = tmp_path / "2.versions"
    file.write_bytes(file.read_bytes()[:cut] + rest)
    resumed = Fleet(tmp_path)
    assert [resumed.last(name) for name in NAMES] == pytest.approx(
        [3 + place / 100 for place in range(len(NAMES))]
    )
    assert "2.versions is damaged: " in caplog.text
    (tmp_path / "1.versions").write_bytes(b"")
    assert Fleet(tmp_path).last("a") is None
    resumed.keep(4)
    resumed.store(since=3)
    assert Fleet(tmp_path).last("a") == 4.0


def test_the_same_round_again_replaces_its_version(tmp_path: Path) -> None:
    """A run that was killed after its clients' states, and before its own checkpoint."""
    stored(tmp_path, 1, 2)
    resumed = Fleet(tmp_path)
    for states in resumed.states.values():
        states.keep(PERSONAL, 2, model_of(20.0))
    resumed.store(since=1)
    again = Fleet(tmp_path)
    assert {again.last(name) for name in NAMES} == {20.0}
    assert again.last("a", before=2) == 1.0


def test_after_a_kill_a_run_finds_what_two_checkpoints_had_used(tmp_path: Path) -> None:
    """Several rounds share a checkpoint; the last reply before one of them is not used."""
    fleet = Fleet(tmp_path, ("a",))
    states = fleet.states["a"]
    for number, origin in ((1, 0), (2, 1)):
        fleet.keep(number, origin=origin)
    fleet.store(since=0)  # with the checkpoint of round 2; its reply is not used
    for number, origin in ((3, 1), (4, 3), (5, 4)):
        fleet.keep(number, origin=origin)
    assert list(states.in_memory[PERSONAL]) == [4, 5]
    # killed now, it goes back to round 2
    assert value_of(Fleet(tmp_path, ("a",)).states["a"].at(PERSONAL, 1)) == 1.0
    fleet.store(since=2)
    resumed = Fleet(tmp_path, ("a",)).states["a"]
    assert [value_of(resumed.at(PERSONAL, made)) for made in (5, 4, 1)] == [5.0, 4.0, 1.0]


def test_without_a_folder_nothing_is_stored() -> None:
    states = ClientStates(None, "a", at_once=False)
    states.keep(PERSONAL, 1, model_of(1.0))
    store(None, [states], since=0)
    assert states.find(PERSONAL, 2) is not None
    assert ClientStates(None, "a").find(PERSONAL, 2) is None
