"""`fairbloom client`: settings of one client, and the loop that starts its SuperNode again whenever it ends.

This process stays small: it loads neither Flower nor PyTorch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

FIRST_DELAY, LONGEST_DELAY = 2.0, 30.0
"""Seconds until a SuperNode that ended is started again: doubled each time, and back to the first once it held."""

HELD_SECONDS = 60.0
PROBE_SECONDS = 10.0
STOP_SECONDS = 15.0

PATHS = ("ca", "key", "data-dir", "state-dir")
BUNDLES = ("ours", "any")


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
        Where its data is, and where it keeps personal models and unpacked bundles; "" for the run's setting.
    isolated
        Whether each message is answered in a process of its own.
    bundles
        "ours" to run only code that is installed here, "any" to run what the server sends.
    port
        Of this node's own API, on loopback unless `host` says otherwise; 0 for a free one.
    host
        Where that API listens.
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
    port: int = 0
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit():
            raise ClientError(f"superlink = {self.superlink!r}: write it as HOST:PORT, example.org:9092 say")
        if self.bundles not in BUNDLES:
            raise ClientError(f'bundles = {self.bundles!r}: "ours" or "any" would do')
        if self.partition_id < 0:
            raise ClientError(f"partition-id = {self.partition_id}: it is counted from 0")
        if self.insecure and (self.ca or self.key):
            raise ClientError("insecure = true with ca or key: without TLS neither is used; leave them or insecure out")
        if not self.insecure and not self.ca:
            raise ClientError("ca is missing: name the CA certificate of your bundle, or say insecure")
        for what, path in (("ca", self.ca), ("key", self.key)):
            if path and not Path(path).is_file():
                raise ClientError(f"{what} = {path}: there is no such file")

    @classmethod
    def of(cls, given: Mapping[str, Any], file: Path | None = None) -> Client:
        """Return the settings of `file`, in client.toml's form, with those given beside it, which win.

        Relative paths in the file are relative to its folder.

        Raises
        ------
        ClientError
            When the file cannot be read, or a setting is unknown or impossible.
        """
        merged = (_read(file) if file else {}) | {key: value for key, value in given.items() if value is not None}
        kinds = {field.name.replace("_", "-"): type(field.default) for field in fields(cls)} | {"superlink": str}
        for key, value in merged.items():
            if key not in kinds:
                raise ClientError(f"unknown setting {key} = {value!r}: there are {', '.join(sorted(kinds))}")
            if type(value) is not kinds[key]:
                raise ClientError(f"{key} = {value!r}: it must be of type {kinds[key].__name__}")
        if "superlink" not in merged:
            raise ClientError("superlink is missing: give --superlink HOST:PORT, or the client.toml of a bundle")
        absolute = {key: str(Path(merged[key]).expanduser().absolute()) for key in PATHS if merged.get(key)}
        return cls(**{key.replace("-", "_"): value for key, value in (merged | absolute).items()})

    def command(self) -> list[str]:
        """Return the command that runs the SuperNode in the foreground."""
        ours = ["--isolated"] * self.isolated + ["--any-bundle"] * (self.bundles == "any")
        safety = ["--insecure"] if self.insecure else ["--root-certificates", self.ca]
        if self.key:
            safety += ["--auth-supernode-private-key", self.key]
        node: dict[str, Any] = {"partition-id": self.partition_id, "name": self.name}
        node |= {"data-dir": self.data_dir, "state-dir": self.state_dir}
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in node.items() if value != "")
        place = ["--host", self.host, "--port", str(self.port or free_port())]
        # Not by -m: children of the fork server would import the module once more, as their main one.
        python = [sys.executable, "-P", "-c", "from deploy.warm import main; main()"]
        return [*python, *ours, "--", "--superlink", self.superlink, *safety, "--node-config", config, *place]

    def environment(self) -> dict[str, str]:
        """Return the SuperNode's environment: no telemetry, Flower's files in the state folder, unless ours says so."""
        defaults = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        # Threads that spin while they wait for each other slow several clients on one machine down threefold.
        defaults["OMP_WAIT_POLICY"] = "PASSIVE"
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
    """Return, in words, why this client cannot talk to its SuperLink just now; None where TLS and address are in order.

    gRPC retries some of these for ever without saying what is wrong.
    """
    host, _, port = client.superlink.rpartition(":")
    context = tls(client.ca or None)
    context.set_alpn_protocols(["h2"])
    if client.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as connection:
            return _shake_hands(context, connection, host.strip("[]"), client)
    except TimeoutError:
        return f"{client.superlink} does not answer within {PROBE_SECONDS:.0f} s: is a firewall between?"
    except OSError as error:
        return f"{client.superlink} cannot be reached: {error.strerror or error}"


def tls(authority: str | None) -> ssl.SSLContext:
    """Return how a server's certificate is checked: against one authority, and as leniently as gRPC does."""
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _shake_hands(context: ssl.SSLContext, connection: socket.socket, host: str, client: Client) -> str | None:
    try:
        context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return (
            f"{client.superlink} shows a certificate that {client.ca} does not vouch for: {error.verify_message}. If "
            "it has expired or lacks this name, make a new one (fairbloom deploy renew); else take the CA certificate "
            "from the operator; and see that this device's clock is right"
        )
    except (ssl.SSLError, ConnectionError):
        return None if client.insecure else f"{client.superlink} does not speak TLS: start it with its certificate"
    if client.insecure:
        return f"{client.superlink} speaks TLS and this client is set insecure: give it the CA certificate instead"
    return None


# The loop -----------------------------------------------------------------------------------------------------------


class Supervisor:
    """Starts a client's SuperNode, and again after a delay whenever it ends, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._node: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._delay = FIRST_DELAY

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopped:
            started = time.monotonic()
            fault = obstacle(self._client) or self._run_once()
            if time.monotonic() - started > HELD_SECONDS:
                self._delay = FIRST_DELAY
            if not self._stopped:
                say(f"{fault}; trying again in {self._delay:.0f} s")
                self._wait(self._delay)
                self._delay = min(2 * self._delay, LONGEST_DELAY)

    def _run_once(self) -> str:
        if self._client.state_dir:
            Path(self._client.state_dir).mkdir(parents=True, exist_ok=True)
        # A session of its own: Ctrl-C reaches this process alone, which ends the node in order.
        self._node = subprocess.Popen(self._client.command(), env=self._client.environment(), start_new_session=True)
        code = self._node.wait()
        return f"the SuperNode ended ({'killed by ' + signal.Signals(-code).name if code < 0 else f'exit code {code}'})"

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


def replace_process(client: Client) -> None:
    """Go on as this client in a small process, without the libraries that the command line has loaded."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "deploy.client", json.dumps(asdict(client))])


def main() -> None:
    """Run the client of the settings that are given as JSON."""
    Supervisor(Client(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
