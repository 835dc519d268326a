"""An app that counts in `context.state` on real nodes: kills and second submits count nothing twice."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from tests.checkout import ROOT
from tests.simulation.helpers import table

pytestmark = pytest.mark.federation

CLIENTS = names(2)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two clients with the app, which is not made by `fair`."""
    installed = tmp_path_factory.mktemp("installed") / "app"
    app = ROOT / "tests" / "runtimes" / "counting_app"
    shutil.copytree(app, installed, ignore=shutil.ignore_patterns("__pycache__"))
    with federation(tmp_path_factory.mktemp("there") / "home", len(CLIENTS)) as runtime:
        (runtime.home / "app").symlink_to(installed)
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{installed}{os.pathsep}{before}"
        for name in CLIENTS:
            (runtime.bundle(name) / "owner.toml").write_text('app = "counting.client:plain"\n')
            runtime.start_client(name)
        runtime.wait_for_clients(*CLIENTS)
        yield runtime


def counts(out: Path) -> dict[int, set[str]]:
    """Return how often the clients of each round had trained in it."""
    found: dict[int, set[str]] = {}
    for row in table(out / "metrics.csv"):
        if row["metric"] == "times" and row["client"]:
            found.setdefault(int(row["round"]), set()).add(row["value"])
    return found


def test_kills_and_a_second_submit_count_no_training_twice(
    there: Deployment, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    settings = {"out": str(out), "num-server-rounds": 120}
    submitted = there.submitting(settings, there.home / "app")
    for number in (10, 20, 30):
        wait_for_rounds(out, number)
        there.kill_run()
        there.wait_for_clients(*CLIENTS)
    for number in (50, 70):
        wait_for_rounds(out, number)
        there.kill(there.server)
        time.sleep(0.5)
        there.start_server()
        there.wait_for_clients(*CLIENTS)
    wait_for_rounds(out, 90)
    there.kill(there.clients[CLIENTS[0]])
    there.start_client(CLIENTS[0])
    there.wait_for_end(submitted)
    assert len(rounds(out)) == 120
    assert counts(out) == {number: {str(number)} for number in range(1, 121)}
    there.wait_for_end(there.submitting({**settings, "num-server-rounds": 125}, there.home / "app"))
    assert counts(out) == {number: {str(number)} for number in range(1, 126)}
    assert "the app's state is that after round 120 of run folder" in "".join(
        there.log(client) for client in there.clients.values()
    )
