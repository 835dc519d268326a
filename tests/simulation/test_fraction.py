"""The share of clients that trains where nobody sets one: counted when the run begins, and kept."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

from .helpers import table

SMALL: dict[str, Any] = {"num-rounds": 1, "device": "cpu", "evaluate-every": 0}


def run(out: Path, **changes: Any) -> Path:
    return simulate(
        Settings.of(SMALL | {key.replace("_", "-"): value for key, value in changes.items()} | {"out": str(out)})
    )


def participants(folder: Path) -> list[str]:
    return [row["participants"] for row in table(folder / "rounds.csv")]


def fraction_in(folder: Path) -> float:
    return float(tomllib.loads((folder / "config.toml").read_text())["fraction"])


def test_all_of_up_to_nine_clients_train_and_half_of_more(tmp_path: Path) -> None:
    """Clients that only evaluate are not counted, and pooled data train one."""
    for clients, trained, fraction in ((2, "2", 1.0), (9, "9", 1.0), (10, "5", 0.5), (11, "6", 0.5)):
        folder = run(tmp_path / str(clients), clients=clients)
        assert participants(folder) == [trained]
        assert fraction_in(folder) == fraction
    assert participants(run(tmp_path / "some", clients=12, training_clients="client-01,client-02,client-03")) == ["3"]
    assert participants(run(tmp_path / "pooled", clients=4, pooled=True, num_rounds=2)) == ["1", "1"]


def test_a_run_goes_on_with_the_fraction_that_it_was_begun_with(tmp_path: Path) -> None:
    """A folder of before has 0.5, which was the default then."""
    folder = run(tmp_path / "a", clients=4, fraction=0.5)
    run(folder, clients=4, num_rounds=3)
    assert participants(folder) == ["2"] * 3
    assert fraction_in(folder) == 0.5
    with pytest.raises(RunFolderError, match=r"fraction = 0\.5 there and 1\.0 here"):
        run(folder, clients=4, num_rounds=4, fraction=1.0)
