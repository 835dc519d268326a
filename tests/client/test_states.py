"""The states of clients: their folders, atomic writes, and damaged files.

The states of all clients of one process, in a file for each checkpoint.
"""

import logging
import os
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors import safe_open

from fairbloom.client import archive
from fairbloom.client.app import load_states, save_states
from fairbloom.client.archive import Archive, ArchivedStates
from fairbloom.client.states import PERSONAL, ClientStates, StateDict, folder_name, folder_of
from fairbloom.errors import ReportableError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.files import write_private
from tests.tasks.tables import csv_of

HOSTILE = (
    "../../../outside",
    "/outside",
    "..",
    ".",
    "a/b",
    "a\\b",
    "x\x00y",
    "line\nbreak",
    "%41",
    "",
    "ä" * 200,
)


def model_of(value: float) -> StateDict:
    return {"weight": torch.full((3, 4), value), "count": torch.tensor(7)}


def stored(folder: Path, *rounds: int) -> ClientStates:
    personal = ClientStates(folder)
    for number in rounds:
        personal.keep(PERSONAL, number, model_of(float(number)))
    return personal


def test_no_name_is_a_path_and_each_has_its_own_folder(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ("site-a", "São Paulo", "ward 3 (east)", "a.b", "12", "x\udcff"):
        with subtests.test(name=name):
            assert folder_name(name) == name
    names = [folder_name(name) for name in HOSTILE]
    assert len(set(names)) == len(HOSTILE)
    for name in names:
        with subtests.test(name=name):
            assert name == Path(name).name
            (tmp_path / name).mkdir()
    assert len(list(tmp_path.iterdir())) == len(HOSTILE)
    for client, run in ((HOSTILE[0], "x"), ("site-a", HOSTILE[0])):
        with subtests.test(client=client, run=run):
            folder = folder_of({"state-dir": str(tmp_path), "fingerprint": run}, client)
            assert folder is not None
            assert folder.resolve().is_relative_to(tmp_path)


def test_a_name_like_a_path_writes_nothing_outside_the_folder(tmp_path: Path) -> None:
    header, *lines = csv_of(40).splitlines()
    sites = ("../../../outside", "lund")
    rows = [f"{sites[k % 4 < 2]},{line}" for k, line in enumerate(lines)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "all.csv").write_text("\n".join([f"site,{header}", *rows]) + "\n")
    out = tmp_path / "deep" / "runs" / "a"
    base = {
        "task": "csv",
        "data-dir": str(tmp_path / "data" / "all.csv"),
        "csv.client": "site",
        "method": "ditto",
    }
    simulate(
        Settings.of({**base, "num-rounds": 2, "fraction": 1.0, "device": "cpu", "out": str(out)})
    )
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in written if not path.is_relative_to(out)} == {
        tmp_path / "data" / "all.csv"
    }
    assert len([path for path in written if path.parent.parent.name == "clients"]) >= 1


def test_a_damaged_model_is_passed_over_for_the_one_before_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    stored(tmp_path / "whole", 4)
    content = (tmp_path / "whole" / "4.safetensors").read_bytes()
    half = len(content) - 20
    flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    for place, damaged in enumerate(
        (b"", content[:half], content[:half] + bytes(20), flipped, b"not a model")
    ):
        with subtests.test(place=place, damaged=damaged):
            folder = tmp_path / str(place)
            stored(folder, 3, 4)
            (folder / "4.safetensors").write_bytes(damaged)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "flwr"):
                found = ClientStates(folder).find(PERSONAL, 5)
            assert found is not None
            assert found.made == 3
            assert torch.equal(found.state["weight"], torch.full((3, 4), 3.0))
            assert "4.damaged is damaged" in caplog.text
    (folder / "3.safetensors").write_bytes(b"")
    assert ClientStates(folder).find(PERSONAL, 5) is None


def test_a_model_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders above it, its bytes, and its name, in this order."""
    done: list[str] = []
    sync = os.fsync
    rename = Path.replace

    def noted(opened: int) -> None:
        done.append("sync " + Path(f"/proc/self/fd/{opened}").resolve().name)
        sync(opened)

    def renamed(draft: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return rename(draft, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not say which file a descriptor is of")
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", renamed)
    stored(tmp_path / "run" / "site-a", 1)
    draft = ".1.safetensors.draft"
    assert done == [
        f"sync {tmp_path.name}",
        "sync run",
        f"sync {draft}",
        "rename to 1.safetensors",
        "sync site-a",
    ]


def test_a_write_that_is_cut_off_leaves_the_earlier_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    personal = stored(tmp_path, 1, 2)
    (tmp_path / ".3.safetensors.draft").write_bytes(b"of a killed process")

    def full(opened: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(ReportableError, match="No space left"):
            personal.keep(PERSONAL, 3, model_of(3.0))
    restarted = ClientStates(tmp_path)
    assert value_of(restarted.at(PERSONAL, 2)) == 2.0
    assert restarted.at(PERSONAL, 3) is None
    (tmp_path / ".3.safetensors.draft").write_bytes(b"of a killed process")
    restarted.keep(PERSONAL, 3, model_of(3.0))
    assert {path.name for path in tmp_path.iterdir()} == {
        "1.safetensors",
        "2.safetensors",
        "3.safetensors",
    }


# Versions that go on from the one that the server has used ----------------------------------------


def rounds_in(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.glob("*.safetensors")}


def value_of(state: StateDict | None) -> float | None:
    return None if state is None else float(state["weight"][0, 0])


def test_the_versions_before_and_after_the_last_reply_are_kept(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    for number, origin in ((1, 0), (4, 1), (6, 4)):
        kept.keep(PERSONAL, number, model_of(float(number)), origin)
    assert list(kept.in_memory[PERSONAL]) == [4, 6]
    restarted = ClientStates(tmp_path)
    found = [value_of(restarted.at(PERSONAL, made)) for made in (4, 6, 5, 0)]
    assert found == [4.0, 6.0, None, None]


def test_a_reply_that_was_not_used_leaves_no_version_behind(tmp_path: Path) -> None:
    """Three replies of rounds 2 to 4 that are lost or refused, one after the other."""
    kept = ClientStates(tmp_path)
    for number, origin in ((1, 0), (2, 1), (3, 1), (4, 1)):
        kept.keep(PERSONAL, number, model_of(10.0 * number + origin), origin)
    assert list(kept.in_memory[PERSONAL]) == [1, 4]
    assert rounds_in(tmp_path) == {1, 4}
    restarted = ClientStates(tmp_path)
    assert value_of(restarted.at(PERSONAL, 1)) == 10.0
    assert restarted.at(PERSONAL, 2) is restarted.at(PERSONAL, 3) is None


def test_a_server_that_goes_back_finds_the_version_it_had_used(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    for number in range(1, 6):
        kept.keep(PERSONAL, number, model_of(float(number)), origin=number - 1)
    assert rounds_in(tmp_path) == {3, 4, 5}
    back = ClientStates(tmp_path)
    assert value_of(back.at(PERSONAL, 3)) == 3.0
    back.keep(PERSONAL, 4, model_of(40.0), origin=3)
    assert rounds_in(tmp_path) == {3, 4}
    assert value_of(ClientStates(tmp_path).at(PERSONAL, 4)) == 40.0


def test_a_client_keeps_few_versions(tmp_path: Path, subtests: pytest.Subtests) -> None:
    states = ClientStates(tmp_path)
    for number in range(1, 10):
        with subtests.test(number=number):
            states.keep("rule", number, model_of(float(number)), origin=number - 1)
            states.keep(PERSONAL, number, model_of(float(number)))
            assert len(rounds_in(tmp_path / "rule")) <= 3
            assert len(rounds_in(tmp_path)) <= 3
    assert {name: list(versions) for name, versions in states.in_memory.items()} == {
        "rule": [8, 9],
        "personal": [9],
    }


def test_all_that_a_client_keeps_goes_through_flowers_context() -> None:
    where = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    states = ClientStates(None)
    states.keep(PERSONAL, 1, model_of(1.0))
    states.keep("rule", 1, model_of(0.1), origin=0)
    states.keep("baseline", 1, {"loss": torch.tensor(0.1, dtype=torch.float64)})
    save_states(where, states.in_memory)
    there = ClientStates(None, load_states(where))
    for number in (2, 3):
        there.keep(PERSONAL, number, model_of(float(number)))
        there.keep("rule", number, model_of(number / 10.0), origin=1)
        save_states(where, there.in_memory)
    found = load_states(where)
    assert {name: sorted(versions) for name, versions in found.items()} == {
        "personal": [3],
        "rule": [1, 3],
        "baseline": [1],
    }
    loss = found["baseline"][1]["loss"]
    assert loss.dtype == torch.float64
    assert loss.item() == 0.1
    assert torch.equal(found["rule"][3]["weight"], model_of(0.3)["weight"])


NAMES = ("a", "São Paulo", "../../b", 'c"]', "x\udcff")


class Fleet:
    """Clients that share an archive."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder = folder
        self.archive = Archive(folder)
        self.states = {name: ArchivedStates(name, self.archive) for name in names}

    def keep(self, number: int, *names: str, origin: int | None = None) -> None:
        """Let clients keep a version of a round; of all, if no name is given."""
        for place, (name, states) in enumerate(self.states.items()):
            if not names or name in names:
                states.keep(PERSONAL, number, model_of(number + place / 100), origin)

    def store(self, since: int) -> None:
        self.archive.store(self.states.values(), since)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def last(self, name: str, before: int = 1000) -> float | None:
        found = self.states[name].find(PERSONAL, before)
        return None if found is None else value_of(found.state)


def stored_fleet(folder: Path, *rounds: int) -> Fleet:
    fleet = Fleet(folder)
    for number in rounds:
        fleet.keep(number)
        fleet.store(since=number - 1)
    return fleet


def test_a_checkpoint_is_a_file_of_all_clients(tmp_path: Path, subtests: pytest.Subtests) -> None:
    assert stored_fleet(tmp_path, 1).files() == ["1.safetensors"]
    assert (tmp_path / "1.safetensors").stat().st_mode & 0o077 == 0
    resumed = Fleet(tmp_path)
    for place, name in enumerate(NAMES):
        with subtests.test(name=name):
            assert resumed.last(name) == pytest.approx(1 + place / 100)
            found = resumed.states[name].find(PERSONAL, 2)
            assert found is not None
            assert found.made == 1
            assert found.state["count"] == 7
    assert Fleet(tmp_path, ("nobody",)).last("nobody") is None


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
    fleet = stored_fleet(tmp_path, 1)
    fleet.store(since=1)
    assert fleet.files() == ["1.safetensors"]
    Fleet(tmp_path / "empty").store(since=0)
    assert not (tmp_path / "empty").exists()


def train_ever_fewer(fleet: Fleet, since: int = 0) -> None:
    """Let one client less train in each round, so that each file has one last version."""
    names = [*fleet.states]
    for number in range(since + 1, len(names) + 1):
        fleet.keep(number, *names[number - 1 :])
        fleet.store(since=number - 1)


MANY = tuple(f"client-{k}" for k in range(12))


def test_files_are_written_anew_once_most_is_of_no_use(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, MANY)
    train_ever_fewer(fleet)
    assert "1.safetensors" not in fleet.files()
    assert len(fleet.files()) < len(MANY) / 2
    resumed = Fleet(tmp_path, MANY)
    last = [1 + place + place / 100 for place in range(len(MANY))]
    assert [resumed.last(name) for name in MANY] == pytest.approx(last)
    # and the version before, for the checkpoint before the last
    assert resumed.last(MANY[-1], before=len(MANY)) == pytest.approx(len(MANY) - 1 + 0.11)


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

        def write(path: Path, content: bytes) -> None:
            touch()
            write_private(path, content)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            touch()
            remove(path, missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(archive, "write_private", write)
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
    stored_fleet(tmp_path, 3, 4)
    file = tmp_path / "2.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    resumed = Fleet(tmp_path)
    found = {name: resumed.states[name].find(PERSONAL, 5) for name in NAMES}
    assert sorted(each.made for each in found.values() if each is not None) == [3, 4, 4, 4, 4]
    assert caplog.text.count("2.safetensors is damaged: client ") == 1


@pytest.mark.parametrize("cut", [0, 20, -20])
def test_a_damaged_file_costs_its_versions_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    stored_fleet(tmp_path, 3, 4)
    file = tmp_path / "2.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    resumed = Fleet(tmp_path)
    assert [resumed.last(name) for name in NAMES] == pytest.approx(
        [3 + place / 100 for place in range(len(NAMES))]
    )
    assert "2.safetensors is damaged: clients continue without" in caplog.text
    resumed.keep(4)
    resumed.store(since=3)
    assert Fleet(tmp_path).last("a") == 4.0


def test_the_same_round_again_replaces_its_version(tmp_path: Path) -> None:
    """A run that was killed after its clients' states, and before its own checkpoint."""
    stored_fleet(tmp_path, 1, 2)
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


def test_large_states_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 100)  # a version has 56
    assert stored_fleet(tmp_path, 1).files() == [f"{number}.safetensors" for number in (1, 2, 3)]
    counts = []
    for path in tmp_path.iterdir():
        with safe_open(path, framework="pt") as file:
            counts.append(len(file.metadata()))
    assert sorted(counts) == [1, 2, 2]
    resumed = Fleet(tmp_path)
    assert None not in [resumed.last(name) for name in NAMES]


def test_without_a_folder_nothing_is_stored() -> None:
    nowhere = Archive(None)
    states = ArchivedStates("a", nowhere)
    states.keep(PERSONAL, 1, model_of(1.0))
    nowhere.store([states], since=0)
    assert states.find(PERSONAL, 2) is not None
    assert ArchivedStates("a", nowhere).find(PERSONAL, 2) is None
