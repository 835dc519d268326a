"""Clients with a certificate, good or revoked, that call the port as often as they can."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from benchmarks.processes import grown_memory
from tests.attacks.strangers import crowd

pytestmark = pytest.mark.slow

MODULE = "tests.attacks.callers"
ENDLESS: dict[str, Any] = {
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 1_000_000,
    "evaluate-every": 0,
    "device": "cpu",
    "local-epochs": 1,
}
LIMIT = 4 * 2 + 1000
ALLOWED_MB = 150


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two with an endless run of one client, and a client that will misbehave."""
    with federation(tmp_path_factory.mktemp("callers") / "home") as runtime:
        settings = runtime.folder / "federation.toml"
        settings.write_text(settings.read_text() + "max-clients = 2\n")
        runtime.stop(runtime.server)
        runtime.start_server()
        runtime.enroll("client-0", "late", "liar")
        runtime.start_clients("client-0")
        runtime.submitting(
            {**ENDLESS, "training-clients": "client-0", "out": str(runtime.home / "run")}
        )
        wait_for_rounds(runtime.home / "run", 2, 120)
        yield runtime


def rate(there: Deployment, seconds: float = 5.0) -> float:
    before = len(rounds(there.home / "run"))
    time.sleep(seconds)
    return (len(rounds(there.home / "run")) - before) / seconds


@pytest.mark.parametrize("kind", ["parallel", "beat"])
def test_calls_without_a_pause_do_not_stop_a_run(there: Deployment, kind: str) -> None:
    before = rate(there)
    with crowd(MODULE, 800, str(there.fleet), str(there.bundle("liar")), kind):
        during = rate(there)
    print(f"{before:.1f} rounds a second without the calls, {during:.1f} with them")
    assert during > 0.4 * before
    if kind == "parallel":
        assert there.log(there.server).count("client liar calls too often") == 1


@pytest.mark.parametrize("state", ["enrolled", "revoked"])
def test_one_certificate_keeps_no_other_client_out(
    there: Deployment, tmp_path: Path, state: str
) -> None:
    bundle = shutil.copytree(there.bundle("liar"), tmp_path / "liar")
    if state == "revoked":
        there.fairbloom("deploy", "revoke", "liar")
    with (
        grown_memory(there.server.pid) as grown,
        crowd(MODULE, LIMIT + 100, str(there.fleet), str(bundle), "silent"),
    ):
        there.start_client("late")
        there.wait_for_clients("late", seconds=30.0)
        there.stop(there.clients.pop("late"))
        assert rate(there) > 0
        # A busy machine closes them later.
        wait_until(
            lambda: there.status()["connections"]["open"] < LIMIT / 2,
            lambda: str(there.status()["connections"]),
        )
        connections = there.status()["connections"]
    print(f"{connections}; the server's memory grew by {grown[0]:.0f} MB")
    assert connections["limit"] == LIMIT
    assert grown[0] < ALLOWED_MB
    assert "client-0" in there.online()
    assert len(there.log(there.server).splitlines()) < 10
