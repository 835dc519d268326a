"""States of clients on real nodes survive kills of a client and of the server."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.federation

CLIENTS = names(3)
SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
    "method": "scaffold",
    "clients": 3,
    "fraction": 1.0,
    "min-clients": 3,
    "evaluate-every": 0,
    "local-epochs": 20,  # a round takes longer than one look at it
    "device": "cpu",
    "seed": 3,
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("states") / "home", len(CLIENTS)) as runtime:
        runtime.start_clients(*CLIENTS)
        yield runtime


def restart(there: Deployment, name: str, *, without_state: bool = False) -> None:
    """Kill a client as a power cut does, perhaps delete its folder, and start it again."""
    there.kill(there.clients[name])
    if without_state:
        shutil.rmtree(there.home / f"state-{name}")
    there.start_client(name)
    there.wait_for_clients(name)


@pytest.mark.parametrize(
    ("method", "wire_dtype"), [("scaffold", "float32"), ("eagle", "float32"), ("fedfv", "bfloat16")]
)
def test_killed_clients_and_servers_leave_no_trace_in_numbers(
    there: Deployment, tmp_path: Path, method: str, wire_dtype: str
) -> None:
    """Each client of EAGLE measures a number once; in a later round, the number would differ.

    In bfloat16, each client keeps what rounding left of its last update.
    """
    settings = {**SETTINGS, "method": method, "wire-dtype": wire_dtype, "num-rounds": 30}
    submitted = there.submitting({**settings, "out": str(tmp_path / "run")})
    wait_for_rounds(tmp_path / "run", 3)
    restart(there, CLIENTS[1])
    wait_for_rounds(tmp_path / "run", len(rounds(tmp_path / "run")) + 2)
    there.kill(there.server)
    killed_after = len(rounds(tmp_path / "run"))
    there.start_server()
    there.wait_for_end(submitted)
    assert killed_after < 30
    rows = rounds(tmp_path / "run")
    assert [int(row["round"]) for row in rows] == [*range(1, 31)]
    # of a method that keeps vectors on clients
    assert {row.get("lost_states", "") for row in rows} == {""}
    assert {row["replies_used"] for row in rows} == {"3"}
    # to the last bit, as on real nodes
    assert_same_model(
        tmp_path / "run",
        simulate(Settings.of({**settings, "engine": "loop", "out": str(tmp_path / "undisturbed")})),
    )


def test_a_lost_folder_restarts_all_and_the_second_is_refused(
    there: Deployment,
    out: Path,
    subtests: pytest.Subtests,
) -> None:
    submitted = there.submitting({**SETTINGS, "num-rounds": 60, "out": str(out)})

    def losses() -> list[dict[str, str]]:
        return [row for row in rounds(out) if row["lost_states"]]

    for number in (1, 2):
        wait_for_rounds(out, (int(losses()[-1]["round"]) if number == 2 else 0) + 3)
        restart(there, CLIENTS[2], without_state=True)
        wait_until(
            lambda number=number: len(losses()) == number, lambda: there.log(submitted)[-3000:]
        )
    there.wait_for_end(submitted)
    first, second = (int(row["round"]) for row in losses())
    for row in rounds(out):
        with subtests.test(row=row):
            lost = int(row["round"]) in (first, second)
            after = int(row["round"]) > second
            assert row["lost_states"] == (CLIENTS[2] if lost else "")
            assert row["replies_used"] == ("2" if lost or after else "3")
            assert (
                "it has lost its state between rounds: it continued from its state of round"
                in row["refused"]
            ) == lost
            assert (
                "2 times: give it a folder that stays (state-dir in its client.toml)"
                in row["refused"]
            ) == after
    assert second < 60
