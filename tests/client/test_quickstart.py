"""The app in quickstart/ on Flower's simulation, as `flwr run` starts it."""

import shutil
from pathlib import Path

import pytest

from benchmarks.flower import flower
from tests.simulation.helpers import table

from . import changed

pytestmark = pytest.mark.runtimes

CLIENTS = 2
CONFIG = {
    "num-server-rounds": 2,
    "fraction-evaluate": 1.0,
    "local-epochs": 1,
    "learning-rate": 0.1,
    "batch-size": 32,
}


def test_flwr_run_of_the_changed_app_gives_the_run_in_process(tmp_path: Path) -> None:
    """Her loader shuffles by the global generator, and every worker of the simulation draws the same."""
    for name in ("simulated", "in-process"):
        changed.change(tmp_path / name)
        changed.aim(tmp_path / name, tmp_path / name / "run")
    changed.run_in_process(tmp_path / "in-process", CONFIG, CLIENTS)
    with flower(tmp_path / "home") as runtime:
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        assert runtime.run("local", CONFIG, federation, tmp_path / "simulated") == "finished:completed"
    simulated, expected = (table(tmp_path / name / "run" / "clients.csv") for name in ("simulated", "in-process"))
    assert [row["client"] for row in simulated] == ["client-0", "client-1"] * 2
    for row, other in zip(simulated, expected, strict=True):
        for column in ("test_eval_acc_of_global_model", "loss_before"):
            if other.get(column):
                assert float(row[column]) == pytest.approx(float(other[column]), abs=1e-5)


def test_an_app_without_a_query_function_leaves_no_traceback_in_the_log(tmp_path: Path) -> None:
    shutil.copytree(changed.QUICKSTART, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    server = tmp_path / "app" / "mydigits" / "server_app.py"
    changed.edit(server, "flwr.serverapp.strategy import FedAvg", "fairbloom.strategies import FedAvg")
    with flower(tmp_path / "home") as runtime:
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        assert runtime.run("local", CONFIG, federation, tmp_path / "app") == "finished:completed"
    log = (tmp_path / "home" / "run.log").read_text()
    assert log.count("the clients' app answers no QUERY") == 1
    assert "Traceback" not in log
    assert "An exception was raised when processing a message" not in log
