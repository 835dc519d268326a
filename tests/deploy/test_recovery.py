"""The server's state was lost: a run continues from a copy."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.federation

CLIENTS = names(3)
SETTINGS: dict[str, Any] = {
    "clients": 3,
    "fraction": 1.0,
    "evaluate-every": 0,
    "method": "fedfv",
    "momentum": 0.9,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Deployment]:
    with federation(tmp_path / "home", len(CLIENTS)) as runtime:
        runtime.start_clients(*CLIENTS)
        yield runtime


def test_a_run_goes_on_from_a_copy_made_while_it_ran(there: Deployment, tmp_path: Path) -> None:
    """The server is killed and its folder lost; the clients are unchanged."""
    out = tmp_path / "run"
    copy = tmp_path / "federation.tar.gz"
    submitted = there.submitting({**SETTINGS, "num-rounds": 30, "out": str(out)})
    wait_for_rounds(out, 3)
    subprocess.run(["tar", "czf", copy, "fed"], cwd=there.home, check=True)
    wait_for_rounds(out, len(rounds(out)) + 2)
    there.kill(there.server)
    assert len(rounds(out)) < 30
    shutil.rmtree(there.folder)
    subprocess.run(["tar", "xzf", copy], cwd=there.home, check=True)
    there.start_server()
    submitted.wait(timeout=300)  # it still follows the run, or has noticed that its files were gone
    there.submit({**SETTINGS, "num-rounds": 30, "out": str(out)})
    assert_same_model(
        out,
        simulate(Settings.of({**SETTINGS, "num-rounds": 30, "out": str(tmp_path / "undisturbed")})),
    )
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, 31)]
    assert {row["replies_used"] for row in rounds(out)} == {"3"}
    assert "fault" not in there.fairbloom("deploy", "doctor", check=False).stdout
    assert there.online() == {*CLIENTS}
