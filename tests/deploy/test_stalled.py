"""All clients of a real federation stall for longer than a round may last: the run continues."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from benchmarks.flower import wait_until

pytestmark = pytest.mark.federation

CLIENTS = names(3)
ROUNDS = 12
SETTINGS: dict[str, Any] = {
    "clients": len(CLIENTS),
    "min-clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": ROUNDS,
    "method": "fedfv",
    "local-epochs": 20,  # a round takes longer than one look at it
    "round-timeout": 20.0,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("stalled") / "home", len(CLIENTS)) as runtime:
        runtime.start_clients(*CLIENTS)
        first = {"num-rounds": 1, "round-timeout": 300.0, "out": str(runtime.home / "first")}
        # workers load their libraries in it, which may take longer than a round may last
        runtime.submit({**SETTINGS, **first})
        yield runtime


@contextmanager
def standing_still(there: Deployment, *clients: str) -> Iterator[None]:
    """Stop these clients' processes during the block, as a laptop's lid does."""
    stopped = [
        pid
        for name in clients
        for pid in (there.clients[name].pid, *there.offspring(there.clients[name]))
    ]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def assert_missed_once_at_most(out: Path) -> None:
    """The round's time may end shortly before its clients count as offline."""
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, ROUNDS + 1)]
    used = [(row["replies_used"], row["missing"]) for row in rounds(out)]
    assert len(used) - used.count(("3", "")) <= 1
    assert {*used} <= {("3", ""), ("0", " ".join(CLIENTS))}


def test_a_stall_of_all_is_waited_for_and_the_run_ends(there: Deployment, tmp_path: Path) -> None:
    """It lasts longer than a round may; the server notices within 30 s that no client is online."""
    out = tmp_path / "run"
    submitted = there.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(there, *CLIENTS):
        there.wait_for_words(submitted, "awaited: client-0, client-1, client-2", seconds=120.0)
        finished = len(rounds(out))
        time.sleep(SETTINGS["round-timeout"])
        assert len(rounds(out)) == finished < ROUNDS
    there.wait_for_end(submitted)
    assert_missed_once_at_most(out)


def test_a_run_killed_in_the_stall_goes_on_after_it(there: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "run"
    submitted = there.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(there, *CLIENTS):
        wait_until(lambda: not there.online(), seconds=120.0)
        there.kill_run()
        there.wait_for_words(submitted, "A shorter wait-for-clients goes on without them")
    there.wait_for_end(submitted)
    assert_missed_once_at_most(out)


def test_the_rounds_continue_without_a_client_that_stalls(
    there: Deployment, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    submitted = there.submitting({**SETTINGS, "min-clients": 2, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(there, CLIENTS[1]):
        there.wait_for_end(submitted)
    used = [row["replies_used"] for row in rounds(out)]
    assert used == sorted(used, reverse=True)
    assert set(used) == {"2", "3"}
    missing = [row["missing"] for row in rounds(out) if row["missing"]]
    assert set(missing) == {CLIENTS[1]}
    assert len(missing) < used.count("2")  # it is asked again after pauses, not in each round


def test_work_without_an_end_ends_with_its_run(there: Deployment, tmp_path: Path) -> None:
    """With far too many epochs, the run fails, and the next one finds every client."""
    endless = {
        **SETTINGS,
        "num-rounds": 5,
        "local-epochs": 100_000_000,
        "round-timeout": 10.0,
        "unused-rounds": 1,
    }
    submitted = there.submitting({**endless, "out": str(tmp_path / "endless")})
    there.wait_for_end(submitted, code=1)
    assert "3 of 3 clients did not answer in time" in there.log(submitted)
    assert {client["state"] for client in there.status()["clients"].values()} == {"online"}
    there.submit({**SETTINGS, "num-rounds": 2, "out": str(tmp_path / "next")})
    assert [row["replies_used"] for row in rounds(tmp_path / "next")] == ["3", "3"]
    assert all("the client dropped this work" in there.log(there.clients[name]) for name in CLIENTS)
