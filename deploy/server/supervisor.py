"""`fairbloom server`: the SuperLink and the SuperExec of a federation, started again whenever they end.

This process stays small: it loads neither Flower nor PyTorch.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.system.lock import Lock, LockedError, exclusive_lock
from fairbloom.system.supervise import LOOK_SECONDS, STOP_SECONDS, StopSignal, Supervised, become, supervise

from .. import pki
from ..arguments import EVERY_ADDRESS, parse_address
from ..device.connectivity import tls_context
from ..errors import DeployError
from ..flower.environment import HOME, LOG_LEVEL, QUIET
from ..flower.gate import UNTESTED, check_version, end_unless_fit
from ..operator.federation import Federation
from ..processes import split_address

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Shortest and longest pause, in seconds, before a part that ended is started again."""

RENEWAL_DAYS, RENEWAL_LOOK_SECONDS = 40.0, 3600.0
"""How long before its end a server certificate is renewed, at most a third of its life, and how often we look."""

READY_SECONDS = 120.0
PORT_SECONDS = 2.0
"""How long to wait for a port that is taken: after its server was killed, a SuperLink ends within a second."""

SECRETS = ("server.key", "runtime.secret", "operators.toml")
STARTED, SEEN = "superexec.started", "superexec.seen"
"""Files in the state folder: touched by each SuperExec that starts, and by the SuperLink when it asks for work."""

RUN_FOLDERS = "run-folders"
"""Folder in the state folder in which each run leaves a file with the path of its run folder."""

NEEDED = ("ca.crt", "server.crt", *SECRETS)


class ServerProcess(Supervised):
    """A process of the server's side that is kept running: `main` of a module of flower/server."""

    def __init__(self, name: str, module: str, folder: Path, environment: dict[str, str], untested: bool) -> None:
        super().__init__(name, SHORTEST_PAUSE, LONGEST_PAUSE)
        # The process gets the id of this one, which it could not find out any more were this one killed at once.
        given = ("server", f"server.{module}", os.getpid(), untested)
        code = f"from fairbloom.deploy.flower.gate import start; start(*{given!r})"
        self._command = [sys.executable, "-P", "-c", code, str(folder)]
        self._environment = environment

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process."""
        return subprocess.Popen(self._command, env=self._environment, start_new_session=True)  # noqa: S603 (ours)

    def report(self, fault: str, pause: float) -> None:
        """Print what happened, each time."""
        say(f"{fault}: it is started again in {pause:.0f} s")

    def end(self) -> None:
        """End the process in order, or kill it where it does not end."""
        if self.stop():
            say(f"the {self.name} did not end within {STOP_SECONDS:.0f} s and was killed")


class FederationServer:
    """The server's side of a federation: SuperLink and SuperExec, from their start to their end."""

    def __init__(self, federation: Federation, untested: bool = False) -> None:
        self._federation = federation
        home = federation.state / "flower"
        defaults = QUIET | {LOG_LEVEL: "WARNING"}
        own = {HOME: str(home), "FAIRBLOOM_RUN_FOLDERS": str((federation.state / RUN_FOLDERS).absolute())}
        own["FAIRBLOOM_CLIENTS"] = str(federation.registry.folder.absolute())
        own["PYTHONUNBUFFERED"] = "1"
        environment = defaults | dict(os.environ) | own
        folder = federation.path.absolute()
        self._superlink = ServerProcess("SuperLink", "superlink", folder, environment, untested)
        self._superexec = ServerProcess("SuperExec", "superexec", folder, environment, untested)
        self._started, self._seen = federation.state / STARTED, federation.state / SEEN
        self._next_look = 0.0

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        stopped = StopSignal()
        both = [self._superlink, self._superexec]
        self._seen.unlink(missing_ok=True)
        try:
            supervise([self._superlink], stopped, Readiness(self._superlink, self._superlink_answers))
            supervise(both, stopped, Readiness(self._superexec, lambda: is_newer(self._seen, self._started)))
            if not stopped.came:
                place = self._federation
                say(f"ready: clients reach it at {place.superlink}, the operator at {place.control}")
            supervise(both, stopped, self._renew_in_time)
        finally:
            self._superexec.end()  # first: what it runs says goodbye to the SuperLink
            self._superlink.end()
            say("stopped")

    def _renew_in_time(self) -> bool:
        """Renew the certificate once it is due, and restart the SuperLink with it; return False: nothing is over."""
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + RENEWAL_LOOK_SECONDS
            if renew_if_due(self._federation):
                self._superlink.end()
        return False

    def _superlink_answers(self) -> bool:
        # Not urllib.request, which would go by a proxy of the environment.
        with contextlib.suppress(OSError, HTTPException):
            context = tls_context(str(self._federation.authority))
            asked = HTTPSConnection(self._federation.control, timeout=2, context=context)
            with contextlib.closing(asked):
                asked.request("GET", "/health")
                return asked.getresponse().status == HTTPStatus.OK and reachable(self._federation.listen)
        return False


class Readiness:
    """Whether a part is ready, as often as that is asked; says once where it takes long."""

    def __init__(self, part: ServerProcess, is_ready: Callable[[], bool]) -> None:
        self._part, self._is_ready = part, is_ready
        self._late = time.monotonic() + READY_SECONDS

    def __call__(self) -> bool:
        """Return whether the part is ready."""
        if self._is_ready():
            return True
        if time.monotonic() > self._late:
            say(f"the {self._part.name} is not ready after {READY_SECONDS:.0f} s; it is waited for")
            self._late = math.inf
        return False


def serve(federation: Federation, untested: bool = False) -> int:
    """Run the server's side of a federation until a signal stops it; return the exit code."""
    renew_if_due(federation)
    check_files(federation)
    with lock_folder(federation):
        for what, place in (("control", federation.control), ("listen", federation.listen)):
            check_port(federation, what, place)
        FederationServer(federation, untested).run()
    return 0


def renew_if_due(federation: Federation) -> bool:
    """Renew the server's certificate near its end, where the authority's key is here; return whether it was renewed."""
    try:
        days = pki.lifetime(federation.certificate)
        if pki.days_left(federation.certificate) < min(RENEWAL_DAYS, days / 3) and federation.authority_key.exists():
            federation.renew((), days)
            say(f"{federation.certificate} is renewed, for {days:.0f} days")
            return True
    except FairbloomError as error:
        say(f"{federation.certificate} is not renewed: {error}")
    return False


def check_files(federation: Federation) -> None:
    """Raise FairbloomError unless all that the server needs is in the folder, whole and its owner's alone."""
    for name in NEEDED:
        file = federation.path / name
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DeployError(
                f"{file} cannot be read: {error.strerror}; fairbloom deploy init makes a folder with all files"
            ) from error
        if not content:
            raise DeployError(f"{file} is empty: make a new federation, or take the file from a copy")
        if name in SECRETS and file.stat().st_mode & 0o077:
            raise DeployError(f"others on this machine can read {file}: chmod 600 {file}")
    for certificate in (federation.authority, federation.certificate):
        days = pki.days_left(certificate)
        if days <= 0:
            remedy = f"fairbloom deploy renew --dir {federation.path}"
            raise DeployError(f"{certificate} expired {-days:.0f} days ago: {remedy}")
    pair = (federation.certificate, federation.certificate_key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
    except ssl.SSLError as error:
        remedy = f"fairbloom deploy renew --dir {federation.path}"
        raise DeployError(f"{pair[1]} is not the key of {pair[0]} ({error.reason}): {remedy}") from error
    _ = federation.clients  # raises where a client's file cannot be used


def lock_folder(federation: Federation) -> Lock:
    """Return the lock of a folder that is served; a killed server leaves none behind."""
    file = federation.state / "lock"
    try:
        federation.state.mkdir(mode=0o700, exist_ok=True)
        return exclusive_lock(file)
    except LockedError as error:
        raise DeployError(f"{federation.path} is served already, by {error.holder}") from None
    except OSError as error:
        raise DeployError(f"{file} cannot be opened: {error.strerror}") from error


def check_port(federation: Federation, what: str, given: str) -> None:
    """Raise DeployError when nothing can listen at an address of the federation."""
    file = federation.path / "federation.toml"
    place = parse_address(f"{what} in {file}:", given)
    until = time.monotonic() + PORT_SECONDS
    while True:
        try:
            family, kind, protocol, _, bound = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(bound)
                listener.listen()
            return
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            if taken and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
                continue
            reason = "another program listens there" if taken else error.strerror
            raise DeployError(f"{what} = {given} in {file}: {reason}; end that program, or change the line") from error


def reachable(address: str) -> bool:
    """Return whether something listens at an address of this machine."""
    host, port = split_address(address)
    host = dict(zip(EVERY_ADDRESS, ("127.0.0.1", "::1"), strict=True)).get(host, host)
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2):
        return True
    return False


def is_newer(file: Path, other: Path) -> bool:
    """Return whether a file is there, and was not touched before another one."""
    try:
        return file.stat().st_mtime_ns >= other.stat().st_mtime_ns
    except FileNotFoundError:
        return False


def say(words: str) -> None:
    """Print a line about the server on stderr."""
    sys.stderr.write(f"fairbloom server: {words}\n")  # in one piece: other processes write there, too
    sys.stderr.flush()


def replace_process(federation: Federation, untested: bool = False) -> None:
    """Go on as the server in a small process, without the libraries that the command line has loaded."""
    become("fairbloom.deploy.server", str(federation.path), *([UNTESTED] if untested else []))


def main() -> int:
    """Serve the folder that is named; what is written, models in run folders, too, is for this account alone."""
    folder, untested = Path(sys.argv[1]), UNTESTED in sys.argv[2:]
    end_unless_fit("server", partial(check_version, untested=untested))
    os.umask(0o077)
    try:
        return serve(Federation(folder), untested)
    except FairbloomError as error:
        say(str(error))
        return 2
