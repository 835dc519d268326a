"""Links, server or clients are away for minutes: the run waits and ends with the same bits."""

import time
from collections.abc import Iterator
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
SERVER_SECONDS = 90.0
"""Seconds that links and the server are away; a client is offline after one minute."""


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
    there: tuple[Deployment, list[Cable]], undisturbed: Path, tmp_path: Path
) -> None:
    runtime, cables = there
    out = tmp_path / "run"
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
    there: tuple[Deployment, list[Cable]], undisturbed: Path, tmp_path: Path
) -> None:
    runtime, cables = there
    out = tmp_path / "run"
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
    there: tuple[Deployment, list[Cable]], undisturbed: Path, tmp_path: Path
) -> None:
    runtime, _ = there
    out = tmp_path / "run"
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
