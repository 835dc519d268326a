"""Runs over the fleet port, as real processes: what they give, and that a kill of each process costs no bit."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.client.app import app
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.run_folder.files import MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid

from .federation import DISTURBED, rounds, wait_for_rounds
from .fleet import HOST, FleetFederation, fleet_federation
from .flower import wait_until

pytestmark = pytest.mark.slow

CLIENTS = [f"site-{letter}" for letter in "abcd"]
ROUNDS = DISTURBED["num-rounds"]
SETTINGS = {**DISTURBED, "round-timeout": 120.0}


def bits(folder: Path) -> dict[str, bytes]:
    """Return the final model's bytes by array."""
    return {name: array.tobytes() for name, array in MODEL.read(folder).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same run in this process, through the same seam."""
    settings = Settings.of({**SETTINGS, "out": str(tmp_path_factory.mktemp("in-process") / "run")})
    grid = InProcessGrid(app, settings.run_config(), settings.clients)
    return bits(federate(settings, lambda method: FlowerClients(method, grid)))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFederation]:
    with fleet_federation(tmp_path_factory.mktemp("fleet") / "place", CLIENTS) as runtime:
        yield runtime


def test_a_run_gives_the_bits_of_one_process(
    there: FleetFederation, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run = there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    assert there.wait_for_end(run) == 0, run.log.read_text()
    assert bits(tmp_path / "run") == undisturbed


def test_a_kill_of_each_process_costs_no_bit(
    there: FleetFederation, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run = there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    wait_for_rounds(tmp_path / "run", 2)
    there.kill_run()
    wait_for_rounds(tmp_path / "run", 3)
    there.kill(CLIENTS[1])
    there.start(CLIENTS[1])
    wait_for_rounds(tmp_path / "run", 5)
    there.kill()
    there.start()
    assert there.wait_for_end(run) == 0, run.log.read_text()
    assert "killed by SIGKILL" in run.log.read_text()
    assert [row["missing"] for row in rounds(tmp_path / "run")] == [""] * ROUNDS
    assert bits(tmp_path / "run") == undisturbed
    for name in (CLIENTS[0], *CLIENTS[2:]):  # what they had answered, or worked on, was not computed again
        ids = re.findall(r"received train message (\w+) of run \d+$", (there.place / f"{name}.log").read_text(), re.M)
        assert len(ids) == len({*ids})


def test_all_are_killed_at_once_and_nothing_is_lost(
    there: FleetFederation, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run = there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    wait_for_rounds(tmp_path / "run", 2)
    for name in ("", *CLIENTS):
        there.kill(name)
    for name in ("", *CLIENTS):
        there.start(name)
    assert there.wait_for_end(run) == 0, run.log.read_text()
    assert bits(tmp_path / "run") == undisturbed


def test_a_run_that_raises_is_not_started_again(there: FleetFederation, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "diary.txt").write_text("mine")
    run = there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    assert there.wait_for_end(run) == 1
    assert run.log.read_text().count("is there already and is no run folder") == 1


def test_a_run_is_stopped_by_a_file_and_the_next_one_waits(there: FleetFederation, tmp_path: Path) -> None:
    first = there.submit({**SETTINGS, "num-rounds": 10_000, "out": str(tmp_path / "first")})
    second = there.submit({**SETTINGS, "num-rounds": 1, "out": str(tmp_path / "second")})
    wait_for_rounds(tmp_path / "first", 1)
    wait_until(lambda: there.now().get("runs") == [first.number, second.number], seconds=10.0)
    (first.folder / "stop").touch()
    assert there.wait_for_end(first) == 130
    assert there.wait_for_end(second) == 0


def test_a_revoked_client_is_away_until_it_is_enrolled_again(there: FleetFederation) -> None:
    name = CLIENTS[3]
    wait_until(lambda: name in there.now().get("online", {}), seconds=60.0)
    revoke(there.place, name)
    wait_until(lambda: name not in there.now().get("online", {name: 0}), seconds=10.0)
    log = there.place / f"{name}.log"
    wait_until(lambda: "was revoked by the federation's operator" in log.read_text(), seconds=10.0)
    there.kill(name)
    enroll(there.place, name, 3, f"{HOST}:{there.port}")
    there.start(name)
    wait_until(lambda: name in there.now().get("online", {}), seconds=60.0)


def test_a_second_server_on_the_folder_is_refused(there: FleetFederation) -> None:
    first = there.processes[""]
    try:
        there.start()
        assert there.processes[""].wait(60) == 2
    finally:
        there.processes[""] = first
    assert "is served already, by process" in (there.place / "server.log").read_text()
