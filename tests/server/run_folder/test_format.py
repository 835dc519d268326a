"""Run folders of format 6 stay readable: this pins their content, which other tests read."""

import json
from pathlib import Path

from safetensors import safe_open

from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.versions import Point, Versions


def test_a_run_folder_is_laid_out_as_format_6(tmp_path: Path) -> None:
    assert RUN_FOLDER_FORMAT == 6
    config = {"task": "digits", "clients": 2, "method": "ditto", "num-rounds": 2, "device": "cpu"}
    simulate(Settings.of({**config, "out": str(tmp_path)}))
    with safe_open(tmp_path / "checkpoint" / "2.safetensors", framework="numpy") as file:
        state = json.loads(file.metadata()["about"])["state"]["dict"]
    assert state.keys() == {"strategy", "best", "losses", "participations", "tables"}
    of_method = {"method", "round", "steps", "rows", "memory", "first-counts", "lengths", "skipped"}
    assert state["strategy"]["dict"].keys() == of_method
    (folder,) = tmp_path.glob("clients/*")
    kept = Versions(folder)
    for client in ("client-0", "client-1"):
        assert kept.steps(json.dumps([client, "personal"]))[-1] == Point(2)
