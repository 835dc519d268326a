"""The same settings give the same run in process and on Ray.

The runs on Ray, also those of other apps, share one local SuperLink. One submits this checkout, the
others the installed Fairbloom: Flower reads every folder of a checkout.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import rounds
from benchmarks.flower import ROOT, Flower, flower
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests import test_import_strings as theirs
from tests.client import changed
from tests.experiments.helpers import fairbloom
from tests.runtimes.installed import temporary_app
from tests.simulation.helpers import assert_same_model, table

pytestmark = pytest.mark.slow

CLIENTS = 2
SETTINGS: dict[str, Any] = {
    "clients": CLIENTS,
    "partition": "shards",
    "num-rounds": 2,
    "method": "fedfv",
    "draw": "examples",
    "momentum": 0.9,
    "proximal-mu": 0.1,
    "server-optimizer": "avgm",
    "server-optimizer-lr": 0.5,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(
        Settings.of({**SETTINGS, "out": str(tmp_path_factory.mktemp("in-process") / "run")})
    )


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The installed Fairbloom, as an app."""
    with temporary_app() as folder:
        yield folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """A local SuperLink, started in a folder with a user's method and task."""
    with flower(tmp_path_factory.mktemp("local") / "home") as runtime:
        (runtime.home / "theirs.py").write_text(theirs.THEIRS)
        yield runtime


def run_on_ray(local: Flower, config: dict[str, Any], app: Path, clients: int = CLIENTS) -> None:
    """Run an app to its end."""
    status = local.run(
        "local", config, f"num-supernodes={clients} client-resources-num-cpus=1", app
    )
    assert status == "finished:completed", log_of(local)[-3000:]


def log_of(local: Flower) -> str:
    """Return the log of the last run."""
    return (local.home / "run.log").read_text()


def assert_same_run(folder: Path, other: Path, number: int = SETTINGS["num-rounds"]) -> None:
    assert_same_model(folder, other)
    rows = table(folder / "clients.csv")
    expected_rows = table(other / "clients.csv")
    assert len(rows) == len(expected_rows) == CLIENTS * number
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert {key: row[key] for key in ("round", "client", "participated", "test_examples")} == {
            key: expected_row[key] for key in ("round", "client", "participated", "test_examples")
        }
        for key, value in expected_row.items():
            if key != "client" and value:
                assert float(row[key]) == pytest.approx(float(value), abs=1e-4)


def test_flwr_run_on_ray_gives_the_run_in_process(
    local: Flower, in_process: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run_on_ray(local, {**SETTINGS, "out": str(out)}, ROOT)
    assert_same_run(out, in_process)


def test_what_clients_keep_on_ray_is_what_they_keep_in_process(
    local: Flower, tmp_path: Path
) -> None:
    own = {**SETTINGS, "model": "mlp", "personal-parameters": "head", "fine-tune-epochs": 1}
    run_on_ray(local, {**own, "out": str(tmp_path / "ray")}, ROOT)
    assert_same_run(tmp_path / "ray", simulate(Settings.of({**own, "out": str(tmp_path / "own")})))


def test_an_own_method_and_task_run_on_ray_with_own_settings(
    local: Flower, installed: Path, tmp_path: Path
) -> None:
    own = {**theirs.SETTINGS, **theirs.OURS, "out": str(tmp_path / "a")}
    del own["slopes.noise"]
    own["own-settings"] = "slopes.noise=0.2 worsthalf.share=0.25"
    run_on_ray(local, own, installed, theirs.CLIENTS)
    theirs.assert_it_is_theirs(tmp_path / "a")


def test_an_invalid_setting_fails_before_any_client_works(
    local: Flower, installed: Path, tmp_path: Path
) -> None:
    config = {**SETTINGS, "fedfv.alpha": 2.0, "out": str(tmp_path / "run")}
    assert local.run("local", config, f"num-supernodes={CLIENTS}", installed) == "finished:failed"
    assert "fedfv.alpha = 2.0: allowed is float in [0, 1]" in log_of(local)
    assert not (tmp_path / "run").exists()


# Other apps on Ray --------------------------------------------------------------------------------

QUICKSTART = changed.CONFIG | {"num-server-rounds": 2}


def test_the_changed_quickstart_gives_the_run_in_process(
    local: Flower, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The user's loader shuffles by the global generator, which is equal in all workers."""
    for name in ("simulated", "in-process"):
        changed.change(tmp_path / name)
        changed.aim(tmp_path / name, tmp_path / name / "run")
    changed.run_in_process(tmp_path / "in-process", QUICKSTART, CLIENTS)
    run_on_ray(local, QUICKSTART, tmp_path / "simulated")
    simulated = table(tmp_path / "simulated" / "run" / "clients.csv")
    expected = table(tmp_path / "in-process" / "run" / "clients.csv")
    assert [row["client"] for row in simulated] == ["client-0", "client-1"] * 2
    for row, other in zip(simulated, expected, strict=True):
        with subtests.test(row=row, other=other):
            for column in ("test_eval_acc_of_global_model", "loss_before"):
                if other.get(column):
                    assert float(row[column]) == pytest.approx(float(other[column]), abs=1e-5)


def test_an_app_without_a_query_function_logs_no_traceback(local: Flower, tmp_path: Path) -> None:
    shutil.copytree(
        changed.QUICKSTART, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")
    )
    server = tmp_path / "app" / "mydigits" / "server_app.py"
    changed.edit(
        server, "flwr.serverapp.strategy import FedAvg", "fairbloom.strategies import FedAvg"
    )
    run_on_ray(local, QUICKSTART, tmp_path / "app")
    log = log_of(local)
    assert log.count("the clients' app answers no QUERY") == 1
    assert "Traceback" not in log
    assert "An exception was raised when processing a message" not in log


def test_a_new_app_runs_with_all_clients(
    local: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fairbloom("new", "hearts") == 0
    out = tmp_path / "run"
    run_on_ray(local, {"out": str(out), "num-rounds": 2}, tmp_path / "hearts", clients=8)
    assert [row["replies_used"] for row in rounds(out)] == ["8", "8"]
    assert {row["client"] for row in table(out / "clients.csv")} == {
        f"client-{i}" for i in range(8)
    }


COUNTING = ROOT / "tests" / "runtimes" / "counting_app"


def count(local: Flower, app: Path, out: Path, rounds: int) -> list[str]:
    """Run an app up to a round; return how often each client had trained, round by round."""
    run_on_ray(local, {"out": str(out), "num-server-rounds": rounds}, app)
    return [
        row["value"]
        for row in table(out / "metrics.csv")
        if row["metric"] == "times" and row["client"]
    ]


def test_states_of_contexts_last_as_long_as_the_run_folder(local: Flower, tmp_path: Path) -> None:
    shutil.copytree(COUNTING, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    count(local, tmp_path / "app", tmp_path / "run", 2)
    times = count(local, tmp_path / "app", tmp_path / "run", 4)
    assert times == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert "context.state" not in log_of(local)


def test_a_plain_app_is_warned_that_its_states_are_lost(local: Flower, tmp_path: Path) -> None:
    shutil.copytree(COUNTING, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    changed.edit(tmp_path / "app" / "pyproject.toml", "client:app", "client:plain")
    count(local, tmp_path / "app", tmp_path / "run", 1)
    assert "context.state" not in log_of(local)
    assert count(local, tmp_path / "app", tmp_path / "run", 2) == ["1", "1", "1", "1"]
    assert log_of(local).count("may have kept in context.state is lost") == 1
