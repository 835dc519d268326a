"""What is wrong with a federation, or with one device of it: each check says what it saw and what would do."""

import email.utils
import hashlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import httpx

from fairbloom.protocol.version import PROTOCOL
from fairbloom.server.progress import find_announced

from .. import pki
from ..device.client import Client
from ..device.connectivity import connection_fault, tls_context
from ..errors import DeployError
from ..server.supervisor import RUN_FOLDERS
from . import audit
from .federation import Federation

SECONDS = 5.0
SKEW_SECONDS = 5.0
"""How far a device's clock may be ahead: the SuperLink refuses signatures from further in the future."""

EXPIRES_SOON_DAYS = 30.0
LEAST_GIGABYTES = 2.0

SUPEREXEC_SECONDS = 30.0
"""A SuperExec asks for work every second or so; one that has not asked for this long is not there."""

SERVER_PAGE = "/fairbloom/server"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: `verdict` is ok, warning or fault."""

    what: str
    verdict: str
    words: str


def examine(federation: Federation) -> Iterator[Finding]:
    """Check a federation from its operator's machine."""
    yield from versions()
    authority = expiry("CA certificate", federation.authority)
    yield authority
    yield expiry("server certificate", federation.certificate)
    yield open_secrets(federation)
    yield open_folders(federation)
    yield credential(federation)
    yield client_keys(federation)
    yield audit_log(federation)
    if authority.verdict != "fault":
        yield reachable("fleet API", federation.superlink, federation.authority)
        yield control_api(federation)
        yield server_side(federation)
        yield known_clients(federation)
    yield disk(federation.path)


def examine_device(client: Client) -> Iterator[Finding]:
    """Check one client's device."""
    yield from versions()
    if client.key:
        yield device_key(Path(client.key))
    authority = expiry("CA certificate", Path(client.ca)) if client.ca else None
    if authority:
        yield authority
    if not authority or authority.verdict != "fault":
        fault = connection_fault(client)
        yield (
            Finding("SuperLink", "fault", fault) if fault else Finding("SuperLink", "ok", f"{client.superlink} answers")
        )
    if client.state_dir:
        yield private("state-dir", [Path(client.state_dir)])
    yield synchronised()
    yield disk(Path(client.state_dir or "."))


def versions() -> Iterator[Finding]:
    """Check that Flower is of the version that is pinned, and say which Python and PyTorch there are."""
    from ..flower.device.supernode import RELIED_ON
    from ..flower.relied_on import missing_names

    pinned = next(line for line in requires("fairbloom") or () if line.startswith("flwr"))
    here, wanted = version("flwr"), re.findall(r"(?<===|>=)\d+\.\d+", pinned)
    if wanted and not here.startswith(f"{wanted[0]}."):
        yield Finding("Flower", "fault", f"{here} is installed, {pinned} is needed: server and clients must agree")
    elif missing_names(RELIED_ON):
        yield Finding("Flower", "fault", f"{here} lacks what server and clients rely on: install {pinned}")
    else:
        yield Finding("Flower", "ok", here)
    try:
        yield Finding("PyTorch", "ok", f"{version('torch')}, Python {sys.version.split()[0]}")
    except PackageNotFoundError:
        yield Finding("PyTorch", "fault", "is not installed: pip install torch")


def expiry(what: str, certificate: Path) -> Finding:
    """Check how long a certificate still holds."""
    if what == "CA certificate":
        remedy = "take it from the bundle or from the operator; the operator, from a copy"
    else:
        remedy = "fairbloom deploy renew, and restart the server"
    try:
        days = pki.days_left(certificate)
    except pki.PkiError as error:
        return Finding(what, "fault", f"{error}: {remedy}")
    if days <= 0:
        return Finding(what, "fault", f"{certificate} expired {-days:.0f} days ago: {remedy}")
    if days < EXPIRES_SOON_DAYS:
        return Finding(what, "warning", f"{certificate.name} holds for {days:.0f} more days: {remedy}")
    return Finding(what, "ok", f"{certificate.name} holds for {days:.0f} more days")


def device_key(key: Path) -> Finding:
    """Check that a device's private key is one, and its owner's alone."""
    try:
        pki.check_node_key(key)
    except pki.PkiError as error:
        return Finding("private key", "fault", str(error))
    if key.stat().st_mode & 0o077:
        return Finding("private key", "fault", f"others can read {key}: chmod 600 {key}")
    return Finding("private key", "ok", f"{key.name} is one of a node, readable by its owner alone")


def open_secrets(federation: Federation) -> Finding:
    """Check that nobody else can read what is secret in a federation's folder."""
    path = federation.path
    secrets = [federation.authority_key, federation.certificate_key, federation.operator_token, federation.operators]
    secrets += [
        federation.runtime_secret,
        federation.metrics_token,
        federation.database,
        path / "flower/credentials.yaml",
    ]
    secrets += [federation.state / audit.FILE, *path.glob("bundles/*.tar.gz"), *path.glob("bundles/*/key")]
    readable = [str(file) for file in secrets if file.exists() and file.stat().st_mode & 0o077]
    if readable:
        return Finding("secrets", "fault", f"others can read {', '.join(readable)}: chmod 600 {' '.join(readable)}")
    if path.stat().st_mode & 0o077:
        return Finding("secrets", "fault", f"others can enter {path}: chmod 700 {path}")
    return Finding("secrets", "ok", "readable by their owner alone")


def open_folders(federation: Federation) -> Finding:
    """Check that nobody else can read what runs have written: the server's state, and run folders that are here."""
    noted = sorted((federation.state / RUN_FOLDERS).glob("[0-9]*"))
    runs = {find_announced(file.parent, file.name) for file in noted}
    return private("folders", [federation.state, *sorted(folder for folder in runs if folder is not None)])


def private(what: str, folders: Iterable[Path]) -> Finding:
    """Check that nobody else can enter folders with models or data in them, which may be older than this version."""
    there = [folder for folder in folders if folder.is_dir()]
    if readable := [str(folder) for folder in there if folder.stat().st_mode & 0o077]:
        words = f"others can enter {', '.join(readable)}, where models are: chmod 700 {' '.join(readable)}"
        return Finding(what, "warning", words)
    return Finding(what, "ok", "what runs have written is for this account alone")


def credential(federation: Federation) -> Finding:
    """Check that the operator's credential is the one that operators.toml is for, where both are here."""
    remedy = f"delete {federation.operator_token} and let fairbloom deploy renew make both"
    try:
        given = hashlib.sha256(federation.token().encode()).hexdigest()
        known = tomllib.loads(federation.operators.read_text())
        hashes = [str(about["sha256"]) for about in known.values()]
    except DeployError as error:
        return Finding("credential", "fault", str(error))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Finding("credential", "fault", f"{federation.operators} cannot be used ({error}): {remedy}")
    if given not in hashes:
        return Finding(
            "credential", "fault", f"{federation.operators} does not know {federation.operator_token}: {remedy}"
        )
    return Finding("credential", "ok", "operator.token is the one that operators.toml is for")


def client_keys(federation: Federation) -> Finding:
    """Check how long the clients' keys are still good."""
    try:
        held = federation.keys()
    except DeployError as error:
        return Finding("client keys", "fault", str(error))
    ends = {key.client: datetime.fromisoformat(key.expires) for key in held if key.current and key.expires}
    now = datetime.now(UTC)
    over = sorted(name for name, end in ends.items() if end <= now)
    soon = sorted(name for name, end in ends.items() if now < end < now + timedelta(days=EXPIRES_SOON_DAYS))
    words = [f"expired: {', '.join(over)}"] * bool(over)
    words += [f"expire within {EXPIRES_SOON_DAYS:.0f} days: {', '.join(soon)}"] * bool(soon)
    if words:
        verdict = "fault" if over else "warning"
        return Finding("client keys", verdict, f"{'; '.join(words)}: fairbloom deploy rotate NAME")
    return Finding("client keys", "ok", f"none expires within {EXPIRES_SOON_DAYS:.0f} days")


def audit_log(federation: Federation) -> Finding:
    """Check that the audit log is there and whole."""
    log = federation.state / audit.FILE
    try:
        line = audit.broken(federation.state)
    except DeployError as error:
        return Finding("audit log", "fault", str(error))
    if line is not None:
        words = f"line {line} of {log} does not fit: it or one before was changed or lost (fairbloom deploy audit)"
        return Finding("audit log", "fault", f"{words}; compare it with a copy, and ask who had this account")
    if not log.exists():
        return Finding("audit log", "warning", f"{log} is missing: it began with init; bring it back from a copy")
    return Finding("audit log", "ok", f"{audit.FILE} is whole")


def reachable(what: str, address: str, authority: Path) -> Finding:
    """Check that a port answers and shows a certificate that the authority vouches for."""
    fault = connection_fault(Client(superlink=address, ca=str(authority)))
    return Finding(what, "fault", fault) if fault else Finding(what, "ok", f"{address} answers with our certificate")


def control_api(federation: Federation) -> Finding:
    """Check that the control API answers, and how far its clock is from ours."""
    host, _, port = federation.control.rpartition(":")
    request = f"GET /health HTTP/1.1\r\nHost: {federation.control}\r\nConnection: close\r\n\r\n"
    try:
        context = tls_context(str(federation.authority))
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as connection,
        ):
            connection.sendall(request.encode())
            answer = connection.recv(4096).decode("latin-1")
    except OSError as error:
        return Finding("control API", "fault", f"{federation.control} cannot be used: {error}. Is fairbloom server up?")
    dates = [line.partition(":")[2].strip() for line in answer.split("\r\n") if line.lower().startswith("date:")]
    if not dates:
        return Finding("control API", "warning", f"{federation.control} answers, without its time")
    skew = time.time() - email.utils.parsedate_to_datetime(dates[0]).timestamp()
    if abs(skew) > SKEW_SECONDS:
        words = f"this machine's clock is {skew:+.0f} s from the SuperLink's; nodes that differ so much are refused"
        return Finding("clocks", "fault", f"{words}: switch on time synchronisation (timedatectl set-ntp true)")
    return Finding("control API", "ok", f"{federation.control} answers; clocks agree")


def server_page(federation: Federation) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status of the server's page about itself, what it says, and its certificate's days.

    Raises
    ------
    DeployError
        When the server does not answer, or the operator's credential cannot be read.
    """
    header = {"Authorization": f"Bearer {federation.token()}"}
    try:
        with (
            httpx.Client(verify=tls_context(str(federation.authority)), timeout=SECONDS, trust_env=False) as http,
            http.stream("GET", f"https://{federation.control}{SERVER_PAGE}", headers=header) as answer,
        ):
            certificate = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
            answer.read()
        about = answer.json() if answer.status_code == httpx.codes.OK else {}
        if not isinstance(about, dict):
            raise ValueError(f"a JSON {type(about).__name__}")
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise DeployError(f"{federation.control} does not answer: {error}. Is fairbloom server up?") from error
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    return answer.status_code, {**about, "certificate-days": round(days, 1)}


def server_side(federation: Federation) -> Finding:
    """Check that somebody is there to run the server's side of runs, and that our credential is accepted."""
    try:
        status, about = server_page(federation)
    except DeployError as error:
        return Finding("server", "fault", str(error))
    if status == httpx.codes.UNAUTHORIZED:
        words = f"{federation.control} does not accept the credential in {federation.operator_token}"
        return Finding("server", "fault", f"{words}: is it the one that operators.toml on the server is for?")
    if status == httpx.codes.NOT_FOUND:
        words = f"{federation.control} is a SuperLink that fairbloom server did not start: whether a SuperExec is there"
        return Finding("server", "warning", f"{words} is not known, and it may ask nobody for a credential")
    if status != httpx.codes.OK:
        return Finding("server", "fault", f"{federation.control} answers with {status}: see the server's log")
    seen, size, theirs = about.get("superexec_seen"), int(about.get("database_bytes", 0)), about.get("version")
    if not isinstance(seen, int | float) or seen > SUPEREXEC_SECONDS:
        since = f"for {seen:.0f} s" if isinstance(seen, int | float) else "since it was started"
        words = f"no SuperExec has asked {federation.control} for work {since}, so runs will wait"
        return Finding("server", "fault", f"{words}: see the log of fairbloom server, or start it again")
    here = version("fairbloom")
    if about.get("protocol") != PROTOCOL:
        there = f"fairbloom {theirs}, which speaks protocol {about.get('protocol')}, runs there"
        words = f"{there}, and {here}, which speaks protocol {PROTOCOL}, is installed here"
        return Finding("server", "fault", f"{words}: bring both to one version")
    other = "" if theirs == here else f" ({here} is installed here, which fits)"
    return Finding("server", "ok", f"fairbloom {theirs}{other} is ready for runs; its database has {size / 1e6:.0f} MB")


def known_clients(federation: Federation) -> Finding:
    """Check that the SuperLink knows each client that is enrolled, as it does not where its database was lost."""
    try:
        status, about = server_page(federation)
        held = federation.keys()
    except DeployError as error:
        return Finding("clients", "fault", str(error))
    known = about.get("nodes")
    if status != httpx.codes.OK or not isinstance(known, dict):
        return Finding("clients", "warning", f"{federation.control} does not say which clients it knows")
    unknown = sorted({key.client for key in held if key.node_id not in known})
    if unknown:
        words = f"the SuperLink does not know {', '.join(unknown)}: start fairbloom server again, which registers"
        return Finding("clients", "fault", f"{words} whom its database has lost; whoever stays unknown: deploy rotate")
    return Finding("clients", "ok", f"the SuperLink knows all {len({key.client for key in held})} that are enrolled")


def synchronised() -> Finding:
    """Check that this device's clock is kept by a time server."""
    try:
        asked = ["timedatectl", "show", "--property", "NTPSynchronized", "--value"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        answer = done.stdout.strip()
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
