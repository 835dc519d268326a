"""Run folders of format 4 stay readable: this pins their content, which other tests read."""

import json
from pathlib import Path

from safetensors import safe_open

from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate


def test_a_run_folder_is_laid_out_as_format_4(tmp_path: Path) -> None:
    assert RUN_FOLDER_FORMAT == 4
    config = {"task": "digits", "clients": 2, "method": "ditto", "num-rounds": 2, "device": "cpu"}
    simulate(Settings.of({**config, "out": str(tmp_path)}))
    with safe_open(tmp_path / "checkpoint" / "2.safetensors", framework="numpy") as file:
        state = json.loads(file.metadata()["about"])["state"]["dict"]
    assert state.keys() == {"strategy", "best", "losses", "participations", "tables"}
    of_method = {"method", "round", "steps", "rows", "memory", "first-counts", "lengths", "skipped"}
    assert state["strategy"]["dict"].keys() == of_method
    states = {
        path.relative_to(tmp_path / "clients").parts[1:]
        for path in tmp_path.glob("clients/*/*/*.safetensors")
    }
    # Round 1 has a checkpoint, and states that go with it, only where it took long.
    assert {client for client, _ in states} == {"client-0", "client-1"}
    assert {(client, "2.safetensors") for client, _ in states} <= states
