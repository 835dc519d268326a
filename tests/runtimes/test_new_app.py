"""The app that `fairbloom new` writes, between real processes; killed there, it goes on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.federation import Deployment, federation, names, rounds, wait_for_rounds
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import table

pytestmark = pytest.mark.slow

ROUNDS = 8
APP = 'app = "hearts.client_app:app"\n'


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fairbloom("new", "hearts") == 0
    return tmp_path / "hearts"


@pytest.fixture
def there(app: Path, tmp_path: Path) -> Iterator[Deployment]:
    """A federation of two clients on which the app is installed."""
    clients = names(2)
    with federation(tmp_path / "home", 2) as runtime:
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{app}{os.pathsep}{before}"
        for name in clients:
            (runtime.bundle(name) / "owner.toml").write_text(APP)
            runtime.start_client(name)
        runtime.environment["PYTHONPATH"] = before
        runtime.wait_for_clients(*clients)
        yield runtime


def test_deployed_and_killed_in_mid_run_it_goes_on(there: Deployment, app: Path) -> None:
    """The server starts the killed process again, which continues from the run folder."""
    out = there.home / "run"
    settings = {"clients": 2, "num-rounds": ROUNDS, "out": str(out)}
    submitted = there.submitting(settings, app)
    wait_for_rounds(out, 3)
    there.kill_run()
    there.wait_for_end(submitted)
    done = rounds(out)
    assert [int(row["round"]) for row in done] == list(range(1, ROUNDS + 1))
    assert {row["client"] for row in table(out / "clients.csv")} == set(names(2))
    assert done[-1]["replies_used"] == "2"
