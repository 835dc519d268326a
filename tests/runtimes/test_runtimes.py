"""The same settings in process, on Ray and between real processes over gRPC give the same run."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.flower import deployment, flower
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import assert_same_model, table

pytestmark = pytest.mark.runtimes

CLIENTS = 2
SETTINGS: dict[str, Any] = {
    "clients": CLIENTS,
    "partition": "shards",
    "num-rounds": 2,
    "method": "fedfv",
    "momentum": 0.9,
    "proximal-mu": 0.1,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(Settings.of({**SETTINGS, "out": str(tmp_path_factory.mktemp("in-process") / "run")}))


def assert_same_run(folder: Path, other: Path) -> None:
    assert_same_model(folder, other)
    rows, expected_rows = table(folder / "clients.csv"), table(other / "clients.csv")
    assert len(rows) == len(expected_rows) == CLIENTS * SETTINGS["num-rounds"]
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert {key: row[key] for key in ("round", "client", "participated", "test_examples")} == {
            key: expected_row[key] for key in ("round", "client", "participated", "test_examples")
        }
        for key, value in expected_row.items():
            if key != "client" and value:
                assert float(row[key]) == pytest.approx(float(value), abs=1e-4)


def test_flwr_run_on_ray_gives_the_run_in_process(in_process: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with flower(tmp_path / "home") as runtime:
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        assert runtime.run("local", {**SETTINGS, "out": str(out)}, federation) == "finished:completed"
    assert_same_run(out, in_process)


def test_real_processes_over_grpc_give_the_run_in_process(in_process: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with deployment(tmp_path / "home", CLIENTS) as runtime:
        assert runtime.run("real", {**SETTINGS, "out": str(out)}) == "finished:completed"
    assert_same_run(out, in_process)


def test_an_impossible_setting_fails_the_run_before_any_client_works(tmp_path: Path) -> None:
    with flower(tmp_path / "home") as runtime:
        config = {**SETTINGS, "fedfv.alpha": 2.0, "out": str(tmp_path / "run")}
        assert runtime.run("local", config, f"num-supernodes={CLIENTS}") == "finished:failed"
        assert "fedfv.alpha = 2.0: allowed is float in [0, 1]" in (tmp_path / "home" / "run.log").read_text()
    assert not (tmp_path / "run").exists()
