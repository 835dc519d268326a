"""Server and clients with several versions of Flower: the same Fairbloom, and each version in a folder of its own."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.federation import Deployment, names, rounds, wait_for_rounds
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.federation

OLDEST, LOCKED, NEWEST = "1.39.0", "1.41.0", "1.42.0"
CLIENTS = names(2)
SETTINGS: dict[str, Any] = {
    "clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": 5,
    "evaluate-every": 0,
    "method": "fedfv",
    "device": "cpu",
    "seed": 3,
}

FlowerFolder = Callable[[str], str]
"""Returns a folder that has a version of Flower, "" for the version that is installed."""


class MixedFleet(Deployment):
    """A federation in which each process has the version of Flower that was chosen when it was started."""

    def __init__(self, home: Path, folder_of: FlowerFolder) -> None:
        self._folder_of = folder_of
        super().__init__(home)

    @contextlib.contextmanager
    def _using(self, flower: str) -> Iterator[None]:
        """Give processes that start now a version of Flower."""
        self.environment["PYTHONPATH"] = self._folder_of(flower)
        yield
        del self.environment["PYTHONPATH"]

    def serve(self, flower: str) -> None:
        """Start the server with a version of Flower; stop the one before, if there is one."""
        if hasattr(self, "server"):
            self.stop(self.server)
        with self._using(flower):
            self.start_server()
        assert self._folder_of(flower).encode() in Path(f"/proc/{self.part('superlink')}/environ").read_bytes()

    def connect(self, *flowers: str) -> None:
        """Enrol a client for each version of Flower, and start it with that version."""
        self.enroll(*CLIENTS)
        for name, flower in zip(CLIENTS, flowers, strict=True):
            with self._using(flower):
                self.start_client(name)
        self.wait_for_clients(*CLIENTS)


@pytest.fixture
def there(tmp_path: Path, flower_folder: FlowerFolder) -> Iterator[MixedFleet]:
    runtime = MixedFleet(tmp_path / "home", flower_folder)
    try:
        yield runtime
    finally:
        runtime.close()


def assert_nothing_is_missing(out: Path, tmp_path: Path, number: int) -> None:
    """Each client's reply was used in each round, and the model is that of a run in one process."""
    rows = rounds(out)
    assert [int(row["round"]) for row in rows] == [*range(1, number + 1)]
    assert {(row["replies_used"], row["missing"], row["refused"]) for row in rows} == {(str(len(CLIENTS)), "", "")}
    settings = {**SETTINGS, "num-rounds": number, "out": str(tmp_path / "in-process")}
    assert_same_model(out, simulate(Settings.of(settings)))


def test_clients_with_two_versions_take_part_in_one_run(there: MixedFleet, tmp_path: Path) -> None:
    there.serve(LOCKED)
    there.connect(OLDEST, LOCKED)
    there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    assert_nothing_is_missing(tmp_path / "run", tmp_path, 5)


def test_older_clients_take_part_at_a_newer_server(there: MixedFleet, tmp_path: Path) -> None:
    there.serve(NEWEST)
    there.connect(OLDEST, LOCKED)
    there.submit({**SETTINGS, "out": str(tmp_path / "run")})
    assert_nothing_is_missing(tmp_path / "run", tmp_path, 5)


def test_a_run_goes_on_while_the_server_gets_a_newer_flower(there: MixedFleet, tmp_path: Path) -> None:
    there.serve(LOCKED)
    there.connect(OLDEST, LOCKED)
    submitted = there.submitting({**SETTINGS, "num-rounds": 40, "out": str(tmp_path / "run")})
    wait_for_rounds(tmp_path / "run", 3)
    there.serve(NEWEST)
    assert len(rounds(tmp_path / "run")) < 40
    there.wait_for_end(submitted)
    assert_nothing_is_missing(tmp_path / "run", tmp_path, 40)
