"""Several tensors, by name and in order, and outputs by name: whichever engine computes, the run is the same."""

import json
from pathlib import Path

import pytest

from .helpers import run
from .test_engines import assert_same, ended

TASKS = "tests.simulation.several"


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
@pytest.mark.parametrize("task", ["masked", "paired"])
def test_whichever_engine_computes_several_tensors_the_run_folder_is_the_same(
    task: str, method: str, tmp_path: Path
) -> None:
    changes = {"task": f"{TASKS}:{task}", "clients": 4, "num_rounds": 2, "method": method, "batch_size": 3}
    changes |= {"local_epochs": 2, "learning_rate": 0.3}
    expected = ended(run(tmp_path / "loop", engine="loop", **changes))
    for engine in ("stacked", "workers", "auto"):
        ours = ended(run(tmp_path / engine, engine=engine, **changes))
        assert_same(ours, expected, 0.0 if engine == "workers" else 1e-9)
    assert json.loads((tmp_path / "stacked" / "engine.json").read_text())["engine"] == "stacked"
    accuracies = {value for (_, _, column), value in expected["tables"].items() if "accuracy" in column}
    assert len(accuracies) > 1
