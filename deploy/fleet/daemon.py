"""The server's one process: the fleet port, the mailbox, and the runs as processes that it starts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.system.files import make_folder
from fairbloom.system.lock import LockedError, exclusive_lock

from .. import pki
from ..errors import DeployError
from ..server.memory import keep_trimmed
from .mailbox import MEMORY_BYTES, Mailbox, Room
from .members import Members
from .port import Port
from .runs import Runs

SECOND = 1.0
"""How often the registry is compared, messages expire, and now.json is written."""

DEFAULTS: dict[str, Any] = {
    "listen": "[::]:9092",
    "pin-keys": True,
    "max-reply": 0,
    "mailbox-memory": MEMORY_BYTES,
    "max-clients": 1000,
}
"""The keys of federation.toml that the server reads, with their defaults; bytes for both sizes."""


@dataclass(frozen=True)
class Place:
    """The folder of a federation, and what its federation.toml says."""

    path: Path
    listen: str
    pin_keys: bool
    max_reply: int
    mailbox_memory: int
    max_clients: int

    @classmethod
    def of(cls, path: Path) -> Place:
        """Read a federation's folder; DeployError where a setting cannot be used."""
        file = path / "federation.toml"
        try:
            said = tomllib.loads(file.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise DeployError(f"{file} cannot be read: {error}") from error
        for key, default in DEFAULTS.items():
            value = said.get(key, default)
            if type(value) is not type(default) or (isinstance(value, int) and value < 0):
                raise DeployError(f"{key} = {value!r} in {file}: it must be of type {type(default).__name__}")
        values = {key.replace("-", "_"): said.get(key, default) for key, default in DEFAULTS.items()}
        return cls(path, **values)

    @property
    def state(self) -> Path:
        """The folder of what the server writes."""
        return self.path / "state"


class Daemon:
    """A federation's server, from its start to its end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._members = Members(place.path / "clients", pin_keys=place.pin_keys)
        self._mailbox = Mailbox(Room(place.state, place.mailbox_memory))
        self._port = Port(self._members, self._mailbox, max_reply=place.max_reply, max_clients=place.max_clients)
        self._runs = Runs(place.state / "runs", self._members, self._mailbox, self._port)
        self._fault = ""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; a run that goes on then is killed, and goes on after the next start."""
        self._look()
        for run in self._runs.waiting():
            self._mailbox.begin(run.number)
        key, certificate, authority = read_identity(self._place.path)
        try:
            port = await self._port.start(self._place.listen, key, certificate, authority)
        except RuntimeError as error:
            words = "another program listens there, or it is no address of this machine"
            raise DeployError(
                f"listen = {self._place.listen}: {words}: end that program, or change the line"
            ) from error
        log.info("ready: clients reach it at port %d", port)
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        tasks = [asyncio.create_task(each) for each in (self._runs.carry_out(), self._tick(), stopped.wait())]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._port.stop()
        for task in done:
            task.result()  # raises what ended it

    async def _tick(self) -> None:
        while True:
            self._look()
            self._mailbox.expire()
            self._write_now()
            await asyncio.sleep(SECOND)

    def _look(self) -> None:
        """Compare the registry; a client that was revoked loses the calls that it holds."""
        try:
            self._port.wake(self._members.look())
        except OSError as error:
            self._complain(f"{self._place.path / 'clients'} cannot be read: {error.strerror}")

    def _write_now(self) -> None:
        """Write state/now.json: who is online, and which runs go on and wait."""
        waiting = [run.number for run in self._runs.waiting()]
        devices = self._port.devices
        there = {name: devices[name].others_seen for _, name in self._port.online()}
        now = {"at": time.time(), "online": there, "seen": sorted(devices), "runs": waiting}
        draft = self._place.state / ".now.json"
        try:
            draft.write_text(json.dumps(now))  # not to outlive a power cut: waiting for the disk would hold up calls
            draft.replace(self._place.state / "now.json")
        except OSError as error:
            self._complain(f"{self._place.state / 'now.json'} cannot be written: {error.strerror}")

    def _complain(self, words: str) -> None:
        if words != self._fault:
            log.error("%s", words)
        self._fault = words


def read_identity(path: Path) -> tuple[bytes, bytes, bytes]:
    """Return the server's key and certificate, and the authority's certificate; DeployError where they do not fit."""
    renew_if_due(path)
    key, certificate, authority = path / "server.key", path / "server.crt", path / "ca.crt"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise DeployError(f"{key} is not the key of {certificate} ({error.reason}): take both from a copy") from error
    return key.read_bytes(), certificate.read_bytes(), authority.read_bytes()


def renew_if_due(path: Path) -> None:
    """Make a new server certificate where under a third of its life is left; without the authority's key, warn."""
    key, certificate, authority, signer = (path / name for name in ("server.key", "server.crt", "ca.crt", "ca.key"))
    days, left = pki.lifetime(certificate), pki.days_left(certificate)
    if left >= days / 3:
        return
    if signer.exists():
        pki.make_server_certificate(authority, signer, certificate, key, pki.read_hosts(certificate), days)
        log.info("%s is renewed, for %.0f days", certificate, days)
    else:
        log.warning("%s ends in %.0f days: renew it where %s is", certificate, left, signer.name)


def serve(path: Path) -> None:
    """Serve a federation's folder until a signal; DeployError where that cannot be."""
    place = Place.of(path)
    make_folder(place.state)
    try:
        with exclusive_lock(place.state / "lock"):
            asyncio.run(Daemon(place).run())
    except LockedError as error:
        raise DeployError(f"{path} is served already, by {error.holder}") from None
    except OSError as error:
        raise DeployError(f"{path}: {error.filename or ''} {error.strerror}") from error


def main() -> int:
    """Serve the folder that is named; what is written is for this account alone."""
    os.umask(0o077)
    logging.basicConfig(format="fairbloom server: %(message)s", level=logging.INFO)
    Thread(target=keep_trimmed, daemon=True).start()
    try:
        serve(Path(sys.argv[1]))
    except FairbloomError as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
