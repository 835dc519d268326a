"""Links, server or clients are away for minutes: the run waits and ends with the same bits.

All clients of a real federation stall for longer than a round may last: the run continues.

The server's state was lost: a run continues from a copy.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.federation import Cable
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.federation

CLIENTS = names(4)
ROUNDS = 40
SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
    "clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": ROUNDS,
    "evaluate-every": 1,
    "method": "fedfv",
    "momentum": 0.9,
    "device": "cpu",
    "seed": 3,
}
LINK_SECONDS = 150.0
# Seconds that links and the server are away; a client is offline after one minute.
SERVER_SECONDS = 90.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(
        Settings.of({**SETTINGS, "out": str(tmp_path_factory.mktemp("in-process") / "run")})
    )


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, list[Cable]]]:
    """A federation with four clients online; all but the first reach the server by cables."""
    with federation(tmp_path_factory.mktemp("deployed") / "home", len(CLIENTS)) as runtime:
        cables = [Cable(runtime.fleet) for _ in CLIENTS[1:]]
        runtime.start_client(CLIENTS[0])
        for name, cable in zip(CLIENTS[1:], cables, strict=True):
            runtime.start_client(name, "--server", f"localhost:{cable.port}")
        runtime.wait_for_clients(*CLIENTS)
        yield runtime, cables
        for cable in cables:
            cable.close()


def assert_undisturbed(out: Path, undisturbed: Path) -> None:
    """Assert that all rounds have all clients, and that the model has the same bits."""
    rows = rounds(out)
    assert [int(row["round"]) for row in rows] == [*range(1, ROUNDS + 1)]
    assert {
        (row["replies_used"], row["missing"], row["refused"], row["offline"]) for row in rows
    } == {("4", "", "", "")}
    assert_same_model(out, undisturbed)


def test_a_client_killed_at_work_costs_seconds_and_no_reply(
    there: tuple[Deployment, list[Cable]], undisturbed: Path, out: Path
) -> None:
    runtime, cables = there
    name = CLIENTS[3]
    submitted = runtime.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    for _ in range(2):
        runtime.kill(runtime.clients[name])
        before = len(rounds(out))
        runtime.start_client(name, "--server", f"localhost:{cables[-1].port}")
        # a client that is refused returns after a minute
        wait_for_rounds(out, before + 5, seconds=50.0)
    runtime.wait_for_end(submitted)
    assert_undisturbed(out, undisturbed)


def test_three_sites_with_cut_links_are_waited_for(
    there: tuple[Deployment, list[Cable]], undisturbed: Path, out: Path
) -> None:
    runtime, cables = there
    submitted = runtime.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    for cable in cables:
        cable.cut()
    time.sleep(LINK_SECONDS)
    before = len(rounds(out))
    assert before < ROUNDS
    runtime.wait_for_words(
        submitted,
        "awaited: client-1, client-2, client-3, and min-clients = 1 would go on without them",
    )
    for cable in cables:
        cable.mend()
    mended = time.monotonic()
    wait_for_rounds(out, before + 2, seconds=60.0)
    print(f"a round was over {time.monotonic() - mended:.1f} s after the links were back")
    runtime.wait_for_end(submitted)
    assert_undisturbed(out, undisturbed)


def test_a_server_back_after_minutes_waits_for_its_clients(
    there: tuple[Deployment, list[Cable]], undisturbed: Path, out: Path
) -> None:
    runtime, _ = there
    submitted = runtime.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    runtime.kill(runtime.server)
    assert len(rounds(out)) < ROUNDS
    time.sleep(SERVER_SECONDS)
    runtime.start_server()
    started = time.monotonic()
    wait_until(lambda: runtime.online() == set(CLIENTS), seconds=60)
    print(f"all clients were online {time.monotonic() - started:.1f} s after the server was")
    runtime.wait_for_end(submitted)
    assert_undisturbed(out, undisturbed)


STALLING = names(3)
STALLED_ROUNDS = 12
STALLED: dict[str, Any] = {
    "smallest-batch": 5,
    "clients": len(STALLING),
    "min-clients": len(STALLING),
    "fraction": 1.0,
    "num-rounds": STALLED_ROUNDS,
    "method": "fedfv",
    "local-epochs": 20,  # a round takes longer than one look at it
    "round-timeout": 20.0,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("stalled") / "home", len(STALLING)) as runtime:
        runtime.start_clients(*STALLING)
        first = {"num-rounds": 1, "round-timeout": 300.0, "out": str(runtime.home / "first")}
        # workers load their libraries in it, which may take longer than a round may last
        runtime.submit({**STALLED, **first})
        yield runtime


@contextmanager
def standing_still(three: Deployment, *clients: str) -> Iterator[None]:
    """Stop these clients' processes during the block, as a laptop's lid does."""
    stopped = [
        pid
        for name in clients
        for pid in (three.clients[name].pid, *three.offspring(three.clients[name]))
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
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, STALLED_ROUNDS + 1)]
    used = [(row["replies_used"], row["missing"]) for row in rounds(out)]
    assert len(used) - used.count(("3", "")) <= 1
    assert {*used} <= {("3", ""), ("0", " ".join(STALLING))}


def test_a_stall_of_all_is_waited_for_and_the_run_ends(three: Deployment, out: Path) -> None:
    """It lasts longer than a round may; the server notices within 30 s that no client is online."""
    submitted = three.submitting({**STALLED, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(three, *STALLING):
        three.wait_for_words(submitted, "awaited: client-0, client-1, client-2", seconds=120.0)
        finished = len(rounds(out))
        time.sleep(STALLED["round-timeout"])
        assert len(rounds(out)) == finished < STALLED_ROUNDS
    three.wait_for_end(submitted)
    assert_missed_once_at_most(out)


def test_a_run_killed_in_the_stall_goes_on_after_it(three: Deployment, out: Path) -> None:
    submitted = three.submitting({**STALLED, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(three, *STALLING):
        wait_until(lambda: not three.online(), seconds=120.0)
        three.kill_run()
        three.wait_for_words(submitted, "A shorter wait-for-clients goes on without them")
    three.wait_for_end(submitted)
    assert_missed_once_at_most(out)


def test_the_rounds_continue_without_a_client_that_stalls(three: Deployment, out: Path) -> None:
    submitted = three.submitting({**STALLED, "min-clients": 2, "out": str(out)})
    wait_for_rounds(out, 3)
    with standing_still(three, STALLING[1]):
        three.wait_for_end(submitted)
    used = [row["replies_used"] for row in rounds(out)]
    assert used == sorted(used, reverse=True)
    assert set(used) == {"2", "3"}
    missing = [row["missing"] for row in rounds(out) if row["missing"]]
    assert set(missing) == {STALLING[1]}
    assert len(missing) < used.count("2")  # it is asked again after pauses, not in each round


def test_a_client_takes_part_again_after_its_late_reply(three: Deployment, out: Path) -> None:
    """And not only after as long again as a message lives."""
    late = {**STALLED, "min-clients": 2, "num-rounds": 300, "local-epochs": 1, "out": str(out)}
    submitted = three.submitting(late)
    wait_for_rounds(out, 3)
    with standing_still(three, STALLING[1]):
        wait_until(lambda: rounds(out)[-1]["owing"] == STALLING[1], seconds=60.0)
    wait_for_rounds(out, len(rounds(out)) + 50, seconds=120.0)
    assert rounds(out)[-1]["owing"] == ""
    assert f"asks {STALLING[1]} again" in three.log(submitted)
    three.stop_runs()
    submitted.wait(60)


def test_work_without_an_end_ends_with_its_run(three: Deployment, tmp_path: Path) -> None:
    """With far too many epochs, the run fails, and the next one finds every client."""
    endless = {
        **STALLED,
        "num-rounds": 5,
        "local-epochs": 100_000_000,
        "round-timeout": 10.0,
        "unused-rounds": 1,
    }
    submitted = three.submitting({**endless, "out": str(tmp_path / "endless")})
    three.wait_for_end(submitted, code=1)
    assert "3 of 3 clients did not answer in time" in three.log(submitted)
    assert {client["state"] for client in three.status()["clients"].values()} == {"online"}
    three.submit({**STALLED, "num-rounds": 2, "out": str(tmp_path / "next")})
    assert [row["replies_used"] for row in rounds(tmp_path / "next")] == ["3", "3"]
    assert all(
        "the client dropped this work" in three.log(three.clients[name]) for name in STALLING
    )


LOST = names(3)
RECOVERED: dict[str, Any] = {
    "smallest-batch": 5,
    "clients": 3,
    "fraction": 1.0,
    "evaluate-every": 0,
    "method": "fedfv",
    "momentum": 0.9,
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[Deployment]:
    with federation(tmp_path / "home", len(LOST)) as runtime:
        runtime.start_clients(*LOST)
        yield runtime


def test_a_run_goes_on_from_a_copy_made_while_it_ran(
    losing: Deployment, tmp_path: Path, out: Path
) -> None:
    """The server is killed and its folder lost; the clients are unchanged."""
    copy = tmp_path / "federation.tar.gz"
    submitted = losing.submitting({**RECOVERED, "num-rounds": 30, "out": str(out)})
    wait_for_rounds(out, 3)
    subprocess.run(["tar", "czf", copy, "fed"], cwd=losing.home, check=True)
    wait_for_rounds(out, len(rounds(out)) + 2)
    losing.kill(losing.server)
    assert len(rounds(out)) < 30
    shutil.rmtree(losing.folder)
    subprocess.run(["tar", "xzf", copy], cwd=losing.home, check=True)
    losing.start_server()
    submitted.wait(timeout=300)  # it still follows the run, or has noticed that its files were gone
    losing.submit({**RECOVERED, "num-rounds": 30, "out": str(out)})
    assert_same_model(
        out,
        simulate(
            Settings.of({**RECOVERED, "num-rounds": 30, "out": str(tmp_path / "undisturbed")})
        ),
    )
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, 31)]
    assert {row["replies_used"] for row in rounds(out)} == {"3"}
    assert "fault" not in losing.fairbloom("deploy", "doctor", check=False).stdout
    assert losing.online() == {*LOST}


def test_a_run_goes_on_where_its_federation_was_moved(losing: Deployment, tmp_path: Path) -> None:
    """With its run folder beside it; the server of the old place is gone."""
    old = losing.home / "runs" / "moved"
    settings = {**RECOVERED, "num-rounds": 30}
    submitted = losing.submitting({**settings, "out": str(old)})
    wait_for_rounds(old, 3)
    losing.kill(losing.server)
    place = tmp_path / "place"
    place.mkdir()
    for name in ("fed", "runs"):
        (losing.home / name).rename(place / name)
    losing.folder = place / "fed"
    losing.environment["FAIRBLOOM_FEDERATION"] = str(losing.folder)
    losing.start_server()
    out = place / "runs" / "moved"
    wait_until(lambda: losing.status()["runs"][0]["state"] == "completed", seconds=300)
    assert submitted.wait(60)  # it followed the run at the old place
    assert not old.exists()
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, 31)]
    assert losing.status()["runs"][0]["folder"] == str(out)
    assert_same_model(
        out, simulate(Settings.of({**settings, "out": str(tmp_path / "undisturbed")}))
    )
