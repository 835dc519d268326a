"""Runs with clients that keep a state between rounds to correct their steps, and the server's part."""

import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.client.states import RULE, state_folder
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.loop import Rounds
from fairbloom.server.checkpoint import load_model
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.strategies import SCAFFOLD
from fairbloom.system.versions import Versions
from tests.client.quadratic import minimiser

from .helpers import config_of, model_of, run, table

QUADRATIC: dict[str, Any] = {
    "task": "tests.client.quadratic:task",
    "batch_size": 0,
    "local_epochs": 6,
}
SCAFFOLDS: dict[str, Any] = {"method": "scaffold"}


def test_a_state_that_cannot_be_stored_is_no_silent_loss(tmp_path: Path) -> None:
    """The error of their file ends the round's checkpoint."""
    config = config_of(**QUADRATIC, **SCAFFOLDS, clients=3, state_dir=str(tmp_path))
    method = SCAFFOLD()
    folder = state_folder(RunSettings.of(config))
    assert folder is not None
    with closing(LocalClients(method, RunSettings.of(config))) as clients:
        list(
            Rounds(method, clients, 1).run(
                model_of(config), measure=lambda number: [], measure_after=[]
            )
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_bytes(b"")
        with pytest.raises(OSError, match=re.escape(str(folder))):
            clients.keep(since=0)
        folder.unlink()
        clients.keep(since=0)
        stored = Versions(folder)
        assert all(stored.steps(json.dumps([name, RULE])) for name in ("a", "b", "c"))


# What is on disk ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_clients_keep_a_few_versions_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    method = SCAFFOLD()
    config = {
        **config_of(clients=1000, task="tests.client.quadratic:many", batch_size=0),
        "state-dir": str(tmp_path),
    }
    with closing(StackedClients(method, RunSettings.of(config), block=100)) as clients:
        for finished in Rounds(method, clients, 4).run(
            model_of(config), measure=lambda number: (), measure_after=()
        ):
            assert not finished.refused
            synced.clear()
            clients.keep(since=finished.number - 1)
            assert len(synced) == (2 if finished.number > 1 else 3)  # with that of a new folder
            assert len([*tmp_path.rglob("*.versions")]) <= 3
        (folder,) = tmp_path.iterdir()
        stored = Versions(folder)
        counts = [len(stored.steps(json.dumps([name, RULE]))) for name in clients.online(0)]
        assert len(counts) == 1000
        assert 1 <= min(counts) <= max(counts) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_state_lets_all_begin_again_and_converge(tmp_path: Path, harm: str) -> None:
    options = {
        **QUADRATIC,
        **SCAFFOLDS,
        "clients": 3,
        "fraction": 1.0,
        "evaluate_every": 0,
        "learning_rate": 0.1,
    }
    folder = run(tmp_path / "run", **options, num_rounds=20)
    for file in folder.glob("clients/*/*.versions"):
        if harm == "lost":
            file.unlink()
        else:
            damage(file, "b")
    run(folder, **options, num_rounds=170)
    arrays, _ = load_model(folder / "model.safetensors")
    last = np.concatenate([arrays["x"], arrays["bias"][None]])
    np.testing.assert_allclose(last, minimiser({"a": 1.0, "b": 3.0, "c": 2.0}), atol=1e-3)
    rows = {int(row["round"]): row for row in table(folder / "rounds.csv")}
    assert [
        number for number, row in rows.items() if row["lost_states"] not in ("", "0", "0.0")
    ] == [21]


def damage(file: Path, client: str) -> None:
    """Give a client's versions in a file another checksum."""
    lines = file.read_bytes().splitlines(keepends=True)
    key = json.dumps(json.dumps([client, RULE])).encode()
    file.write_bytes(
        b"".join([line.replace(b'"]', b'0"]') if key in line else line for line in lines])
    )


def test_what_a_device_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", **QUADRATIC, **SCAFFOLDS, num_rounds=2, clients=2, fraction=1.0)
    kept = [*folder.glob("clients/*"), *folder.glob("clients/*/*")]
    assert len(kept) >= 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
