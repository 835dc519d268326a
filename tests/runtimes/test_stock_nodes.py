"""Flower's own SuperLink and SuperNodes, of the newest Flower: docs/stock-nodes.md."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.client import changed
from tests.deploy.federation import names, rounds
from tests.deploy.flower import SCRIPTS, Flower, deployment
from tests.runtimes.installed import temporary_app
from tests.simulation.helpers import assert_same_model, table

pytestmark = pytest.mark.federation

CLIENTS = 2
CONFIG = changed.CONFIG | {"num-server-rounds": 1}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, flower_folder: Callable[[str], str]) -> Iterator[Flower]:
    """Flower's own processes, none of ours."""
    folder = flower_folder("1.42.0")
    with pytest.MonkeyPatch.context() as patch:
        if folder:
            patch.setenv("PYTHONPATH", folder)
        scripts = Path(folder, "bin") if folder else SCRIPTS
        with deployment(tmp_path_factory.mktemp("stock") / "home", CLIENTS, scripts) as runtime:
            yield runtime


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Flower's quickstart with the lines changed that docs/flower.md counts."""
    changed.change(tmp_path / "app")
    changed.aim(tmp_path / "app", tmp_path / "run")
    wait_for_all = f"FedFV(min_available_nodes={CLIENTS}, "
    changed.edit(tmp_path / "app/mydigits/server_app.py", "FedFV(", wait_for_all)
    return tmp_path / "app"


def tracebacks(runtime: Flower) -> int:
    return sum(log.read_text().count("Traceback") for log in runtime.home.glob("*.log"))


def run(runtime: Flower, folder: Path, config: dict[str, Any]) -> None:
    """Run the app in a folder to its end."""
    status = runtime.run("real", config, app=folder)
    assert status == "finished:completed", (runtime.home / "run.log").read_text()[-3000:]


def test_fairbloom_gives_the_run_in_process(stock: Flower, tmp_path: Path) -> None:
    settings = {"clients": CLIENTS, "num-rounds": 2, "method": "fedfv", "momentum": 0.9, "device": "cpu", "seed": 3}
    with temporary_app() as installed:
        run(stock, installed, {**settings, "out": str(tmp_path / "run")})
    expected = simulate(Settings.of({**settings, "out": str(tmp_path / "in-process")}))
    assert_same_model(tmp_path / "run", expected)
    assert [row["replies_used"] for row in rounds(tmp_path / "run")] == [str(CLIENTS)] * 2
    print("seconds a round:", [row["seconds"] for row in rounds(tmp_path / "run")])


def test_fair_leaves_no_traceback_and_a_run_folder_continues(stock: Flower, app: Path, tmp_path: Path) -> None:
    before = tracebacks(stock)
    for number in (1, 2):
        run(stock, app, {**CONFIG, "num-server-rounds": number})
        assert [(row["round"], row["replies_used"]) for row in rounds(tmp_path / "run")] == [
            (str(each), str(CLIENTS)) for each in range(1, number + 1)
        ]
    assert tracebacks(stock) == before
    assert {row["client"] for row in table(tmp_path / "run/clients.csv")} == set(names(CLIENTS))
    assert torch.load(tmp_path / "run.pt")


def test_an_unchanged_client_is_asked_for_its_name_once(stock: Flower, app: Path, tmp_path: Path) -> None:
    """Its answer, that it has no query function, is an error with a traceback in that node's log."""
    shutil.copy(changed.QUICKSTART / "mydigits" / "client_app.py", app / "mydigits")
    server = app / "mydigits" / "server_app.py"
    server.write_text(server.read_text().replace("FedFV", "FedMGDAPlus"))
    before = tracebacks(stock)
    run(stock, app, CONFIG)
    assert [row["replies_used"] for row in rounds(tmp_path / "run")] == [str(CLIENTS)]
    assert tracebacks(stock) - before <= 1
