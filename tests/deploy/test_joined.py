"""Real processes that join by a token and train, and whose keys are renewed in the midst of a run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.operator.federation import Federation
from tests.attacks.unhurried import start_unhurried_client
from tests.deploy.federation import Deployment, federation, rounds, wait_for_rounds
from tests.deploy.flower import wait_until

from .door import end_soon

pytestmark = pytest.mark.slow

CLIENTS = ("site-a", "site-b")
ENDLESS: dict[str, Any] = {"clients": 2, "fraction": 1.0, "num-rounds": 100_000, "evaluate-every": 0, "device": "cpu"}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Deployment]:
    with federation(tmp_path / "home") as runtime:
        yield runtime


def noted(there: Deployment, event: str) -> list[str]:
    lines = [json.loads(line) for line in (there.folder / "state" / "audit.jsonl").read_text().splitlines()]
    return [line["client"] for line in lines if line["event"] == event]


def test_devices_join_train_and_renew_their_keys_in_a_run(there: Deployment) -> None:
    token = there.home / "token"
    token.write_text(there.fairbloom("deploy", "token", "--clients", "2").stdout)
    for name in CLIENTS:
        there.fairbloom("client", "join", str(token), "--name", name, "--to", str(there.bundle(name)))
        start_unhurried_client(there, name)
    late = there.fairbloom("client", "join", str(token), "--name", "site-c", check=False)
    assert late.returncode == 2
    assert "is used up: it was for 2 client(s)" in late.stderr
    assert noted(there, "join") == list(CLIENTS)
    run = there.home / "run"
    there.submitting({**ENDLESS, "out": str(run)})
    wait_for_rounds(run, 2)
    keys = [(there.bundle(name) / "key").read_bytes() for name in CLIENTS]
    for name in CLIENTS:
        end_soon(Federation(there.folder), name)
    wait_until(lambda: len(noted(there, "key renewed")) == 2)
    wait_for_rounds(run, len(rounds(run)) + 3)
    assert all((there.bundle(name) / "key").read_bytes() != key for name, key in zip(CLIENTS, keys, strict=True))
    there.kill(there.clients["site-a"])
    start_unhurried_client(there, "site-a")
    number = len(rounds(run))
    wait_for_rounds(run, number + 3)
    there.stop_runs()
    before = rounds(run)[: number - 1]
    assert {row["replies_used"] for row in (*before, rounds(run)[-1])} == {"2"}
    assert not any(row["missing"] or row["refused"] for row in before)
    shutil.rmtree(there.bundle("site-b"))
    again = there.fairbloom("client", "join", str(token), "--name", "site-b", "--to", "elsewhere", check=False)
    assert "another device has come as 'site-b'" in again.stderr
    assert "a key at another place" not in (there.folder / "state" / "audit.jsonl").read_text()
