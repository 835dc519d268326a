"""The server's process: it has the fleet port and the mailbox, and starts the runs' processes."""

import asyncio
import json
import logging
import os
import shutil
import ssl
import sys
import time
from pathlib import Path

from fairbloom import __version__
from fairbloom.errors import FairbloomError
from fairbloom.logs import escape_all_records, log
from fairbloom.system.files import make_folder, whole_file
from fairbloom.system.lock import LockedError, exclusive_lock
from fairbloom.system.machine import tune_allocator
from fairbloom.system.supervise import STOPPING, notify_systemd, release_signals

from .. import pki
from ..errors import DeployError
from ..processes import ONE_HEAP
from .connections import OTHER_FILES, connection_limit, raise_file_limit
from .content import MemoryBudget
from .faults import Faults
from .federation import NOW, Federation, read_now
from .mailbox import Mailbox
from .members import Members
from .metrics import metric_lines
from .port import Port
from .runs import DRAIN, Runs

# Without the authority's key, the certificate's end is a warning for this number of days.
WARN_DAYS = 30.0

# Seconds after which the registry is read again, messages expire, and now.json is written.
SECOND = 1.0


class Daemon:
    """A federation's server, from its start to its end; `files` is the limit of its open files."""

    def __init__(self, federation: Federation, files: int) -> None:
        self._federation = federation
        self._members = Members(federation.path / "clients", pin_keys=federation.pin_keys)
        self._files = files
        self._limit = connection_limit(federation.max_clients, files)
        self._mailbox = Mailbox(
            MemoryBudget(
                federation.state,
                federation.mailbox_memory,
                files=max(0, files - self._limit - OTHER_FILES),
            )
        )
        self._port = Port(
            self._members,
            self._mailbox,
            max_reply=federation.max_reply,
            max_connections=self._limit,
        )
        self._runs = Runs(
            federation.runs, self._members, self._mailbox, self._port, federation.keep_runs
        )
        before = read_now(federation)
        self._seen = dict(before.seen)
        self._copied = dict(before.copied)
        self._faults = Faults()
        self._identity_age: list[int] = modified(federation)
        # How long the certificates in each file are valid, 0 after that.
        self._days: dict[str, float] = {}

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        A run that is then in progress is killed; it continues after the next start.
        """
        self._look()
        for run in self._runs.waiting():
            self._mailbox.begin(run.number)
        (self._federation.state / DRAIN).unlink(missing_ok=True)
        renew_if_due(self._federation, self._faults)
        key, certificate, authority = read_identity(self._federation)
        try:
            port = await self._port.start(self._federation.listen, key, certificate, authority)
        except RuntimeError as error:
            raise DeployError(
                f"listen = {self._federation.listen}: another program listens there, or it is no"
                " address of this machine: end that program, or change the line"
            ) from error
        log.info(
            "at most %d connections are taken; this process may have %d open files",
            self._limit,
            self._files,
        )
        log.info("ready: clients reach it at port %d", port)
        notify_systemd("READY=1")
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, stopped.set)
        release_signals(*STOPPING)
        tasks = [
            asyncio.create_task(work)
            for work in (self._runs.carry_out(), self._tick(), stopped.wait())
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._port.stop()
        for task in done:
            task.result()  # raises the error that ended it

    async def _tick(self) -> None:
        """Look once a second, and tell systemd, which restarts a server that hangs."""
        while True:
            self._look()
            notify_systemd("WATCHDOG=1")
            await asyncio.sleep(SECOND)

    def _look(self) -> None:
        """Read the registry, end calls that are no longer admitted, and write state/now.json.

        A fault in one of these steps keeps no other from its work.
        """
        for name, step in (
            ("the registry of clients cannot be read", self._members.refresh),
            ("connections cannot be checked", self._port.close_unadmitted),
            ("the server's certificate is not renewed", self._renew_identity),
            ("messages do not expire", self._mailbox.expire),
            ("deploy status shows an old state", self._write_now),
        ):
            try:
                step()
            except (OSError, MemoryError, RuntimeError, DeployError) as error:
                self._faults.say(name, f"{name}, which is tried again every second: {error}")
            else:
                self._faults.clear(name)

    def _renew_identity(self) -> None:
        """Renew the certificate when it is due; serve a new one, also that of `deploy renew`."""
        self._days = {
            file.name: max(0.0, pki.days_left(file))
            for file in (self._federation.authority[0], self._federation.identity[0])
        }
        renew_if_due(self._federation, self._faults)
        age = modified(self._federation)
        if age != self._identity_age:
            self._port.serve_as(*read_identity(self._federation))
            self._identity_age = age

    def _write_now(self) -> None:
        """Write the server's status to state/now.json, and its numbers into state/metrics.prom."""
        at = time.time()
        online = {name: self._port.devices[name].others_seen for _, name in self._port.online()}
        self._seen |= dict.fromkeys(online, at)
        devices = self._port.devices.items()
        self._copied |= {name: each.copied_at for name, each in devices if each.copied_at}
        disks = {
            str(place): shutil.disk_usage(place)
            for place in (self._federation.path, self._federation.state)  # it may be mounted
        }
        now = {
            "at": at,
            "run": self._runs.current,
            "waiting": self._runs.waiting_for,
            "version": __version__,
            "failure": self._runs.failure,
            "free": {place: disk.free / disk.total for place, disk in disks.items()},
            "online": online,
            "seen": self._seen,
            "versions": {name: device.version for name, device in self._port.devices.items()},
            "reasons": self._port.admission.reasons,
            "reasons_at": self._port.admission.reasons_at,
            "copied": self._copied,
            "connections": self._port.connections,
            "refused": self._port.admission.refused,
            "days": self._days,
        }
        metrics = metric_lines(
            {
                "clients_online": {"": len(online)},
                "client_online": {name: int(name in online) for name in self._members.by_name},
                "run_failed": {"": int(bool(self._runs.failure))},
                "round": {"": self._runs.last_round[0]},
                "round_age_seconds": {"": max(0.0, at - self._runs.last_round[1])},
                "refused_total": self._port.admission.refused,
                "mailbox_bytes": {"": self._mailbox.budget.used},
                "certificate_remaining_days": self._days,
                "disk_free_bytes": {place: disk.free for place, disk in disks.items()},
                "disk_size_bytes": {place: disk.total for place, disk in disks.items()},
            }
        )
        for name, lines in ((NOW, [json.dumps(now)]), ("metrics.prom", metrics)):
            # not synced: it need not survive a power cut, and waiting would delay all calls
            with whole_file(self._federation.state / name, durable=False) as file:
                file.writelines(f"{line}\n".encode() for line in lines)


def read_identity(federation: Federation) -> tuple[bytes, bytes, bytes]:
    """Return the server's key and certificate, and the authority's certificate.

    Raise DeployError if the key is not that of the certificate.
    """
    certificate, key = federation.identity
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise DeployError(
            f"{key} is not the key of {certificate} ({error.reason}): take both from a copy, or"
            " make both anew with fairbloom deploy renew"
        ) from error
    return key.read_bytes(), certificate.read_bytes(), federation.authority[0].read_bytes()


def modified(federation: Federation) -> list[int]:
    """Return when the server's certificate, key and authority were written, in nanoseconds."""
    return [file.stat().st_mtime_ns for file in (*federation.identity, federation.authority[0])]


def renew_if_due(federation: Federation, faults: Faults) -> None:
    """Renew the server's certificate if less than a third of its lifetime is left.

    Without the authority's key, log a warning a day from WARN_DAYS before its end.
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
    elif left < WARN_DAYS:
        faults.say(
            "certificate",
            f"{certificate} ends in {left:.0f} days: run fairbloom deploy renew where"
            f" {signer.name} is",
        )


def serve(path: Path) -> None:
    """Serve a federation's folder until a signal; raise DeployError if that is not possible."""
    federation = Federation.read(path)
    try:
        make_folder(federation.state)
        with exclusive_lock(federation.lock):
            asyncio.run(Daemon(federation, raise_file_limit()).run())
    except LockedError as error:
        raise DeployError(f"{path} is served already, by {error.holder}") from None
    except OSError as error:
        raise DeployError(f"{path}: {error.filename or ''} {error.strerror}") from error


def main() -> int:
    """Serve the folder in the first argument."""
    os.umask(0o077)  # only this account may read models and other files of the runs
    logging.basicConfig(format="fairbloom server: %(message)s", level=logging.INFO)
    # a traceback for each call that a device cuts, or that has nonsense as content
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    escape_all_records()
    tune_allocator(ONE_HEAP)
    try:
        serve(Path(sys.argv[1]))
    except FairbloomError as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
