"""The operator's folder of a federation: certificates, who is enrolled, and the way to its SuperLink."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from . import pki

CONNECTION = "federation"
"""The name under which Flower's own commands find the SuperLink."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
UNIT = Path(__file__).parent / "edge" / "fairbloom-client.service"
COMMAND_SECONDS = 120.0


class DeployError(ValueError):
    """What stops a command of the operator; the message names the thing, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """One client as the operator knows it; `revoked` is empty until it is."""

    name: str
    node_id: str
    partition_id: int
    public_key: str
    enrolled: str
    revoked: str = ""


class Federation:
    """A federation's folder.

    Parameters
    ----------
    path
        The folder that `init` made.

    Raises
    ------
    DeployError
        When there is none, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            about = tomllib.loads((path / "federation.toml").read_text())
        except FileNotFoundError:
            raise DeployError(
                f"{path} is no federation's folder: make one with fairbloom deploy init {path} --host NAME, "
                "or name another by --dir"
            ) from None
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise DeployError(f"{path / 'federation.toml'} cannot be read: {error}") from error
        self.superlink, self.control = str(about["superlink"]), str(about["control"])
        self.authority, self.authority_key = path / "ca.crt", path / "ca.key"
        self.certificate, self.certificate_key = path / "server.crt", path / "server.key"

    @classmethod
    def init(cls, path: Path, hosts: Sequence[str], fleet_port: int, control: str, days: float) -> "Federation":
        """Make the folder of a new federation: CA, server certificate, the operator's connection.

        Raises
        ------
        DeployError
            When the folder is in use, or a host's name is none.
        """
        if path.exists() and any(path.iterdir()):
            raise DeployError(
                f"{path} is not empty: choose another folder; fairbloom deploy renew makes a new server certificate"
            )
        for host in hosts:
            if not host or len(host) > 253 or re.search(r"[\s/]", host) or host.count(":") == 1:
                raise DeployError(f"--host {host!r}: give a name or an address without port, server.example.org say")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / "clients").mkdir()
        (path / "bundles").mkdir()
        pki.make_authority(path / "ca.crt", path / "ca.key")
        server = (path / "server.crt", path / "server.key")
        pki.make_server_certificate(path / "ca.crt", path / "ca.key", *server, hosts, days)
        first = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        about = {"superlink": f"{first}:{fleet_port}", "control": control}
        pki.write_public(path / "federation.toml", tomli_w.dumps(about).encode())
        federation = cls(path)
        (path / "flower").mkdir()
        federation.write_connection(path / "flower")
        return federation

    def renew(self, hosts: Sequence[str], days: float) -> list[str]:
        """Make a new server certificate, for the names of the old one where none are given; return its names."""
        names = (
            list(hosts) or [host for host in pki.hosts_of(self.certificate) if host not in pki.LOCAL] or ["localhost"]
        )
        pki.make_server_certificate(
            self.authority, self.authority_key, self.certificate, self.certificate_key, names, days
        )
        return names

    # Clients --------------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> list[Enrolled]:
        """All that were ever enrolled, in the order of names."""
        files = sorted((self.path / "clients").glob("*.toml"))
        return [Enrolled(**tomllib.loads(file.read_text())) for file in files]

    def client(self, name: str) -> Enrolled:
        """Return the client of this name that is enrolled and not revoked.

        Raises
        ------
        DeployError
            When there is none.
        """
        there = {client.name: client for client in self.clients if not client.revoked}
        if name not in there:
            known = ", ".join(there) or "none"
            raise DeployError(f"client {name!r} is not enrolled; enrolled are: {known}")
        return there[name]

    def enroll(self, name: str, partition_id: int | None, unpack: bool) -> Path:
        """Make a client's keys, register the public one, and write the device's bundle; return where that is.

        The private key is in the bundle alone.

        Raises
        ------
        DeployError
            When the name is none or taken, or the SuperLink does not register it.
        """
        if not NAME.fullmatch(name):
            raise DeployError(f"client {name!r}: up to 63 letters, digits, dots, dashes and underscores would do")
        active = [client for client in self.clients if not client.revoked]
        if any(client.name == name for client in active):
            raise DeployError(f"client {name!r} is enrolled already: revoke it first, or choose another name")
        taken = {client.partition_id for client in active}
        partition = min(set(range(len(taken) + 1)) - taken) if partition_id is None else partition_id
        keys = pki.new_node_key()
        with tempfile.NamedTemporaryFile(suffix=".pub") as public:
            public.write(keys.public)
            public.flush()
            answer = self.flwr_json("supernode", "register", public.name, CONNECTION, "--name", name)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        enrolled = Enrolled(
            name=name,
            node_id=str(answer["node-id"]),
            partition_id=partition,
            public_key=keys.public.decode(),
            enrolled=now,
        )
        self._note(enrolled)
        return self._write_bundle(enrolled, keys.private, unpack)

    def revoke(self, name: str) -> Enrolled:
        """Unregister a client's key, for ever; return what was known of it.

        Raises
        ------
        DeployError
            When the client is not enrolled, or the SuperLink does not answer.
        """
        client = self.client(name)
        self.flwr_json("supernode", "unregister", client.node_id, CONNECTION)
        self._note(Enrolled(**asdict(client) | {"revoked": datetime.now(UTC).isoformat(timespec="seconds")}))
        return client

    def _note(self, client: Enrolled) -> None:
        pki.write_public(self.path / "clients" / f"{client.name}.toml", tomli_w.dumps(asdict(client)).encode())

    def _write_bundle(self, client: Enrolled, private_key: bytes, unpack: bool) -> Path:
        settings = {"superlink": self.superlink, "ca": "ca.crt", "key": "key", "name": client.name}
        files = {
            "ca.crt": (self.authority.read_bytes(), 0o644),
            "key": (private_key, 0o600),
            "client.toml": (tomli_w.dumps(settings | {"partition-id": client.partition_id}).encode(), 0o644),
            UNIT.name: (UNIT.read_bytes(), 0o644),
        }
        bundles = self.path / "bundles"
        if not unpack:
            bundle = bundles / f"{client.name}.tar.gz"
            pki.write_private(bundle, _packed(client.name, files))
            return bundle
        folder = bundles / client.name
        folder.mkdir(exist_ok=True)
        for name, (content, mode) in files.items():
            (pki.write_private if mode == 0o600 else pki.write_public)(folder / name, content)
        return folder

    # Flower's own commands ------------------------------------------------------------------------------------------

    def write_connection(self, home: Path) -> None:
        """Write Flower's config.toml with the connection to this federation's SuperLink into its home."""
        connection = {"address": self.control, "root-certificates": str(self.authority.absolute())}
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        pki.write_public(home / "config.toml", tomli_w.dumps(config).encode())

    @contextlib.contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """Give an environment in which Flower's commands know the connection, whatever is in the user's home."""
        with tempfile.TemporaryDirectory(prefix="fairbloom-") as home:
            self.write_connection(Path(home))
            defaults = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
            yield defaults | dict(os.environ) | {"FLWR_HOME": home}

    def flwr_json(self, *command: str) -> dict[str, Any]:
        """Run one of Flower's commands; return its answer.

        Raises
        ------
        DeployError
            When it did not succeed, in its own words and ours.
        """
        with self.environment() as environment:
            try:
                done = subprocess.run(
                    [flwr_command(), *command, "--format", "json"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=COMMAND_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise DeployError(
                    f"{self.control} does not answer: is the SuperLink up? (fairbloom deploy doctor)"
                ) from None
        answer = _json_in(done.stdout)
        if answer.get("success"):
            return answer
        reason = str(answer.get("error-message") or done.stderr or done.stdout).strip()
        if "unavailable" in reason.lower() or "connection" in reason.lower():
            reason = (
                f"the SuperLink's control API at {self.control} cannot be reached: start it, or see what is in the way "
                f"with fairbloom deploy doctor --dir {self.path}"
            )
        raise DeployError(f"flwr {' '.join(command[:2])}: {reason}")


def flwr_command() -> str:
    """Return the path of Flower's command that belongs to this Python."""
    beside = Path(sys.executable).parent
    found = shutil.which("flwr", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise DeployError(f"the command flwr is not beside {sys.executable}: install fairbloom there")
    return found


def _json_in(text: str) -> dict[str, Any]:
    """Return the JSON object that a command printed, after other words perhaps."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _packed(folder: str, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), mode
            bundle.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
