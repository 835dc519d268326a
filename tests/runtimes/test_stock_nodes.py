"""The SuperLink, SuperExec and SuperNodes of the newest Flower, as in docker/stock.yaml."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.deployment import federation, names, rounds
from benchmarks.flower import ROOT, SCRIPTS
from tests.client import changed
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import assert_same_model, table

from .stock import NODES, Stock, stock

pytestmark = pytest.mark.federation

CLIENTS = len(NODES)
CONFIG = changed.CONFIG | {"num-server-rounds": 1}
FLOWER = re.search(r"^flwr==(\S+)", (ROOT / "docker" / "flower.txt").read_text(), re.M)


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory, flower_folder: Callable[[str], str]
) -> Iterator[Stock]:
    """Flower's own processes, without any of ours."""
    assert FLOWER
    folder = flower_folder(FLOWER[1])
    with pytest.MonkeyPatch.context() as patch:
        scripts = Path(folder, "bin") if folder else SCRIPTS
        if folder:
            patch.setenv("PYTHONPATH", folder)
            (scripts / "fairbloom").symlink_to(SCRIPTS / "fairbloom")
        with stock(tmp_path_factory.mktemp("stock") / "home", scripts) as runtime:
            yield runtime


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Flower's quickstart with the lines changed that docs/flower.md counts."""
    changed.change(tmp_path / "app")
    changed.aim(tmp_path / "app", tmp_path / "run")
    changed.edit(
        tmp_path / "app/mydigits/server_app.py", "FedFV(", f"FedFV(min_available_nodes={CLIENTS}, "
    )
    return tmp_path / "app"


def tracebacks(runtime: Stock) -> int:
    return sum(log.read_text().count("Traceback") for log in runtime.home.glob("*.log"))


def run(runtime: Stock, folder: Path, config: dict[str, Any]) -> None:
    """Run the app in a folder to its end."""
    status = runtime.run("real", config, app=folder)
    assert status == "finished:completed", (runtime.home / "run.log").read_text()[-3000:]


def test_the_composition_gives_the_run_of_our_own_nodes(
    there: Stock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    there.carry_out("experiment", "num-rounds=2")
    monkeypatch.chdir(tmp_path)
    assert fairbloom("new", "my-app") == 0
    words = [f"clients={CLIENTS}", "num-rounds=2", f"out={tmp_path}/in-process"]
    subprocess.run([sys.executable, "-m", "my_app", *words], cwd=tmp_path / "my-app", check=True)
    with federation(tmp_path / "home", CLIENTS) as runtime:
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{tmp_path / 'my-app'}{os.pathsep}{before}"
        for name in names(CLIENTS):
            (runtime.bundle(name) / "owner.toml").write_text('app = "my_app.client_app:app"\n')
        runtime.start_clients(*names(CLIENTS))
        runtime.submit(
            {"clients": CLIENTS, "num-rounds": 2, "out": str(tmp_path / "ours")},
            tmp_path / "my-app",
        )
    for folder in (there.runs / "stock", tmp_path / "ours"):
        with subtests.test(folder=folder):
            assert_same_model(folder, tmp_path / "in-process")
            assert [row["replies_used"] for row in rounds(folder)] == [str(CLIENTS)] * 2
            print(folder.name, "seconds a round:", [row["seconds"] for row in rounds(folder)])


def test_fair_leaves_no_traceback_and_a_run_folder_continues(
    there: Stock,
    app: Path,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    before = tracebacks(there)
    for number in (1, 2):
        with subtests.test(number=number):
            run(there, app, {**CONFIG, "num-server-rounds": number})
            assert [(row["round"], row["replies_used"]) for row in rounds(tmp_path / "run")] == [
                (str(each), str(CLIENTS)) for each in range(1, number + 1)
            ]
    assert tracebacks(there) == before
    assert {row["client"] for row in table(tmp_path / "run/clients.csv")} == set(names(CLIENTS))
    assert torch.load(tmp_path / "run.pt")


def test_an_unchanged_client_is_asked_for_its_name_once(
    there: Stock, app: Path, tmp_path: Path
) -> None:
    """It answers with an error, as it has no query function; its node logs a traceback."""
    shutil.copy(changed.QUICKSTART / "mydigits" / "client_app.py", app / "mydigits")
    server = app / "mydigits" / "server_app.py"
    server.write_text(server.read_text().replace("FedFV", "FedMGDAPlus"))
    before = tracebacks(there)
    run(there, app, CONFIG)
    assert [row["replies_used"] for row in rounds(tmp_path / "run")] == [str(CLIENTS)]
    assert tracebacks(there) - before <= 1
