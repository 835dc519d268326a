"""The same settings give the same run in process and on Ray.

The runs on Ray, also those of other apps, share one local SuperLink. One submits this checkout, the
others the installed Fairbloom: Flower reads every folder of a checkout.

Flower finds both apps, in any order in which its threads look for them.

Flower's quickstart with the lines changed that docs/flower.md counts, between real processes.

An app that counts in `context.state` on real nodes: kills and second submits count nothing twice.

The installed Fairbloom runs a user's method and task on real processes.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from benchmarks.flower import ROOT, Flower, flower
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests import test_import_strings as theirs
from tests.client import changed
from tests.docs.pages import blocks
from tests.experiments.helpers import fairbloom
from tests.runtimes.installed import temporary_app
from tests.simulation.helpers import assert_same_model, table
from tests.test_import_strings import THEIRS

CLIENTS = 2
SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
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
        runtime.start_local()
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


def assert_same_run(
    folder: Path, other: Path, clients: int = CLIENTS, number: int = SETTINGS["num-rounds"]
) -> None:
    assert_same_model(folder, other)
    rows = table(folder / "clients.csv")
    expected_rows = table(other / "clients.csv")
    assert len(rows) == len(expected_rows) == clients * number
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert {key: row[key] for key in ("round", "client", "participated", "test_examples")} == {
            key: expected_row[key] for key in ("round", "client", "participated", "test_examples")
        }
        for key, value in expected_row.items():
            if key != "client" and value:
                assert float(row[key]) == pytest.approx(float(value), abs=1e-4)


@pytest.mark.slow
def test_flwr_run_on_ray_gives_the_run_in_process(
    local: Flower, in_process: Path, out: Path
) -> None:
    run_on_ray(local, {**SETTINGS, "out": str(out)}, ROOT)
    assert_same_run(out, in_process)


@pytest.mark.slow
def test_where_flwr_run_starts_nothing_its_reason_is_said(local: Flower, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"started no run:[\s\S]*success[\s\S]*pyproject.toml"):
        local.run("local", {}, app=tmp_path)


# Their task and method, with a part of the model that each client keeps.
OWN = {
    **theirs.SETTINGS,
    "task": "theirs:slopes",
    "method": "theirs:WorstHalf",
    "personal-parameters": "bias",
    "fine-tune-epochs": 1,
}
NOISE = {"slopes.noise": 0.2, "worsthalf.share": 0.25}


@pytest.mark.slow
def test_an_own_task_and_what_clients_keep_are_as_in_process(
    local: Flower, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"own-settings": " ".join(f"{key}={value}" for key, value in NOISE.items())}
    run_on_ray(local, {**OWN, **own, "out": str(tmp_path / "ray")}, installed, theirs.CLIENTS)
    theirs.assert_it_is_theirs(tmp_path / "ray")
    monkeypatch.chdir(local.home)
    expected = simulate(Settings.of({**OWN, **NOISE, "out": str(tmp_path / "here")}))
    assert_same_run(tmp_path / "ray", expected, theirs.CLIENTS, theirs.ROUNDS)


@pytest.mark.slow
def test_an_invalid_setting_fails_before_any_client_works(
    local: Flower, installed: Path, tmp_path: Path
) -> None:
    config = {**SETTINGS, "fedfv.alpha": 2.0, "out": str(tmp_path / "run")}
    assert local.run("local", config, f"num-supernodes={CLIENTS}", installed) == "finished:failed"
    assert "fedfv.alpha = 2.0: allowed is float in [0, 1]" in log_of(local)
    assert "Traceback" not in log_of(local)
    assert not (tmp_path / "run").exists()


# Other apps on Ray --------------------------------------------------------------------------------

QUICKSTART = changed.CONFIG | {"num-server-rounds": 2}


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_quickstart_runs_with_only_its_strategy_swapped(local: Flower, tmp_path: Path) -> None:
    shutil.copytree(
        changed.QUICKSTART, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")
    )
    changed.edit(
        tmp_path / "app" / "mydigits" / "server_app.py",
        "flwr.serverapp.strategy import FedAvg",
        "fairbloom.strategies import FedAvg",
    )
    run_on_ray(local, QUICKSTART, tmp_path / "app")
    assert "Traceback" not in log_of(local)


@pytest.mark.slow
def test_a_new_app_runs_with_all_clients(local: Flower, here: Path, out: Path) -> None:
    assert fairbloom("new", "hearts") == 0
    run_on_ray(local, {"out": str(out), "num-rounds": 2}, here / "hearts", clients=8)
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


@pytest.mark.slow
def test_states_of_contexts_last_as_long_as_the_run_folder(local: Flower, tmp_path: Path) -> None:
    shutil.copytree(COUNTING, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    count(local, tmp_path / "app", tmp_path / "run", 2)
    times = count(local, tmp_path / "app", tmp_path / "run", 4)
    assert times == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert "context.state" not in log_of(local)


@pytest.mark.slow
def test_a_plain_app_is_told_of_names_and_of_lost_states(local: Flower, tmp_path: Path) -> None:
    """A ClientApp that is not made by `fair` has no query function and keeps no state."""
    shutil.copytree(COUNTING, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    changed.edit(tmp_path / "app" / "pyproject.toml", "client:app", "client:plain")
    count(local, tmp_path / "app", tmp_path / "run", 1)
    log = log_of(local)
    assert log.count("the clients' app answers no QUERY") == 1
    assert "Traceback" not in log
    assert "An exception was raised when processing a message" not in log
    assert "context.state" not in log
    assert count(local, tmp_path / "app", tmp_path / "run", 2) == ["1", "1", "1", "1"]
    assert log_of(local).count("may have kept in context.state is lost") == 1


LOOK = """
import sys, threading
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
from fairbloom.imports import IMPORTS
begun, failed = [], []
class Note:
    def find_spec(name, path=None, target=None):
        if name in ("fairbloom.server.app", "fairbloom.client.app"):
            begun.append((name, IMPORTS.locked()))
def look(name):
    try:
        find_spec(name)
        __import__(name)
    except Exception as error:
        failed.append(error)
sys.meta_path.insert(0, Note)
threads = [threading.Thread(target=look, args=(name,)) for name in sys.argv[2:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(begun), failed)
"""


@pytest.mark.slow
def test_two_threads_find_both_apps_one_after_the_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(ROOT), "fairbloom.serverapp", "fairbloom.clientapp"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    locked = [("fairbloom.client.app", True), ("fairbloom.server.app", True)]
    assert done.stdout == f"{locked} []\n", done.stderr


CONFIG = changed.CONFIG | {"num-server-rounds": 5}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two clients with the installed app."""
    (lines,) = (block for block in blocks("docs/flower.md") if block.file == "owner.toml")
    installed = tmp_path_factory.mktemp("installed") / "app"
    changed.change(installed)
    with federation(tmp_path_factory.mktemp("there") / "home", CLIENTS) as runtime:
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{installed}{os.pathsep}{before}"
        for name in names(CLIENTS):
            (runtime.bundle(name) / "owner.toml").write_text(lines.text)
            runtime.start_client(name)
        runtime.environment["PYTHONPATH"] = before
        runtime.wait_for_clients(*names(CLIENTS))
        yield runtime


@pytest.fixture
def apps(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of two such apps: one for the deployed run, one for the run in process."""
    for name in ("deployed", "in-process"):
        changed.change(tmp_path / name)
        changed.aim(tmp_path / name, tmp_path / f"{name}-run")
    return tmp_path / "deployed", tmp_path / "in-process"


def run_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-run")


def assert_same_tables(folder: Path, other: Path) -> None:
    """Assert that the runs of two apps have the same rows per client and the same weights."""
    model = torch.load(f"{run_of(folder)}.pt")
    for name, weights in torch.load(f"{run_of(other)}.pt").items():
        torch.testing.assert_close(model[name], weights, rtol=1e-5, atol=1e-6)
    for row, expected in zip(
        table(run_of(folder) / "clients.csv"), table(run_of(other) / "clients.csv"), strict=True
    ):
        assert row.keys() == expected.keys()
        for column, value in expected.items():
            if column == "client" or not value:
                assert row[column] == value
            else:
                assert float(row[column]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), column


@pytest.mark.federation
def test_a_killed_run_continues_and_ends_as_in_process(
    there: Deployment, apps: tuple[Path, Path]
) -> None:
    deployed, in_process = apps
    changed.run_in_process(in_process, CONFIG, CLIENTS)
    submitted = there.submitting(CONFIG, deployed)
    wait_for_rounds(run_of(deployed), 2)
    there.kill_run()
    there.wait_for_end(submitted)
    log = there.log(submitted)
    assert log.count("run folder: ") == 2, "the run was over before its process was killed"
    assert "Traceback" not in log
    assert_same_tables(deployed, in_process)


COUNTED = names(2)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two clients with the app, which is not made by `fair`."""
    installed = tmp_path_factory.mktemp("installed") / "app"
    app = ROOT / "tests" / "runtimes" / "counting_app"
    shutil.copytree(app, installed, ignore=shutil.ignore_patterns("__pycache__"))
    with federation(tmp_path_factory.mktemp("there") / "home", len(COUNTED)) as runtime:
        (runtime.home / "app").symlink_to(installed)
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{installed}{os.pathsep}{before}"
        for name in COUNTED:
            (runtime.bundle(name) / "owner.toml").write_text('app = "counting.client:plain"\n')
            runtime.start_client(name)
        runtime.wait_for_clients(*COUNTED)
        yield runtime


def counts(out: Path) -> dict[int, set[str]]:
    """Return how often the clients of each round had trained in it."""
    found: dict[int, set[str]] = {}
    for row in table(out / "metrics.csv"):
        if row["metric"] == "times" and row["client"]:
            found.setdefault(int(row["round"]), set()).add(row["value"])
    return found


@pytest.mark.federation
def test_kills_and_a_second_submit_count_no_training_twice(counted: Deployment, out: Path) -> None:
    settings = {"out": str(out), "num-server-rounds": 120}
    submitted = counted.submitting(settings, counted.home / "app")
    for number in (10, 20, 30):
        wait_for_rounds(out, number)
        counted.kill_run()
        counted.wait_for_clients(*COUNTED)
    for number in (50, 70):
        wait_for_rounds(out, number)
        counted.kill(counted.server)
        time.sleep(0.5)
        counted.start_server()
        counted.wait_for_clients(*COUNTED)
    wait_for_rounds(out, 90)
    counted.kill(counted.clients[COUNTED[0]])
    counted.start_client(COUNTED[0])
    counted.wait_for_end(submitted)
    assert len(rounds(out)) == 120
    assert counts(out) == {number: {str(number)} for number in range(1, 121)}
    counted.wait_for_end(
        counted.submitting({**settings, "num-server-rounds": 125}, counted.home / "app")
    )
    assert counts(out) == {number: {str(number)} for number in range(1, 126)}
    assert "the app's state is that after round 120 of run folder" in "".join(
        counted.log(client) for client in counted.clients.values()
    )


ALLOWED, OTHER = names(2)
OWN_SETTINGS = ("clients=2", "num-rounds=2", "fraction=1.0")


@pytest.fixture(scope="module")
def with_own_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with the user's module on the server; the owner of one client allows it."""
    home = tmp_path_factory.mktemp("own") / "home"
    with federation(home, 2) as runtime:
        (home / "theirs.py").write_text(THEIRS)
        (runtime.bundle(ALLOWED) / "owner.toml").write_text('allow = ["theirs:slopes"]\n')
        runtime.start_client(ALLOWED)
        runtime.start_client(OTHER)
        runtime.wait_for_clients(ALLOWED, OTHER)
        yield runtime


def submit(with_own_code: Deployment, *settings: str) -> str:
    """Submit a run from a directory without an app, wait for its end, and return its log."""
    words = [word for setting in (*OWN_SETTINGS, *settings) for word in ("--set", setting)]
    submitted = with_own_code.start("fairbloom", "deploy", "submit", *words)
    with_own_code.wait_for_end(submitted)
    return with_own_code.log(submitted)


@pytest.mark.federation
def test_a_users_method_needs_nothing_on_the_clients(with_own_code: Deployment) -> None:
    out = with_own_code.home / "method"
    submit(with_own_code, "method=theirs:WorstHalf", "worsthalf.share=0.3", f"out={out}")
    assert [row["replies_used"] for row in rounds(out)] == ["2", "2"]
    assert "worsthalf.share = 0.3" in (out / "config.toml").read_text().replace('"', "")


@pytest.mark.federation
def test_a_users_task_runs_only_where_the_owner_allows_it(with_own_code: Deployment) -> None:
    out = with_own_code.home / "task"
    own = ("task=theirs:slopes", "slopes.noise=0.2", "learning-rate=0.01")
    # a run begins without a client that goes on refusing it
    log = submit(with_own_code, *own, "wait-for-clients=1.0", f"out={out}")
    assert [row["replies_used"] for row in rounds(out)] == ["1", "1"]
    assert {row["client"] for row in table(out / "clients.csv")} == {ALLOWED}
    assert f"{OTHER}" in log
    assert (
        "the run sets task = 'theirs:slopes', and this client allows no path and no import string"
        " there" in log
    )


@pytest.mark.federation
def test_a_module_that_the_server_lacks_is_named_in_the_log(
    with_own_code: Deployment, tmp_path: Path
) -> None:
    """The operator has the module in the current directory; the server was started elsewhere."""
    (tmp_path / "hers_alone.py").write_text(THEIRS)
    done = subprocess.run(
        [
            with_own_code.scripts / "fairbloom",
            "deploy",
            "submit",
            "--set",
            "method=hers_alone:WorstHalf",
        ],
        env=with_own_code.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert f"there is no module hers_alone, neither in {with_own_code.home}" in done.stdout
