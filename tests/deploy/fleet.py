"""Federations on the fleet port: a folder, its server, and its clients, as real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbloom.deploy import pki
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.runs import Order, RunFiles, submit
from fairbloom.server.settings import default_config

from .flower import wait_until
from .processes import family, free_port

HOST = "127.0.0.1"
OURS = ("fairbloom.serverapp:app", "fairbloom", "0.1.0")
"""Fairbloom's own app, as an order names it."""


def make_place(place: Path, names: list[str]) -> int:
    """Make the folder of a federation with these clients enrolled; return its port."""
    place.mkdir(parents=True)
    port = free_port()
    pki.make_authority(place / "ca.crt", place / "ca.key")
    pki.make_server_certificate(
        place / "ca.crt", place / "ca.key", place / "server.crt", place / "server.key", ["localhost"]
    )
    (place / "federation.toml").write_text(f'listen = "{HOST}:{port}"\n')
    for number, name in enumerate(names):
        enroll(place, name, number, f"{HOST}:{port}")
    return port


class FleetFederation:
    """A federation whose processes a test starts and kills."""

    def __init__(self, place: Path, names: list[str]) -> None:
        self.place, self.names, self.port = place, names, make_place(place, names)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str = "") -> None:
        """Start a client, or the server where none is named."""
        module, file = ("client", self.place / "bundles" / name / "client.toml") if name else ("daemon", self.place)
        with (self.place / f"{name or 'server'}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", f"fairbloom.deploy.fleet.{module}", str(file)]
            environment = {**os.environ, "FLWR_HOME": str(self.place / "flower")}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self, name: str = "") -> None:
        """Kill a client, or the server where none is named; what it has started ends with it."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_run(self) -> None:
        """Kill the process of the run that goes on."""
        mark = b"fairbloom.deploy.fleet.run_process"
        for pid in family(self.processes[""].pid)[1:]:
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def submit(self, settings: Mapping[str, Any]) -> RunFiles:
        """Submit a run of Fairbloom's app."""
        return submit(self.place / "state" / "runs", Order(*OURS, {**default_config(), **settings}))

    def wait_for_end(self, run: RunFiles, seconds: float = 300.0) -> int:
        """Return how a run ended."""
        wait_until(lambda: run.status is not None, seconds=seconds)
        assert run.status is not None
        return run.status

    def now(self) -> dict[str, Any]:
        """Return what the server says of this moment."""
        with contextlib.suppress(OSError, ValueError):
            said: dict[str, Any] = json.loads((self.place / "state" / "now.json").read_text())
            return said if time.time() - said["at"] < 3.0 else {}
        return {}


@contextlib.contextmanager
def fleet_federation(place: Path, names: list[str]) -> Iterator[FleetFederation]:
    """A federation with its server and these clients, which are ended at last."""
    runtime = FleetFederation(place, names)
    try:
        for name in ("", *names):
            runtime.start(name)
        yield runtime
    finally:
        for process in runtime.processes.values():
            process.terminate()
        for process in runtime.processes.values():
            process.wait(30)
