"""Runs whose clients keep something between rounds that corrects their steps, with the server's side of it."""

import os
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.client.states import state_folder
from fairbloom.rounds.loop import Rounds
from fairbloom.server.checkpoint import load_model
from fairbloom.server.run_folder.files import ENGINE
from fairbloom.simulation.loop import LoopClients
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.strategies import SCAFFOLD
from tests.client.quadratic import minimiser

from .helpers import config_of, model_of, run, table

QUADRATIC: dict[str, Any] = {"task": "tests.client.quadratic:task", "batch_size": 0, "local_epochs": 6}
SCAFFOLDS: dict[str, Any] = {"method": "scaffold"}
FEDDYNS: dict[str, Any] = {"method": "feddyn", "feddyn.alpha": 0.5}
WHICH = [(SCAFFOLDS, {"a": 1.0, "b": 3.0, "c": 2.0}), (FEDDYNS, {"a": 1.0, "b": 1.0, "c": 1.0})]


def last_model(folder: Path) -> np.ndarray[Any, Any]:
    arrays, _ = load_model(folder / "model.safetensors")
    return np.concatenate([arrays["x"], arrays["bias"][None]])


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize(("method", "weights"), WHICH, ids=["scaffold", "feddyn"])
def test_a_run_rests_at_the_minimiser_with_partial_participation(
    tmp_path: Path, method: dict[str, Any], weights: dict[str, float], fraction: float
) -> None:
    rounds = {"num_rounds": 120 if fraction == 1.0 else 250, "evaluate_every": 0, "clients": 3}
    folder = run(tmp_path / "run", **QUADRATIC, **method, **rounds, fraction=fraction, learning_rate=0.1)
    np.testing.assert_allclose(last_model(folder), minimiser(weights), atol=2e-3)


def test_without_control_variates_a_run_rests_elsewhere(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", **QUADRATIC, clients=3, num_rounds=100, evaluate_every=0, fraction=1.0)
    assert np.abs(last_model(folder) - minimiser({"a": 1.0, "b": 3.0, "c": 2.0})).max() > 0.03


def test_a_state_that_cannot_be_stored_is_no_silent_loss(tmp_path: Path) -> None:
    """States are stored several at once; the error of one of them ends the round's checkpoint."""
    config = config_of(**QUADRATIC, **SCAFFOLDS, clients=3, state_dir=str(tmp_path))
    method, folder = SCAFFOLD(), state_folder(config)
    assert folder is not None
    with closing(LoopClients(method, config)) as clients:
        list(Rounds(method, clients, 1).run(model_of(config), measure=lambda number: [], measure_after=[]))
        folder.mkdir(parents=True)
        (folder / "b").write_bytes(b"")
        with pytest.raises(OSError, match=re.escape(str(folder / "b"))):
            clients.keep(since=0)
        (folder / "b").unlink()
        clients.keep(since=0)
        assert len(list(folder.glob("*/rule/1.safetensors"))) == 3


OWN = "tests.client.own_rules:Momentum"


def test_the_engine_for_an_own_rule_is_recorded_with_the_reason(tmp_path: Path) -> None:
    for engine in ("auto", "stacked"):
        recorded = ENGINE.read(run(tmp_path / engine, client_rule=OWN, num_rounds=1, engine=engine))
        assert recorded is not None
        assert recorded["engine"] in ("loop", "workers")
        assert f"stacked clients do not honour client-rule = '{OWN}'" in recorded["reason"]


# What is on disk ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_clients_keep_a_few_versions_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda opened: None)  # the disk is not what this is about
    method = SCAFFOLD()
    config = {**config_of(clients=1000, task="tests.client.quadratic:many", batch_size=0), "state-dir": str(tmp_path)}
    with closing(StackedClients(method, config, block=100)) as clients:
        rounds = Rounds(method, clients, 4).run(model_of(config), measure=lambda number: (), measure_after=())
        for finished in rounds:
            assert not finished.refused
            clients.keep(since=finished.number - 1)
        counts = Counter(path.parent for path in tmp_path.rglob("*.safetensors"))
        assert len(counts) == 1000
        assert max(counts.values()) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_state_lets_all_begin_again_and_converge(tmp_path: Path, harm: str) -> None:
    told = {**QUADRATIC, **SCAFFOLDS, "clients": 3, "fraction": 1.0, "evaluate_every": 0, "learning_rate": 0.1}
    folder = run(tmp_path / "run", **told, num_rounds=20)
    for file in folder.glob("clients/*/b/rule/*.safetensors"):
        if harm == "lost":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
    run(folder, **told, num_rounds=170)
    np.testing.assert_allclose(last_model(folder), minimiser({"a": 1.0, "b": 3.0, "c": 2.0}), atol=1e-3)
    rows = {int(row["round"]): row for row in table(folder / "rounds.csv")}
    assert [number for number, row in rows.items() if row["lost_states"] not in ("", "0", "0.0")] == [21]


def test_what_a_device_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", **QUADRATIC, **SCAFFOLDS, num_rounds=2, clients=2, fraction=1.0)
    kept = [*folder.glob("clients/*/*/rule"), *folder.glob("clients/*/*/rule/*")]
    assert len(kept) >= 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
