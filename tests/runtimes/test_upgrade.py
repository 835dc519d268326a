"""Servers and clients of several versions, from their wheels: a side that does not fit is named.

The order of upgrades is that of docs/deployment.md.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.deployment import Deployment, names, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from fairbloom.protocol.version import PROTOCOL

from .wheel import changed_source, installed_wheel

pytestmark = pytest.mark.federation

OLD = version("fairbloom")
NEW = "0.99.1"
MISFIT = "0.99.2"
CLIENTS = names(3)
SETTINGS = {"clients": 3, "fraction": 1.0, "evaluate-every": 0, "device": "cpu", "seed": 3}

# The folders with the commands of each version.
Installed = Mapping[str, Path]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = {OLD: installed_wheel(tmp_path_factory.mktemp(OLD))}
    for name, protocol in ((NEW, PROTOCOL), (MISFIT, PROTOCOL + 1)):
        folder = tmp_path_factory.mktemp(name)
        made[name] = installed_wheel(folder, changed_source(folder / "source", name, protocol))
    return made


class Mixed(Deployment):
    """A federation of processes with the version that was chosen when they were started."""

    def __init__(self, home: Path, installed: Installed) -> None:
        self._installed = installed
        super().__init__(home, installed[OLD])

    def use(self, chosen: str) -> None:
        self.scripts = self._installed[chosen]
        self.environment["PATH"] = f"{self.scripts}{os.pathsep}{os.environ['PATH']}"

    def serve(self, chosen: str) -> None:
        """Start the server with the chosen version, after stopping the one before."""
        if hasattr(self, "server"):
            self.stop(self.server)
        self.use(chosen)
        self.start_server()

    def connect(self, name: str, chosen: str) -> None:
        """Start a client with the chosen version, after stopping the one before."""
        if name in self.clients:
            self.stop(self.clients[name])
        self.use(chosen)
        self.start_client(name)
        self.wait_for_clients(name)

    def begin(self, out: Path, **settings: object) -> subprocess.Popen[bytes]:
        """Submit the installed Fairbloom, not this checkout."""
        return self.submitting({**SETTINGS, "out": str(out), **settings})


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> Iterator[Mixed]:
    runtime = Mixed(tmp_path_factory.mktemp("upgrades") / "home", installed)
    try:
        runtime.serve(OLD)
        runtime.enroll(*CLIENTS)
        yield runtime
    finally:
        runtime.close()


def goes_on(out: Path) -> None:
    """Wait for two more rounds with all clients."""
    before = len(rounds(out))

    def is_so() -> bool:
        return sum(row["replies_used"] == "3" for row in rounds(out)[before:]) >= 2

    wait_until(is_so, lambda: f"{rounds(out)[before:]}")


def test_one_run_continues_over_an_upgrade_and_back(there: Mixed, out: Path) -> None:
    for name in CLIENTS:
        there.connect(name, OLD)
    submitted = there.begin(out, **{"num-rounds": 100_000})
    wait_for_rounds(out, 2)
    there.serve(NEW)  # first the server: a new one with old clients
    goes_on(out)
    there.connect(CLIENTS[0], NEW)  # then the clients, one by one
    goes_on(out)
    assert "fault" not in there.fairbloom("deploy", "doctor").stdout
    for name in CLIENTS[1:]:
        there.connect(name, NEW)
    goes_on(out)
    there.serve(OLD)  # the way back: an old server with new clients
    goes_on(out)
    there.connect(CLIENTS[2], OLD)
    goes_on(out)
    there.stop_runs()
    there.wait_for_end(submitted, code=130)
    rows = rounds(out)
    assert [int(row["round"]) for row in rows] == [*range(1, len(rows) + 1)]
    refused = {row["refused"] for row in rows} - {""}
    assert all("the node" in each.lower() or "unavailable" in each.lower() for each in refused), (
        refused
    )
    assert not any("protocol" in each or "version" in each for each in refused)


@pytest.mark.parametrize("first", ["server", "clients"])
def test_an_upgrade_of_the_protocol_costs_no_round(
    there: Mixed, tmp_path: Path, first: str, subtests: pytest.Subtests
) -> None:
    """A client that speaks another protocol is away: its message waits for it."""

    def connect_all(chosen: str) -> None:
        for name in CLIENTS:
            there.stop(there.clients[name])
            there.use(chosen)
            there.start_client(name)

    there.serve(OLD)
    connect_all(OLD)
    there.wait_for_clients(*CLIENTS)
    calm = tmp_path / "calm"
    there.submit({**SETTINGS, "method": "scaffold", "num-rounds": 60, "out": str(calm)})
    out = tmp_path / "out"
    submitted = there.begin(out, **{"method": "scaffold", "num-rounds": 60})
    wait_for_rounds(out, 2)
    theirs = PROTOCOL + 1, PROTOCOL
    if first == "server":
        there.serve(MISFIT)
    else:
        connect_all(MISFIT)
        theirs = PROTOCOL, PROTOCOL + 1
    older = "this client" if first == "server" else "the server"
    words = f"the server speaks protocol {theirs[0]} and this client {theirs[1]}: upgrade {older}"
    there.wait_for_words(there.clients[CLIENTS[0]], words)
    # the server writes its status from time to time
    wait_until(lambda: words in " ".join(there.fairbloom("deploy", "status").stdout.split()))
    before = len(rounds(out))
    if first == "server":
        connect_all(MISFIT)
    else:
        there.serve(MISFIT)
    there.wait_for_end(submitted)
    rows = rounds(out)
    assert len(rows) == 60 > before
    for row in rows:
        with subtests.test(round=row["round"]):
            assert (row["replies_used"], row["refused"]) == ("3", "")
    model = "model.safetensors"
    assert (out / model).read_bytes() == (calm / model).read_bytes()
