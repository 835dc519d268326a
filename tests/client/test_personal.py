"""Personal models on disk: where they lie, whole or not at all, and what becomes of those that are damaged."""

import logging
import os
from pathlib import Path

import pytest
import torch

from fairbloom.client.personal import PersonalModels, StateDict, folder_name, folder_of
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.tasks.tables import csv_of

HOSTILE = ("../../../outside", "/outside", "..", ".", "a/b", "a\\b", "x\x00y", "line\nbreak", "%41", "", "ä" * 200)


def model_of(value: float) -> StateDict:
    return {"weight": torch.full((3, 4), value), "count": torch.tensor(7)}


def stored(folder: Path, *rounds: int) -> PersonalModels:
    personal = PersonalModels(folder)
    for number in rounds:
        personal.keep(number, model_of(float(number)))
    return personal


@pytest.mark.parametrize("name", ["site-a", "São Paulo", "ward 3 (east)", "a.b", "12", "x\udcff"])
def test_a_plain_name_is_the_name_of_its_folder(name: str) -> None:
    assert folder_name(name) == name


def test_no_name_is_a_path_and_different_names_have_different_folders(tmp_path: Path) -> None:
    names = [folder_name(name) for name in HOSTILE]
    assert len(set(names)) == len(HOSTILE)
    for name in names:
        assert name == Path(name).name
        (tmp_path / name).mkdir()
    assert len(list(tmp_path.iterdir())) == len(HOSTILE)


@pytest.mark.parametrize("key", ["client", "fingerprint"])
def test_neither_a_clients_name_nor_what_names_the_run_leaves_the_state_folder(tmp_path: Path, key: str) -> None:
    client = HOSTILE[0] if key == "client" else "site-a"
    folder = folder_of({"state-dir": str(tmp_path), "fingerprint": HOSTILE[0] if key == "fingerprint" else "x"}, client)
    assert folder is not None
    assert folder.resolve().is_relative_to(tmp_path)


def test_a_cell_that_names_a_client_by_a_path_writes_nothing_outside_the_run_folder(tmp_path: Path) -> None:
    header, *lines = csv_of(40).splitlines()
    sites = ("../../../outside", "lund")
    rows = [f"{sites[k % 4 < 2]},{line}" for k, line in enumerate(lines)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "all.csv").write_text("\n".join([f"site,{header}", *rows]) + "\n")
    out = tmp_path / "deep" / "runs" / "a"
    told = {"task": "csv", "data-dir": str(tmp_path / "data" / "all.csv"), "csv.client": "site", "method": "ditto"}
    simulate(Settings.of({**told, "num-rounds": 2, "fraction": 1.0, "device": "cpu", "out": str(out)}))
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in written if not path.is_relative_to(out)} == {tmp_path / "data" / "all.csv"}
    assert {path.parent.name for path in written if path.parent.parent.parent.name == "clients"} >= {"lund"}


@pytest.mark.parametrize("damage", ["empty", "half", "zeros", "flipped", "text"])
def test_a_damaged_model_is_passed_over_for_the_one_before_it(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tmp_path, 3, 4)
    file = tmp_path / "4.safetensors"
    content = bytearray(file.read_bytes())
    half = len(content) - 20
    flipped = bytes([*content[:half], content[half] ^ 1, *content[half + 1 :]])
    damaged = {"empty": b"", "half": content[:half], "zeros": content[:half] + bytes(20), "flipped": flipped}
    file.write_bytes(damaged.get(damage, b"not a model"))
    with caplog.at_level(logging.WARNING, "flwr"):
        model = PersonalModels(tmp_path).before(5)
    assert model is not None
    assert torch.equal(model["weight"], torch.full((3, 4), 3.0))
    assert "4.damaged does not hold what was written" in caplog.text


def test_where_all_are_damaged_there_is_none_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tmp_path, 1)
    (tmp_path / "1.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "flwr"):
        assert PersonalModels(tmp_path).before(2) is None
    assert "1.damaged" in caplog.text


def test_a_model_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes, its name, and the folders above it, in this order."""
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

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
    assert done == ["sync run", f"sync {tmp_path.name}", f"sync {draft}", "rename to 1.safetensors", "sync site-a"]


def test_a_write_that_is_cut_off_leaves_the_models_before_it_and_no_draft_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    personal = stored(tmp_path, 1, 2)
    (tmp_path / ".3.safetensors.draft").write_bytes(b"of a killed process")

    def full(opened: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            personal.keep(3, model_of(3.0))
    restarted = PersonalModels(tmp_path)
    model = restarted.before(4)
    assert model is not None
    assert torch.equal(model["weight"], torch.full((3, 4), 2.0))
    (tmp_path / ".3.safetensors.draft").write_bytes(b"of a killed process")
    restarted.keep(3, model_of(3.0))
    assert {path.name for path in tmp_path.iterdir()} == {"1.safetensors", "2.safetensors", "3.safetensors"}
