"""Private rounds of real processes: six devices with identities, of which one is killed."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.federation import Deployment, federation, names, rounds, wait_for_rounds

pytestmark = pytest.mark.slow

CLIENTS = names(6)
MEAN = "test_accuracy_of_global_model_mean"
SETTINGS: dict[str, Any] = {
    "clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": 3,
    "method": "term",
    "privacy": "sums",
    "min-clients": 6,
    "partition": "iid",
    "device": "cpu",
    "round-timeout": 120.0,
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("deployed") / "home", len(CLIENTS)) as runtime:
        give_own_key(runtime, CLIENTS[-1])
        runtime.start_clients(*CLIENTS)
        yield runtime


def give_own_key(there: Deployment, name: str) -> None:
    """Let a device make its key itself, and have it enrolled by its request."""
    made = there.home / "made"
    there.fairbloom("client", "keys", name, "--out", str(made))
    there.fairbloom("deploy", "enroll", name, "--request", str(made / f"{name}.request"))
    (made / "key").rename(there.bundle(name) / "key")


RUNS: dict[str, dict[str, Any]] = {
    "term": {},
    "fedmgdaplus": {
        "method": "fedmgdaplus",
        "privacy": "angles",
        "fedmgdaplus.epsilon": 0.3,
        "fedmgdaplus.server-lr": 0.5,
    },
    "afl": {"method": "afl"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_private_run_on_devices_learns_what_a_plain_one_does(name: str, there: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    there.submit({**SETTINGS, **RUNS[name], "out": str(out)})
    assert median(float(row["seconds"]) for row in rounds(out)) <= 5.0
    plain = {**SETTINGS, **RUNS[name], "privacy": "none", "min-clients": 0, "out": str(tmp_path / "plain")}
    folder = simulate(Settings.of(plain))
    assert [row["replies_used"] for row in rounds(out)] == ["6"] * 3
    for ours, theirs in zip(rounds(out), rounds(folder), strict=True):
        assert float(ours[MEAN]) == pytest.approx(float(theirs[MEAN]), abs=0.5)


def test_a_device_that_is_killed_costs_itself_alone(there: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    submitted = there.submitting({**SETTINGS, "num-rounds": 6, "round-timeout": 25.0, "out": str(out)})
    wait_for_rounds(out, 1)
    there.kill(there.clients[CLIENTS[2]])
    time.sleep(1.0)
    there.start_client(CLIENTS[2])
    submitted.wait(240)
    rows = rounds(out)
    assert len(rows) == 6
    assert {row["replies_used"] for row in rows} <= {"0", "5", "6"}
    assert sum(row["replies_used"] != "0" for row in rows) >= 4
