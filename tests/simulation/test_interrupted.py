"""A run that an earlier version left after two of four rounds is continued to the same end.

The folders in `interrupted` hold the checkpoints; whoever renames a key of a checkpoint or the
purpose of a random stream sees it here. Models are compared with a tolerance, since the folders
come from another machine; clients and coefficients that depend on streams alone are compared
exactly.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

from .helpers import table

INTERRUPTED = Path(__file__).parent / "interrupted"

# FedFV keeps rows, SCAFFOLD states on both sides, Adam moments and the mean of all models, Ditto
# personal models.
METHODS: dict[str, dict[str, Any]] = {
    "fedfv": {"method": "fedfv"},
    "scaffold": {"method": "scaffold"},
    "adam": {
        "method": "fedavg",
        "server-optimizer": "adam",
        "server-optimizer-lr": 0.05,
        "average-models": True,
    },
    "ditto": {"method": "ditto"},
}


def four_rounds(out: Path, method: str) -> Path:
    common = {
        "task": "digits",
        "clients": 4,
        "num-rounds": 4,
        "seed": 5,
        "partition": "iid",
        "fraction": 0.5,
        "engine": "loop",
        "device": "cpu",
    }
    return simulate(Settings.of({**common, **METHODS[method], "out": str(out)}))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_an_earlier_version_is_continued(method: str, tmp_path: Path) -> None:
    shutil.copytree(INTERRUPTED / method, tmp_path / "continued")
    before = table(tmp_path / "continued" / "rounds.csv")
    assert [row["round"] for row in before] == ["1", "2"]
    continued = four_rounds(tmp_path / "continued", method)
    whole = four_rounds(tmp_path / "whole", method)
    rows = table(continued / "rounds.csv")
    assert rows[:2] == before  # the first rounds were not computed again
    assert len(rows) == 4
    of_clients = [
        [(row["round"], row["client"]) for row in table(folder / "coefficients.csv")]
        for folder in (continued, whole)
    ]
    assert of_clients[0] == of_clients[1]
    model = load_file(continued / "model.safetensors")
    expected = load_file(whole / "model.safetensors")
    assert model.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=1e-5)
