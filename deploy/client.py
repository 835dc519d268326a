"""`fairbloom client`: settings of one client, and the loop that starts its SuperNode again whenever it ends.

This process stays small: it loads neither Flower nor PyTorch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

APP = "fairbloom.client.app:app"
"""Import string of the ClientApp that a client answers with, unless its settings name another."""

FIRST_DELAY, LONGEST_DELAY = 2.0, 30.0
"""Seconds until a SuperNode that ended is started again: doubled each time, and back to the first once it held."""

HELD_SECONDS = 60.0
PROBE_SECONDS = 10.0
STOP_SECONDS = 15.0

CONNECTED = b"SuperNode ID:"
"""What Flower logs once a node is connected."""

HELD_LINES, LONGEST_LINE = 200, 2**16
"""How much of a node's output is held back until it is known whether it says anything new."""

NUMBERS = re.compile(rb"[0-9]+")
"""What may differ in the output of two starts that fail in the same way: times, process ids."""

PATHS = ("ca", "key", "data-dir", "state-dir")
BUNDLES = ("ours", "any")
IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class ClientError(ValueError):
    """A setting of a client that is unknown or impossible; the message names it, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """Settings of one client, as in client.toml, with hyphens there.

    Attributes
    ----------
    superlink
        Address of the SuperLink's fleet API, HOST:PORT.
    ca
        Certificate of the authority that signed the SuperLink's; "" with `insecure`.
    key
        Private key of this node in OpenSSH format; "" where the SuperLink asks for none.
    insecure
        Whether to go without TLS: anyone on the way reads and changes models.
    partition_id
        Which of the task's clients this is.
    name
        What this client calls itself where the SuperLink has no registered name for it; "" for the task's name.
    data_dir, state_dir
        Where its data is, and where it keeps personal models and unpacked bundles; "" for nowhere. A run cannot set
        them.
    isolated
        Whether each message is answered in a process of its own.
    bundles
        "ours" to run the installed app and nothing of what the server sends, "any" to run what the server sends.
    app
        Import string of the installed app, with bundles = "ours".
    allow
        Values that a run may give to its settings although they are paths or import strings, with bundles = "ours".
    host, port
        Where the API for app processes listens when the node goes in Flower's own way; a warm node has none.
    """

    superlink: str
    ca: str = ""
    key: str = ""
    insecure: bool = False
    partition_id: int = 0
    name: str = ""
    data_dir: str = ""
    state_dir: str = ""
    isolated: bool = False
    bundles: str = "ours"
    app: str = APP
    allow: tuple[str, ...] = ()
    port: int = 0
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit():
            raise ClientError(f"superlink = {self.superlink!r}: write it as HOST:PORT, example.org:9092 say")
        if self.bundles not in BUNDLES:
            raise ClientError(f'bundles = {self.bundles!r}: "ours" or "any" would do')
        if not IMPORT_STRING.fullmatch(self.app):
            raise ClientError(f"app = {self.app!r}: write it as module:attribute, {APP} say")
        if self.bundles == "any" and (self.app != APP or self.allow):
            raise ClientError('app or allow with bundles = "any": the run brings its app then; leave them or it out')
        if self.partition_id < 0:
            raise ClientError(f"partition-id = {self.partition_id}: it is counted from 0")
        if self.insecure and (self.ca or self.key):
            raise ClientError("insecure = true with ca or key: without TLS neither is used; leave them or insecure out")
        if not self.insecure and not self.ca:
            raise ClientError("ca is missing: name the CA certificate of your bundle, or say insecure")
        if self.ca and not Path(self.ca).is_file():
            raise ClientError(f"ca = {self.ca}: there is no such file")
        if self.key and not Path(self.key).is_file():
            raise ClientError(
                f"key = {self.key}: there is no such file. Keys are made on the device, by fairbloom client keys NAME "
                f"--out {Path(self.key).parent}; the federation's operator enrolls the request that it prints"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any], file: Path | None = None) -> Client:
        """Return the settings of `file`, in client.toml's form, with those given beside it, which win.

        Relative paths in the file are relative to its folder.

        Raises
        ------
        ClientError
            When the file, its certificate or its key cannot be used, or a setting is unknown or impossible.
        """
        merged = (_read(file) if file else {}) | {key: value for key, value in given.items() if value is not None}
        kinds = {field.name.replace("_", "-"): type(field.default) for field in fields(cls)}
        kinds |= {"superlink": str, "allow": list}
        for key, value in merged.items():
            if key not in kinds:
                raise ClientError(f"unknown setting {key} = {value!r}: there are {', '.join(sorted(kinds))}")
            if type(value) is not kinds[key]:
                raise ClientError(f"{key} = {value!r}: it must be of type {kinds[key].__name__}")
        if "superlink" not in merged:
            raise ClientError("superlink is missing: give --superlink HOST:PORT, or the client.toml of a bundle")
        merged |= {key: str(Path(merged[key]).expanduser().absolute()) for key in PATHS if merged.get(key)}
        if not all(isinstance(value, str) for value in merged.get("allow", [])):
            raise ClientError(f"allow = {merged['allow']!r}: it must be a list of texts")
        merged["allow"] = tuple(merged.get("allow", []))
        client = cls(**{key.replace("-", "_"): value for key, value in merged.items()})
        client.check_files()
        return client

    def check_files(self) -> None:
        """Raise ClientError unless certificate, key and app can be used; the message names the file."""
        if self.ca:
            tls(self.ca)
        if self.key:
            from . import pki  # loads a library that the loop does without

            try:
                pki.check_node_key(Path(self.key))
            except pki.PkiError as error:
                raise ClientError(f"key = {error}") from error
        if self.bundles == "ours" and importlib.util.find_spec(self.app.partition(".")[0].partition(":")[0]) is None:
            raise ClientError(f"app = {self.app!r}: there is no such module here; install it, or name another app")

    def command(self) -> list[str]:
        """Return the command that runs the SuperNode in the foreground."""
        app = [f"--app={self.app}", *(f"--allow={value}" for value in self.allow)]
        ours = ["--isolated"] * self.isolated + (["--any-bundle"] if self.bundles == "any" else app)
        safety = ["--insecure"] if self.insecure else ["--root-certificates", self.ca]
        if self.key:
            safety += ["--auth-supernode-private-key", self.key]
        node: dict[str, Any] = {"partition-id": self.partition_id, "name": self.name}
        node |= {"data-dir": self.data_dir, "state-dir": self.state_dir}
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in node.items() if value != "")
        place = ["--host", self.host, "--port", str(self.port or free_port())]
        # Not by -m: children of the fork server would import the module once more, as their main one.
        python = [sys.executable, "-P", "-c", "from fairbloom.deploy.warm import main; main()"]
        return [*python, *ours, "--", "--superlink", self.superlink, *safety, "--node-config", config, *place]

    def environment(self) -> dict[str, str]:
        """Return the SuperNode's environment: no telemetry, Flower's files in the state folder, unless ours says so."""
        defaults = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        # Threads that spin while they wait for each other slow several clients on one machine down threefold.
        defaults["OMP_WAIT_POLICY"] = "PASSIVE"
        defaults["PYTHONUNBUFFERED"] = "1"  # its output goes through this process
        if self.state_dir:
            defaults["FLWR_HOME"] = str(Path(self.state_dir, "flower"))
        return defaults | dict(os.environ)


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(file.read_text())
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"{file} is no TOML file: {error}") from error
    folder = file.absolute().parent
    return settings | {
        key: str(folder / settings[key]) for key in PATHS if isinstance(settings.get(key), str) and settings[key]
    }


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# What stands in the way ---------------------------------------------------------------------------------------------


def obstacle(client: Client) -> str | None:
    """Return, in words, why this client cannot talk to its SuperLink just now; None where nothing is in the way.

    gRPC retries some of these for ever without saying what is wrong.
    """
    host, _, port = client.superlink.rpartition(":")
    place = (host.strip("[]"), int(port))
    try:
        context = tls(client.ca or None)
        context.set_alpn_protocols(["h2"])
        if client.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(place, timeout=PROBE_SECONDS) as connection:
            fault = _shake_hands(context, connection, place[0], client)
        if fault is None and client.insecure:
            with socket.create_connection(place, timeout=PROBE_SECONDS) as connection:
                fault = _no_http(connection, client.superlink)
    except ClientError as error:
        return str(error)
    except TimeoutError:
        return f"{client.superlink} does not answer within {PROBE_SECONDS:.0f} s: is a firewall between?"
    except OSError as error:
        return f"{client.superlink} cannot be reached: {error.strerror or error}"
    return fault


def tls(authority: str | None) -> ssl.SSLContext:
    """Return how a server's certificate is checked: against one authority, and as leniently as gRPC does.

    Raises
    ------
    ClientError
        When the authority's file holds no certificate, or cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        reason = (
            "it holds no certificate" if isinstance(error, ssl.SSLError) else f"it cannot be read: {error.strerror}"
        )
        raise ClientError(f"ca = {authority}: {reason}; take ca.crt from the client's bundle again") from error
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _shake_hands(context: ssl.SSLContext, connection: socket.socket, host: str, client: Client) -> str | None:
    try:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            if client.insecure:
                return (
                    f"{client.superlink} speaks TLS and this client is set insecure: give it the CA certificate instead"
                )
            return None if secured.selected_alpn_protocol() == "h2" else _no_http(secured, client.superlink)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{client.superlink} shows a certificate that {client.ca} does not vouch for: {error.verify_message}. If "
            "it has expired or lacks this name, the federation's operator makes a new one (fairbloom deploy renew); "
            "else take the CA certificate from the operator; and see that this device's clock is right"
        )
    except (ssl.SSLError, ConnectionError):
        if client.insecure:
            return None
        return f"{client.superlink} does not speak TLS: the federation's operator starts it with its certificate"


def _no_http(connection: socket.socket, address: str) -> str | None:
    """Return words where a port answers HTTP/1.1, as the control API does and no port for clients."""
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    if not connection.recv(5).startswith(b"HTTP/"):
        return None
    return (
        f"{address} is the control API's port or a web server's: clients connect to the fleet port, 9092 unless the "
        "federation's operator chose another"
    )


# The loop -----------------------------------------------------------------------------------------------------------


class Outage:
    """Says each fault once while the client is cut off, and then that it is connected again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said: set[object] = set()

    @property
    def goes_on(self) -> bool:
        """Whether a fault was said and the client has not been connected since."""
        return self._since is not None

    def is_new(self, words: object) -> bool:
        """Return whether these words were not said in this outage; from now on they were."""
        new = words not in self._said
        self._said.add(words)
        return new

    def fault(self, words: str) -> None:
        """Say what is wrong, where that is new."""
        if self._since is None:
            self._since = time.monotonic()
        if self.is_new(words):
            say(f"{words}; trying again until it works")

    def end(self) -> None:
        """Say that the client is connected again, where a fault was said before."""
        if self._since is not None:
            say(f"back: connected again after {duration(time.monotonic() - self._since)}")
        self._since = None
        self._said.clear()


class Supervisor:
    """Starts a client's SuperNode, and again after a delay whenever it ends, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._node: subprocess.Popen[bytes] | None = None
        self._outage = Outage()
        self._stopped = False
        self._delay = FIRST_DELAY

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopped:
            started = time.monotonic()
            fault = self._no_state_folder() or obstacle(self._client) or self._run_once()
            if time.monotonic() - started > HELD_SECONDS:
                self._delay = FIRST_DELAY
            if not self._stopped:
                self._outage.fault(fault)
                self._wait(self._delay)
                self._delay = min(2 * self._delay, LONGEST_DELAY)

    def _no_state_folder(self) -> str | None:
        """Make the state folder; return, in words, why that cannot be."""
        folder = self._client.state_dir
        try:
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    return f"state-dir = {folder}: the account that runs this client may not write there"
        except OSError as error:
            return f"state-dir = {folder} cannot be made: {error.strerror}"
        return None

    def _run_once(self) -> str:
        # A session of its own: Ctrl-C reaches this process alone, which ends the node in order.
        self._node = subprocess.Popen(  # noqa: S603 (our own Python)
            self._client.command(),
            env=self._client.environment(),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        listener = threading.Thread(target=self._pass_on, args=(self._node.stdout,), daemon=True)
        listener.start()
        code = self._node.wait()
        listener.join(timeout=2.0)  # what the app has started may hold the pipe open
        return f"the SuperNode ended ({ending(code)})"

    def _pass_on(self, output: IO[bytes]) -> None:
        """Print what a node says. While the client is cut off, a start that fails as one before it is not printed."""
        heard, holds, connected = deque[bytes](maxlen=HELD_LINES), self._outage.goes_on, False
        with output:  # closed whatever happens: a node that waits for a reader would stand still
            for line in iter(lambda: output.readline(LONGEST_LINE), b""):
                if not connected:
                    heard.append(line)
                if CONNECTED in line:
                    connected = True
                    self._outage.end()
                if not holds:
                    _print([line])
                elif connected:
                    holds = False
                    _print(heard)
        if not connected and self._outage.is_new(NUMBERS.sub(b"", b"".join(heard))) and holds:
            _print(heard)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopped and time.monotonic() < end:
            time.sleep(0.1)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True
        node = self._node
        if node is not None and node.poll() is None:
            node.terminate()
            signal.signal(signal.SIGALRM, lambda *_: node.kill())
            signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)


def say(words: str) -> None:
    """Print a line about this client on stderr."""
    print(f"fairbloom client: {words}", file=sys.stderr, flush=True)


def ending(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"killed by signal {-code}"


def duration(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _print(lines: Iterable[bytes]) -> None:
    sys.stderr.buffer.writelines(lines)
    sys.stderr.buffer.flush()


def replace_process(client: Client) -> None:
    """Go on as this client in a small process, without the libraries that the command line has loaded."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "fairbloom.deploy.client", json.dumps(asdict(client))])  # noqa: S606


def main() -> None:
    """Run the client of the settings that are given as JSON."""
    settings = json.loads(sys.argv[1])
    Supervisor(Client(**settings | {"allow": tuple(settings["allow"])})).run()


if __name__ == "__main__":
    main()
