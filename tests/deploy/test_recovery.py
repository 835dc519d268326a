"""Real processes whose state was lost: a database that was deleted, a server that goes on from a copy."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.operator.federation import Federation
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.federation import Deployment, federation, names, rounds, wait_for_rounds
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


def undisturbed(folder: Path, number: int) -> Path:
    return simulate(Settings.of({**SETTINGS, "num-rounds": number, "out": str(folder / "undisturbed")}))


def assert_same(run: Path, folder: Path, number: int) -> None:
    assert_same_model(run, undisturbed(folder, number))
    assert [int(row["round"]) for row in rounds(run)] == [*range(1, number + 1)]
    assert {row["replies_used"] for row in rounds(run)} == {"3"}


def doctor(there: Deployment) -> subprocess.CompletedProcess[str]:
    return there.fairbloom("deploy", "doctor", check=False)


def statuses(there: Deployment) -> dict[str, str]:
    rows = json.loads(there.fairbloom("deploy", "status", "--json").stdout)["clients"]
    return {row["client"]: row["status"] for row in rows}


def test_a_deleted_database_is_made_again_and_lets_no_revoked_client_back_in(there: Deployment, tmp_path: Path) -> None:
    there.enroll("guest")
    shutil.copytree(there.bundle("guest"), there.bundle("device"))
    there.fairbloom("deploy", "revoke", "guest")
    there.enroll("second")
    before = {client.name: client.node_id for client in Federation(there.folder).enrolled}
    out = tmp_path / "run"
    submitted = there.submitting({**SETTINGS, "num-rounds": 12, "out": str(out)})
    wait_for_rounds(out, 3)
    there.kill(there.server)
    for file in (there.folder / "state").glob("superlink.db*"):
        file.unlink()
    there.start_server()
    assert "the SuperLink knows all 4 that are enrolled" in doctor(there).stdout
    assert set(statuses(there)) == {*CLIENTS, "second"}
    assert {client.name: client.node_id for client in Federation(there.folder).enrolled} == before
    for name in CLIENTS:
        there.wait_for_words(there.clients[name], "back: connected again")
    there.start_client("device")
    there.wait_for_words(there.clients["device"], "[code: 2004]", "is not registered")
    there.stop(there.clients.pop("device"))
    there.fairbloom("deploy", "revoke", "second")
    assert "second" not in statuses(there)
    there.wait_for_end(submitted, code=2)  # the run was in the database
    assert "The same submit continues the run after its last finished round" in there.log(submitted)
    assert 3 <= len(rounds(out)) < 12
    there.submit({**SETTINGS, "num-rounds": 12, "out": str(out)})
    assert_same(out, tmp_path, 12)


def test_a_database_that_is_deleted_under_the_running_server_is_made_again(there: Deployment, tmp_path: Path) -> None:
    superlink = there.part("superlink")
    for file in (there.folder / "state").glob("superlink.db*"):
        file.unlink()
    there.wait_for_words(there.server, "was deleted or replaced: the SuperLink is started again")
    there.wait_for_words(there.server, "registered again")
    assert there.part("superlink") != superlink
    for name in CLIENTS:
        there.wait_for_words(there.clients[name], "back: connected again")
    out = tmp_path / "run"
    there.submit({**SETTINGS, "num-rounds": 2, "out": str(out)})
    assert_same(out, tmp_path, 2)
    assert "fault" not in doctor(there).stdout


def test_a_run_goes_on_from_a_copy_made_while_it_ran(there: Deployment, tmp_path: Path) -> None:
    """The server is killed and its folder lost; clients are as they were."""
    out, copy = tmp_path / "run", tmp_path / "federation.tar.gz"
    submitted = there.submitting({**SETTINGS, "num-rounds": 30, "out": str(out)})
    wait_for_rounds(out, 3)
    without = ("--exclude", "federation/state/superlink.db*")
    subprocess.run(["tar", "czf", copy, *without, "federation"], cwd=there.home, check=True)
    wait_for_rounds(out, len(rounds(out)) + 2)
    there.kill(there.server)
    assert len(rounds(out)) < 30
    shutil.rmtree(there.folder)
    subprocess.run(["tar", "xzf", copy], cwd=there.home, check=True)
    there.start_server()
    there.wait_for_end(submitted, code=2)  # the run was in the database
    there.submit({**SETTINGS, "num-rounds": 30, "out": str(out)})
    assert_same(out, tmp_path, 30)
    assert "fault" not in doctor(there).stdout
    assert statuses(there) == dict.fromkeys(CLIENTS, "online")
