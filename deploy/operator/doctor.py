"""What is wrong with a federation, or with one device of it: each check says what it saw and the remedy."""

import email.utils
import hashlib
import shutil
import sqlite3
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx

from fairbloom.protocol.version import PROTOCOL
from fairbloom.server.progress import find_announced

from .. import pki
from ..device.client import ClientSettings
from ..device.connectivity import connection_fault, tls_context
from ..errors import DeployError
from ..flower.gate import Deployed, FlowerVersionError, check_flower
from ..processes import first_names
from ..server.database import find_damage
from ..server.supervisor import RUN_FOLDERS
from .federation import Federation

SECONDS = 5.0
EXPIRES_SOON_DAYS = 30.0

SECRETS = (
    *("ca.key", "server.key", "operator.token", "operators.toml", "runtime.secret"),
    *("state/superlink.db", "flower/credentials.yaml"),
    "bundles/*/key",
)
"""What only its owner may read in a federation's folder."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check: `verdict` is ok, warning or fault, and the words of the latter say the remedy."""

    verdict: str
    what: str
    words: str


ok, warning, fault = (partial(CheckResult, verdict) for verdict in ("ok", "warning", "fault"))


@dataclass(frozen=True)
class ServerPage:
    """What the server reports.

    `status` is 0, and `trouble` says why, if it does not answer; `about` is {} unless the status is 200.
    """

    status: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    certificate_days: float | None = None
    trouble: str = ""


def examine(federation: Federation) -> Iterator[CheckResult]:
    """Check a federation from its operator's machine."""
    yield from check_versions("operator")
    authority = check_expiry("CA certificate", federation.authority)
    yield authority
    yield check_expiry("server certificate", federation.certificate)
    yield check_secrets(federation)
    yield check_folders(federation)
    yield check_credential(federation)
    yield check_database(federation)
    if authority.verdict != "fault":
        yield check_reachable("fleet API", ClientSettings(superlink=federation.superlink, ca=str(federation.authority)))
        yield check_control_api(federation)
        page = ask_server(federation)
        yield check_server(federation, page)
        yield check_clients(federation, page)
    yield check_disk(federation.path)


def examine_device(client: ClientSettings) -> Iterator[CheckResult]:
    """Check one client's device."""
    yield from check_versions("client")
    if client.key:
        yield check_device_key(Path(client.key))
    authority = check_expiry("CA certificate", Path(client.ca)) if client.ca else None
    if authority:
        yield authority
    if not authority or authority.verdict != "fault":
        yield check_reachable("SuperLink", client)
    if client.state_dir:
        yield check_private("state-dir", [Path(client.state_dir)])
    yield check_clock()
    yield check_disk(Path(client.state_dir or "."))


def check_versions(user: Deployed) -> Iterator[CheckResult]:
    """Check that Flower is one that this side runs with, and say which Python and PyTorch there are."""
    try:
        check_flower(user)
        yield ok("Flower", version("flwr"))
    except FlowerVersionError as error:
        yield fault("Flower", str(error))
    try:
        yield ok("PyTorch", f"{version('torch')}, Python {sys.version.split()[0]}")
    except PackageNotFoundError:
        yield fault("PyTorch", "is not installed: pip install torch")


def check_expiry(what: str, certificate: Path) -> CheckResult:
    """Check how long a certificate still holds."""
    if what == "CA certificate":
        remedy = "take it from the bundle or from the operator; the operator, from a copy"
    else:
        remedy = "fairbloom deploy renew, and restart the server"
    try:
        days = pki.days_left(certificate)
    except pki.PkiError as error:
        return fault(what, f"{error}: {remedy}")
    if days <= 0:
        return fault(what, f"{certificate} expired {-days:.0f} days ago: {remedy}")
    if days < EXPIRES_SOON_DAYS:
        return warning(what, f"{certificate.name} holds for {days:.0f} more days: {remedy}")
    return ok(what, f"{certificate.name} holds for {days:.0f} more days")


def check_device_key(key: Path) -> CheckResult:
    """Check that a device's private key is one, and its owner's alone."""
    try:
        pki.read_node_key(key)
    except pki.PkiError as error:
        return fault("private key", str(error))
    if key.stat().st_mode & 0o077:
        return fault("private key", f"others can read {key}: chmod 600 {key}")
    return ok("private key", f"{key.name} is one of a node, readable by its owner alone")


def check_secrets(federation: Federation) -> CheckResult:
    """Check that nobody else can read what is secret in a federation's folder."""
    path = federation.path
    secrets = [file for pattern in SECRETS for file in sorted(path.glob(pattern))]
    readable = [str(file) for file in secrets if file.stat().st_mode & 0o077]
    if readable:
        return fault("secrets", f"others can read {', '.join(readable)}: chmod 600 {' '.join(readable)}")
    if path.stat().st_mode & 0o077:
        return fault("secrets", f"others can enter {path}: chmod 700 {path}")
    return ok("secrets", "readable by their owner alone")


def check_folders(federation: Federation) -> CheckResult:
    """Check that nobody else can read what runs have written: the server's state, and run folders that are here."""
    noted = sorted((federation.state / RUN_FOLDERS).glob("[0-9]*"))
    runs = {find_announced(file.parent, file.name) for file in noted}
    return check_private("folders", [federation.state, *sorted(folder for folder in runs if folder is not None)])


def check_private(what: str, folders: Iterable[Path]) -> CheckResult:
    """Check that nobody else can enter folders with models or data in them, which may be older than this version."""
    there = [folder for folder in folders if folder.is_dir()]
    if readable := [str(folder) for folder in there if folder.stat().st_mode & 0o077]:
        words = f"others can enter {', '.join(readable)}, where models are: chmod 700 {' '.join(readable)}"
        return warning(what, words)
    return ok(what, "what runs have written is for this account alone")


def check_credential(federation: Federation) -> CheckResult:
    """Check that the operator's credential is the one that operators.toml is for, where both are here."""
    remedy = f"delete {federation.operator_token} and let fairbloom deploy renew make both"
    try:
        given = hashlib.sha256(federation.read_token().encode()).hexdigest()
        known = tomllib.loads(federation.operators.read_text())
        hashes = [str(about["sha256"]) for about in known.values()]
    except DeployError as error:
        return fault("credential", str(error))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return fault("credential", f"{federation.operators} cannot be used ({error}): {remedy}")
    if given not in hashes:
        return fault("credential", f"{federation.operators} does not know {federation.operator_token}: {remedy}")
    return ok("credential", "operator.token is the one that operators.toml is for")


def check_database(federation: Federation) -> CheckResult:
    """Check that the SuperLink's database, where it is on this machine, is whole."""
    try:
        damage = find_damage(federation.database)
    except sqlite3.OperationalError as error:
        return fault("database", f"{federation.database} cannot be read: {error}")
    if damage:
        remedy = "start fairbloom server again, which sets it aside and makes a new one; then submit the runs again"
        return fault("database", f"{federation.database} is damaged: {damage}: {remedy}")
    return ok("database", "is whole" if federation.database.exists() else "is not here; the server makes it")


def find_obstacle(federation: Federation) -> str:
    """Return what is wrong with the certificates on the way to the control API, "" where nothing is."""
    for check in (
        check_expiry("CA certificate", federation.authority),
        check_expiry("server certificate", federation.certificate),
    ):
        if check.verdict == "fault":
            return f"{check.what}: {check.words}"
    reason = check_control_api(federation).words
    return f"{reason} Restart it, as after each fairbloom deploy renew" if "has expired" in reason else ""


def check_reachable(what: str, client: ClientSettings) -> CheckResult:
    """Check that a client could connect: the port answers, with a certificate that the authority vouches for."""
    reason = connection_fault(client)
    return fault(what, reason) if reason else ok(what, f"{client.superlink} answers")


def check_control_api(federation: Federation) -> CheckResult:
    """Check that the control API answers, and how far its clock is from ours."""
    try:
        with _http(federation) as http:
            date = http.get(f"https://{federation.control}/health").headers.get("date")
    except (httpx.HTTPError, OSError) as error:
        return fault("control API", f"{federation.control} cannot be used: {error}. Is fairbloom server up?")
    if not date:
        return warning("control API", f"{federation.control} answers, without its time")
    skew = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(skew) > 5.0:  # the SuperLink refuses signatures from further in the future
        words = f"this machine's clock is {skew:+.0f} s from the SuperLink's; nodes that differ so much are refused"
        return fault("clocks", f"{words}: switch on time synchronisation (timedatectl set-ntp true)")
    return ok("control API", f"{federation.control} answers; clocks agree")


def _http(federation: Federation) -> httpx.Client:
    # Without trust_env, which would go by a proxy of the environment.
    return httpx.Client(verify=tls_context(str(federation.authority)), timeout=SECONDS, trust_env=False)


def ask_server(federation: Federation) -> ServerPage:
    """Return the server's page about itself, or why it does not answer, or the operator's credential cannot be read."""
    try:
        header = {"Authorization": f"Bearer {federation.read_token()}"}
        with (
            _http(federation) as http,
            http.stream("GET", f"https://{federation.control}/fairbloom/server", headers=header) as answer,
        ):
            certificate = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
            answer.read()
        about = answer.json() if answer.status_code == httpx.codes.OK else {}
        if not isinstance(about, dict):
            raise ValueError(f"a JSON {type(about).__name__}")
    except DeployError as error:
        return ServerPage(trouble=str(error))
    except (httpx.HTTPError, OSError, ValueError) as error:
        return ServerPage(trouble=f"{federation.control} does not answer: {error}. Is fairbloom server up?")
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    return ServerPage(answer.status_code, about, round(days, 1))


def check_server(federation: Federation, page: ServerPage) -> CheckResult:
    """Check that somebody is there to run the server's side of runs, and that our credential is accepted."""
    if page.trouble:
        return fault("server", page.trouble)
    if page.status == httpx.codes.UNAUTHORIZED:
        words = f"{federation.control} does not accept the credential in {federation.operator_token}"
        return fault("server", f"{words}: is it the one that operators.toml on the server is for?")
    if page.status == httpx.codes.NOT_FOUND:
        words = f"{federation.control} is a SuperLink that fairbloom server did not start: whether a SuperExec is there"
        return warning("server", f"{words} is not known, and it may ask nobody for a credential")
    if page.status != httpx.codes.OK:
        return fault("server", f"{federation.control} answers with {page.status}: see the server's log")
    seen, theirs = page.about.get("superexec_seen"), page.about.get("version")
    if not isinstance(seen, int | float) or seen > 30.0:  # a SuperExec asks for work every second or so
        since = f"for {seen:.0f} s" if isinstance(seen, int | float) else "since it was started"
        words = f"no SuperExec has asked {federation.control} for work {since}, so runs will wait"
        return fault("server", f"{words}: see the log of fairbloom server, or start it again")
    here = version("fairbloom")
    if page.about.get("protocol") != PROTOCOL:
        there = f"fairbloom {theirs}, which speaks protocol {page.about.get('protocol')}, runs there"
        words = f"{there}, and {here}, which speaks protocol {PROTOCOL}, is installed here"
        return fault("server", f"{words}: bring both to one version")
    other = "" if theirs == here else f" ({here} is installed here, which fits)"
    size = int(page.about.get("database_bytes", 0)) / 1e6
    return ok("server", f"fairbloom {theirs}{other} is ready for runs; its database has {size:.0f} MB")


def check_clients(federation: Federation, page: ServerPage) -> CheckResult:
    """Check that the SuperLink knows each client that is enrolled, as it does not where its database was lost."""
    try:
        enrolled = federation.enrolled
    except DeployError as error:
        return fault("clients", str(error))
    known = page.about.get("nodes")
    if not isinstance(known, dict):
        return warning("clients", f"{federation.control} does not say which clients it knows")
    unknown = [client.name for client in enrolled if client.node_id not in known]
    if unknown:
        words = f"the SuperLink does not know {first_names(unknown)}: start fairbloom server again, which registers"
        return fault(
            "clients",
            f"{words} clients that its database lacks; those that stay unknown are enrolled again (deploy enroll)",
        )
    return ok("clients", f"the SuperLink knows all {len(enrolled)} that are enrolled")


def check_clock() -> CheckResult:
    """Check that this device's clock is kept by a time server."""
    asked = ["timedatectl", "show", "--property", "NTPSynchronized", "--value"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        answer = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if answer == "yes":
        return ok("clock", "kept by a time server")
    words = "is not kept by a time server" if answer == "no" else "is not known to be kept by a time server"
    return warning("clock", f"{words}; more than 5 s ahead the SuperLink refuses this node")


def check_disk(folder: Path) -> CheckResult:
    """Check that there is room."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = f"{shutil.disk_usage(there).free / 1e9:.1f} GB free at {there}"
    return ok("disk", free) if shutil.disk_usage(there).free >= 2e9 else fault("disk", f"{free}: make room")
