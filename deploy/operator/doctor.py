"""Checks of a federation or of one device; each returns its finding and the remedy."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairbloom.client.guard.log_files import SENT, read_entries
from fairbloom.errors import FairbloomError
from fairbloom.server.progress import find_announced

from .. import pki
from ..device.client import ClientSettings
from ..device.connectivity import connection_fault
from ..errors import DeployError
from ..fleet.connections import FULL
from ..fleet.daemon import read_identity
from ..fleet.federation import COPIED, Federation, find_copied, read_now
from ..fleet.runs import list_runs
from ..fleet.session import KeptReply
from ..processes import split_address

# Seconds that a port or a command may take to answer.
ANSWER_SECONDS = 5.0

# Less free space than this is a fault.
SMALL_DISK_BYTES = 2e9


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: `verdict` is ok, warning or fault; faults name the remedy."""

    verdict: str
    subject: str
    words: str


ok, warning, fault = (partial(CheckResult, verdict) for verdict in ("ok", "warning", "fault"))


def examine(federation: Federation) -> Iterator[CheckResult]:
    """Check a federation on its server."""
    yield check_expiry("CA certificate", federation.authority[0])
    yield check_expiry("server certificate", federation.identity[0])
    yield check_identity(federation)
    # the keys, and the folder itself: any account that can write there can order runs
    secrets = [
        file
        for pattern in ("ca.key", "server.key", "bundles/*/key")
        for file in sorted(federation.path.glob(pattern))
    ]
    yield check_private("secrets", [federation.path, *secrets])
    folders = {find_announced(run.folder) for run in list_runs(federation.runs)}
    yield check_private("folders", [federation.state, *sorted(filter(None, folders))], warning)
    yield check_clients(federation)
    yield check_server(federation)
    yield check_clock()
    yield check_disk(federation.path)


def examine_device(client: ClientSettings) -> Iterator[CheckResult]:
    """Check one client's device."""
    yield check_private("private key", [Path(client.key)])
    authority = check_expiry("CA certificate", Path(client.ca))
    yield authority
    yield check_expiry("client certificate", Path(client.certificate))
    if authority.verdict != "fault":
        reason = connection_fault(client)
        if reason:
            yield fault("server", reason)
        else:
            yield ok("server", f"{client.server} answers")
    yield check_private("state-dir", [Path(client.state_dir)], warning)
    yield check_log(Path(client.state_dir))
    yield check_account(client)
    yield check_book(client)
    yield check_clock()
    yield check_disk(Path(client.state_dir))


def check_account(client: ClientSettings) -> CheckResult:
    """Check that a device can work by its privacy account, and that owner.toml fits it."""
    from fairbloom.client.private.account import find_account  # imported late: it loads NumPy
    from fairbloom.client.private.budget import UNITS

    subject = "privacy account"
    try:
        account = find_account(client.node(), client.data_dir)
    except FairbloomError as error:
        return fault(subject, str(error))
    if account is None:
        return ok(subject, "none is open for these data")
    if account.warnings:
        return warning(subject, " ".join(account.warnings))
    return ok(subject, f"{account.left()[UNITS]} of {account.limits[UNITS]} units are left")


def check_book(client: ClientSettings) -> CheckResult:
    """Check that the book of what has left of a device's rows can be read, and name its entries."""
    from ..device.profile import describe_sent  # imported late: it loads NumPy

    try:
        return ok("book of profiles", "; ".join(describe_sent(client)))
    except FairbloomError as error:
        return fault("book of profiles", str(error))


def check_expiry(subject: str, certificate: Path) -> CheckResult:
    """Check how long a certificate is still valid."""
    remedy = {
        "server certificate": "fairbloom deploy renew",
        "client certificate": "the federation's operator enrols this client again",
    }.get(subject, "take it from the bundle or from the operator; the operator, from a copy")
    try:
        days = pki.days_left(certificate)
    except DeployError as error:
        return fault(subject, f"{error}: {remedy}")
    if days <= 0:
        return fault(subject, f"{certificate} expired {-days:.0f} days ago: {remedy}")
    if days < 30.0:
        return warning(subject, f"{certificate.name} holds for {days:.0f} more days: {remedy}")
    return ok(subject, f"{certificate.name} holds for {days:.0f} more days")


def check_identity(federation: Federation) -> CheckResult:
    """Check that the server's key and certificate belong together."""
    try:
        read_identity(federation)
    except (DeployError, OSError) as error:
        return fault("server key", str(error))
    return ok("server key", "is the one of the server's certificate")


def check_private(
    subject: str, paths: Iterable[Path], bad: Callable[[str, str], CheckResult] = fault
) -> CheckResult:
    """Check that no other account can read files or enter folders with keys, models or data."""
    readable = [str(path) for path in paths if path.exists() and path.stat().st_mode & 0o077]
    if readable:
        return bad(
            subject, f"others can read {', '.join(readable)}: chmod go-rwx {' '.join(readable)}"
        )
    return ok(subject, "only for this account")


def check_clients(federation: Federation) -> CheckResult:
    """Check that the file of each client can be used."""
    files = {file.stem for file in (federation.path / "clients").glob("*.toml")}
    try:
        damaged = files - {member.name for member in federation.members()}
    except DeployError as error:
        return fault("clients", str(error))
    if damaged:
        return fault(
            "clients",
            f"the files of {', '.join(sorted(damaged))} cannot be used: enrol these again",
        )
    copied = find_copied(read_now(federation))
    if copied:
        return fault("clients", f"{', '.join(sorted(copied))}: {COPIED}")
    return ok("clients", f"{len(federation.enrolled())} are enrolled")


def check_server(federation: Federation) -> CheckResult:
    """Check that a server runs on the folder, and that its port answers here."""
    if not federation.is_served:
        return fault("server", f"no server runs: start fairbloom server --dir {federation.path}")
    connections = read_now(federation).connections
    limit = connections.get("limit", 0)
    if limit and connections.get("open", 0) >= FULL * limit:
        return fault(
            "server",
            f"all {limit} connections of the port are in use, and further devices are kept out:"
            " limit the connections of an address by a firewall, as docs/deployment.md shows",
        )
    port = split_address(federation.listen)[1]
    try:
        with socket.create_connection(("localhost", port), timeout=ANSWER_SECONDS):
            return ok("server", f"answers at port {port}; devices dial {federation.server}")
    except OSError as error:
        return fault(
            "server",
            f"port {port} does not answer here: {error.strerror or error}: see the server's log",
        )


def check_log(state: Path) -> CheckResult:
    """Check that the log of what left a device has the last reply, unless that is an error."""
    head = KeptReply(str(state)).head
    entries = read_entries(state) if (state / SENT).exists() else ()
    if head.id and not head.code and all(entry.get("message") != head.id for entry in entries):
        return fault(
            "log",
            f"the last reply, of run {head.run}, is not in {state / SENT}: what left this device is"
            " not all logged. Stop the client, look for who changes this folder, and tell the"
            " device's owner",
        )
    return ok("log", "has the last reply" if head.id else "no reply is kept")


def check_clock() -> CheckResult:
    """Check that this machine's clock is kept by a time server."""
    command = ["timedatectl", "show", "--property", "NTPSynchronized", "--value"]
    try:
        answer = subprocess.run(  # noqa: S603 (our own words)
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if answer == "yes":
        return ok("clock", "kept by a time server")
    kept = "is not kept" if answer == "no" else "is not known to be kept"
    return warning(
        "clock",
        f"{kept} by a time server; certificates are refused if it is far off (timedatectl set-ntp"
        " true)",
    )


def check_disk(folder: Path) -> CheckResult:
    """Check that the disk has at least SMALL_DISK_BYTES free."""
    path = folder.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    words = f"{free / 1e9:.1f} GB free at {existing}"
    if free >= SMALL_DISK_BYTES:
        return ok("disk", words)
    return fault("disk", f"{words}: make room")
