"""What is wrong with a federation, or with one device of it: each check says what it saw and what would do."""

import email.utils
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from . import pki
from .client import Client, obstacle, tls
from .federation import Federation

SECONDS = 5.0
SKEW_SECONDS = 5.0
"""A node's signature from further in the future is refused; from the past, after five minutes."""

EXPIRES_SOON_DAYS = 30.0
LEAST_GIGABYTES = 2.0


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: `verdict` is ok, warning or fault."""

    what: str
    verdict: str
    words: str


def examine(federation: Federation) -> Iterator[Finding]:
    """Check a federation from its operator's machine."""
    yield from versions()
    for name, certificate in (("CA certificate", federation.authority), ("server certificate", federation.certificate)):
        yield expiry(name, certificate)
    yield open_keys(federation)
    yield reachable("fleet API", federation.superlink, federation.authority)
    yield control_api(federation)
    yield disk(federation.path)


def examine_device(client: Client) -> Iterator[Finding]:
    """Check one client's device."""
    yield from versions()
    if client.ca:
        yield expiry("CA certificate", Path(client.ca))
    fault = obstacle(client)
    yield Finding("SuperLink", "fault", fault) if fault else Finding("SuperLink", "ok", f"{client.superlink} answers")
    yield synchronised()
    yield disk(Path(client.state_dir or "."))


def versions() -> Iterator[Finding]:
    """Check that Flower is of the version that is pinned, and say which Python and PyTorch there are."""
    from .warm import missing_names

    pinned = next(line for line in requires("fairbloom") or () if line.startswith("flwr"))
    here, wanted = version("flwr"), re.findall(r"(?<===|>=)\d+\.\d+", pinned)
    if wanted and not here.startswith(f"{wanted[0]}."):
        yield Finding("Flower", "fault", f"{here} is installed, {pinned} is needed: server and clients must agree")
    elif missing_names():
        yield Finding("Flower", "warning", f"{here}: clients go in Flower's own way, 10 s a round and more")
    else:
        yield Finding("Flower", "ok", here)
    try:
        yield Finding("PyTorch", "ok", f"{version('torch')}, Python {sys.version.split()[0]}")
    except PackageNotFoundError:
        yield Finding("PyTorch", "fault", "is not installed: pip install torch")


def expiry(what: str, certificate: Path) -> Finding:
    """Check how long a certificate still holds."""
    try:
        days = pki.days_left(certificate)
    except (OSError, ValueError) as error:
        return Finding(what, "fault", f"{certificate} cannot be read: {error}")
    if days <= 0:
        return Finding(what, "fault", f"{certificate} expired {-days:.0f} days ago: fairbloom deploy renew")
    verdict = "warning" if days < EXPIRES_SOON_DAYS else "ok"
    return Finding(what, verdict, f"{certificate.name} holds for {days:.0f} more days")


def open_keys(federation: Federation) -> Finding:
    """Check that nobody else can read the private keys."""
    keys = (federation.authority_key, federation.certificate_key)
    readable = [str(key) for key in keys if key.exists() and key.stat().st_mode & 0o077]
    if readable:
        return Finding("private keys", "fault", f"others can read {', '.join(readable)}: chmod 600")
    return Finding("private keys", "ok", "readable by their owner alone")


def reachable(what: str, address: str, authority: Path) -> Finding:
    """Check that a port answers and shows a certificate that the authority vouches for."""
    fault = obstacle(Client(superlink=address, ca=str(authority)))
    return Finding(what, "fault", fault) if fault else Finding(what, "ok", f"{address} answers with our certificate")


def control_api(federation: Federation) -> Finding:
    """Check that the control API answers, and how far its clock is from ours."""
    host, _, port = federation.control.rpartition(":")
    context = tls(str(federation.authority))
    request = f"GET /health HTTP/1.1\r\nHost: {federation.control}\r\nConnection: close\r\n\r\n"
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as connection,
        ):
            connection.sendall(request.encode())
            answer = connection.recv(4096).decode("latin-1")
    except OSError as error:
        return Finding("control API", "fault", f"{federation.control} cannot be used: {error}. Is the SuperLink up?")
    dates = [line.partition(":")[2].strip() for line in answer.split("\r\n") if line.lower().startswith("date:")]
    if not dates:
        return Finding("control API", "warning", f"{federation.control} answers, without its time")
    skew = time.time() - email.utils.parsedate_to_datetime(dates[0]).timestamp()
    if abs(skew) > SKEW_SECONDS:
        words = f"this machine's clock is {skew:+.0f} s from the SuperLink's; nodes that differ so much are refused"
        return Finding("clocks", "fault", f"{words}: switch on time synchronisation (timedatectl set-ntp true)")
    return Finding("control API", "ok", f"{federation.control} answers; clocks agree")


def synchronised() -> Finding:
    """Check that this device's clock is kept by a time server."""
    try:
        asked = ["timedatectl", "show", "--property", "NTPSynchronized", "--value"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if answer == "yes":
        return Finding("clock", "ok", "kept by a time server")
    words = "is not known to be kept by a time server" if answer != "no" else "is not kept by a time server"
    return Finding("clock", "warning", f"{words}; more than 5 s ahead the SuperLink refuses this node")


def disk(folder: Path) -> Finding:
    """Check that there is room."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e9
    verdict = "ok" if free >= LEAST_GIGABYTES else "fault"
    return Finding("disk", verdict, f"{free:.1f} GB free at {there}" + (": make room" if verdict == "fault" else ""))
