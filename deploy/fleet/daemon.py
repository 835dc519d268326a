"""The server's one process: fleet port, mailbox, and the runs' processes that it starts."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import ssl
import sys
import time
from pathlib import Path
from threading import Thread

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.system.files import make_folder
from fairbloom.system.interrupts import release_signals
from fairbloom.system.lock import LockedError, exclusive_lock
from fairbloom.system.supervise import STOPPING

from .. import pki
from ..errors import DeployError
from .federation import NOW, Federation, read_now
from .mailbox import Mailbox, MemoryBudget
from .members import Members
from .port import Port
from .runs import Runs

# How often the registry is compared, messages expire, and now.json is written.
SECOND = 1.0


class Daemon:
    """A federation's server, from its start to its end."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._members = Members(federation.path / "clients", pin_keys=federation.pin_keys)
        self._mailbox = Mailbox(MemoryBudget(federation.state, federation.mailbox_memory))
        largest = federation.max_reply
        most = federation.max_clients
        self._port = Port(self._members, self._mailbox, max_reply=largest, max_clients=most)
        self._runs = Runs(federation.runs, self._members, self._mailbox, self._port)
        self._now = federation.state / NOW
        self._seen = read_now(federation).get("seen", {})
        self._fault = ""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        A run that goes on then is killed, and goes on after the next start.
        """
        self._look()
        for run in self._runs.waiting():
            self._mailbox.begin(run.number)
        renew_if_due(self._federation)
        key, certificate, authority = read_identity(self._federation)
        try:
            port = await self._port.start(self._federation.listen, key, certificate, authority)
        except RuntimeError as error:
            words = "another program listens there, or it is no address of this machine"
            raise DeployError(
                f"listen = {self._federation.listen}: {words}: end that program, or change the line"
            ) from error
        log.info("ready: clients reach it at port %d", port)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, stopped.set)
        release_signals(*STOPPING)
        tasks = [
            asyncio.create_task(each)
            for each in (self._runs.carry_out(), self._tick(), stopped.wait())
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._port.stop()
        for task in done:
            task.result()  # raises what ended it

    async def _tick(self) -> None:
        """Read the registry, and write state/now.json: clients online or seen, runs open."""
        while True:
            self._look()
            self._mailbox.expire()
            at = time.time()
            devices = self._port.devices
            there = {name: devices[name].others_seen for _, name in self._port.online()}
            self._seen |= dict.fromkeys(there, at)
            now = {
                "at": at,
                "online": there,
                "seen": self._seen,
                "runs": [run.number for run in self._runs.waiting()],
            }
            draft = self._now.with_name(".now.json")
            try:
                # need not outlive a power cut: waiting for the disk holds up calls
                draft.write_text(json.dumps(now))
                draft.replace(self._now)
            except OSError as error:
                self._complain(f"{self._now} cannot be written: {error.strerror}")
            await asyncio.sleep(SECOND)

    def _look(self) -> None:
        """Compare the registry; a client that was revoked loses the calls that it holds."""
        try:
            self._port.wake(self._members.look())
        except OSError as error:
            self._complain(f"{self._members.folder} cannot be read: {error.strerror}")

    def _complain(self, words: str) -> None:
        if words != self._fault:
            log.error("%s", words)
        self._fault = words


def read_identity(federation: Federation) -> tuple[bytes, bytes, bytes]:
    """Return the server's key and certificate, and the authority's certificate.

    DeployError where they do not fit.
    """
    certificate, key = federation.identity
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        words = f"{key} is not the key of {certificate} ({error.reason})"
        raise DeployError(
            f"{words}: take both from a copy, or make both anew with fairbloom deploy renew"
        ) from error
    return key.read_bytes(), certificate.read_bytes(), federation.authority[0].read_bytes()


def renew_if_due(federation: Federation) -> None:
    """Make a new server certificate where under a third of its life is left.

    Without the authority's key, warn.
    """
    certificate = federation.identity[0]
    signer = federation.authority[1]
    days = pki.lifetime(certificate)
    left = pki.days_left(certificate)
    if left >= days / 3:
        return
    if signer.exists():
        federation.renew(days=days)
        log.info("%s is renewed, for %.0f days", certificate, days)
    else:
        words = (
            "%s ends in %.0f days: run fairbloom deploy renew where %s is, and restart the server"
        )
        log.warning(words, certificate, left, signer.name)


def serve(path: Path) -> None:
    """Serve a federation's folder until a signal; DeployError where that cannot be."""
    federation = Federation.read(path)
    try:
        make_folder(federation.state)
        with exclusive_lock(federation.lock):
            asyncio.run(Daemon(federation).run())
    except LockedError as error:
        raise DeployError(f"{path} is served already, by {error.holder}") from None
    except OSError as error:
        raise DeployError(f"{path}: {error.filename or ''} {error.strerror}") from error


def keep_trimmed() -> None:
    """Give memory that is free inside this process back to the system, for ever.

    Only glibc needs it.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return
    # M_MMAP_THRESHOLD, the size from which a block is mapped by itself and goes back when it is
    # freed: its default. glibc would raise it with the largest block freed, and the next buffers of
    # TLS would fragment the heap.
    library.mallopt(-3, 1 << 17)
    while True:
        time.sleep(5.0)
        library.malloc_trim(0)


def main() -> int:
    """Serve the folder that is named.

    What is written, models in run folders, too, is for this account alone.
    """
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
