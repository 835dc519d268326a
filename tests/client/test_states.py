"""The states of clients: their folders, atomic writes, and damaged files."""

import json
import os
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fairbloom.client.app import load_states, save_states
from fairbloom.client.states import PERSONAL, ClientStates, StateDict, folder_name, folder_of
from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.versions import Versions
from tests.tables.helpers import csv_of

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
    personal = ClientStates(Versions(folder))
    for number in rounds:
        personal.keep(PERSONAL, number, model_of(float(number)))
    return personal


def test_no_name_is_a_path_and_each_has_its_own_folder(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    usual = ["site-a", "São Paulo", "ward 3 (east)", "a.b", "12", "x\udcff"]
    assert [*map(folder_name, usual)] == usual
    names = [folder_name(name) for name in HOSTILE]
    assert len(set(names)) == len(HOSTILE)
    for name in names:
        with subtests.test(name=name):
            assert name == Path(name).name
            (tmp_path / name).mkdir()
    assert len(list(tmp_path.iterdir())) == len(HOSTILE)
    for client, run in ((HOSTILE[0], "x"), ("site-a", HOSTILE[0])):
        with subtests.test(client=client, run=run):
            folder = folder_of(
                RunSettings.of({"state-dir": str(tmp_path), "fingerprint": run}), client
            )
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
    draft = ".1.versions.draft"
    assert done == [
        f"sync {tmp_path.name}",
        "sync run",
        f"sync {draft}",
        "rename to 1.versions",
        "sync site-a",
    ]


def test_a_write_that_is_cut_off_leaves_the_earlier_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    personal = stored(tmp_path, 1, 2)
    (tmp_path / ".3.versions.draft").write_bytes(b"of a killed process")

    def full(opened: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(ReportableError, match="No space left"):
            personal.keep(PERSONAL, 3, model_of(3.0))
    restarted = ClientStates(Versions(tmp_path))
    assert value_of(restarted.at(PERSONAL, 2)) == 2.0
    assert restarted.at(PERSONAL, 3) is None
    (tmp_path / ".3.versions.draft").write_bytes(b"of a killed process")
    restarted.keep(PERSONAL, 3, model_of(3.0))
    assert {path.name for path in tmp_path.iterdir()} == {
        "1.versions",
        "2.versions",
        "3.versions",
    }


# Versions that go on from the one that the server has used ----------------------------------------


def rounds_in(folder: Path, name: str = PERSONAL) -> set[int]:
    """Return the rounds of the versions in a client's folder, one file each."""
    steps = Versions(folder).steps(json.dumps(["", name]))
    assert len([*folder.glob("*.versions")]) <= 6
    return {step.round for step in steps}


def value_of(state: StateDict | None) -> float | None:
    return None if state is None else float(state["weight"][0, 0])


def test_the_versions_before_and_after_the_last_reply_are_kept(tmp_path: Path) -> None:
    kept = ClientStates(Versions(tmp_path))
    for number, origin in ((1, 0), (4, 1), (6, 4)):
        kept.keep(PERSONAL, number, model_of(float(number)), origin)
    assert list(kept.in_memory[PERSONAL]) == [4, 6]
    restarted = ClientStates(Versions(tmp_path))
    found = [value_of(restarted.at(PERSONAL, made)) for made in (4, 6, 5, 0)]
    assert found == [4.0, 6.0, None, None]


def test_a_reply_that_was_not_used_leaves_no_version_behind(tmp_path: Path) -> None:
    """Three replies of rounds 2 to 4 that are lost or refused, one after the other."""
    kept = ClientStates(Versions(tmp_path))
    for number, origin in ((1, 0), (2, 1), (3, 1), (4, 1)):
        kept.keep(PERSONAL, number, model_of(10.0 * number + origin), origin)
    assert list(kept.in_memory[PERSONAL]) == [1, 4]
    assert rounds_in(tmp_path) == {1, 4}
    restarted = ClientStates(Versions(tmp_path))
    assert value_of(restarted.at(PERSONAL, 1)) == 10.0
    assert restarted.at(PERSONAL, 2) is restarted.at(PERSONAL, 3) is None


def test_a_server_that_goes_back_finds_the_version_it_had_used(tmp_path: Path) -> None:
    kept = ClientStates(Versions(tmp_path))
    for number in range(1, 6):
        kept.keep(PERSONAL, number, model_of(float(number)), origin=number - 1)
    assert rounds_in(tmp_path) == {3, 4, 5}
    back = ClientStates(Versions(tmp_path))
    assert value_of(back.at(PERSONAL, 3)) == 3.0
    back.keep(PERSONAL, 4, model_of(40.0), origin=3)
    assert rounds_in(tmp_path) == {3, 4}
    assert value_of(ClientStates(Versions(tmp_path)).at(PERSONAL, 4)) == 40.0


def test_all_that_a_client_keeps_goes_through_flowers_context() -> None:
    where = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    states = ClientStates()
    states.keep(PERSONAL, 1, model_of(1.0))
    states.keep("rule", 1, model_of(0.1), origin=0)
    states.keep("baseline", 1, {"loss": torch.tensor(0.1, dtype=torch.float64)})
    save_states(where, states.in_memory)
    there = ClientStates(in_memory=load_states(where))
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
