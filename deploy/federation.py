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
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w

from . import audit, pki
from .errors import DeployError as DeployError
from .errors import RefusedError, UnreachableError
from .folder import CONNECTION as CONNECTION
from .folder import furnish, made_whole, write_flower_home
from .given import EVERY_ADDRESS, address, check_days, host_name, joined, port_number
from .roll import Enrolled, Former, Roll
from .roll import Key as Key

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
UNIT = Path(__file__).parent / "edge" / "fairbloom-client.service"
SERVER_UNIT = UNIT.with_name("fairbloom-server.service")
COMMAND_SECONDS = 120.0

KEY_DAYS = 398.0
"""How long a client's key is good unless the operator says otherwise."""

OVERLAP_DAYS = 7.0
"""How long a rotated key stays good unless the operator says otherwise, so that the device can be changed over."""

LONGEST_DAYS = 36_500.0
UNAVAILABLE = "Connection to the SuperLink is unavailable"
UNAUTHENTICATED = ("Authentication failed", "[code: 36]")
"""What Flower's commands say of a SuperLink that is not there, and of one that does not accept the credential."""


class Federation:
    """A federation's folder.

    Parameters
    ----------
    path
        The folder that `init` made.

    Attributes
    ----------
    superlink, control, listen
        HOST:PORT of what clients dial, of the control API, and where the fleet API listens.
    authority, authority_key, certificate, certificate_key
        Files of the certificate authority and of the server's certificate.
    operator_token, operators
        File of the credential of the control API, which the operator alone has, and of what the server knows of it.
    runtime_secret, metrics_token
        Files of the SuperExec's secret and of the credential of the metrics page.
    unit
        The systemd unit that runs the server of this folder.
    state, database
        Folder of what the server writes, and the SuperLink's database in it.

    Raises
    ------
    DeployError
        When there is none, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / "federation.toml"
        try:
            about = tomllib.loads(file.read_text())
            self.superlink, self.control = str(about["superlink"]), str(about["control"])
        except FileNotFoundError:
            raise DeployError(
                f"{path} is no federation's folder: make one with fairbloom deploy init {path} --host NAME, "
                "or name another by --dir"
            ) from None
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DeployError(f"{file} cannot be read: {error}") from error
        except KeyError as error:
            raise DeployError(f"{file} lacks {error.args[0]}: bring it back from a copy") from None
        self.listen = str(about.get("listen", f"{EVERY_ADDRESS[0]}:{self.superlink.rpartition(':')[2]}"))
        self.authority, self.authority_key = path / "ca.crt", path / "ca.key"
        self.certificate, self.certificate_key = path / "server.crt", path / "server.key"
        self.operator_token, self.operators = path / "operator.token", path / "operators.toml"
        self.runtime_secret, self.metrics_token = path / "runtime.secret", path / "metrics.token"
        self.unit = path / SERVER_UNIT.name
        self.state = path / "state"
        self.database = self.state / "superlink.db"
        self._roll = Roll(path / "clients")

    @classmethod
    def init(
        cls,
        path: Path,
        hosts: Sequence[str],
        fleet_port: int,
        control: str,
        days: float,
        listen: str = EVERY_ADDRESS[0],
    ) -> "Federation":
        """Make the folder of a new federation, whole or not at all.

        Parameters
        ----------
        path
            A folder that is empty, or not there yet.
        hosts
            Names and addresses by which clients reach the server, the first of them in their bundles.
        fleet_port
            The port that clients connect to.
        control
            HOST:PORT of the control API.
        days
            How long the server's certificate holds.
        listen
            Address of this machine on which the fleet API listens.

        Raises
        ------
        DeployError
            When the folder is in use or cannot be made, or one of the others is impossible.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DeployError(
                f"{path} is not empty: choose another folder; fairbloom deploy renew makes a new server certificate"
            )
        if path.exists() and path.stat().st_uid != os.geteuid():
            raise DeployError(
                f"{path} belongs to another account, which could change what is in it: choose another folder"
            )
        names = [host_name("--host", host) for host in hosts]
        control_host, control_port = address("--control", control)
        about = {
            "superlink": joined(names[0], port_number("--fleet-port", fleet_port)),
            "control": joined(control_host, control_port),
            "listen": joined(host_name("--listen", listen), fleet_port),
        }
        if control_host in EVERY_ADDRESS:
            raise DeployError(f"--control {control}: name the one address by which you reach it, 127.0.0.1:8000 say")
        if control_port == fleet_port and (listen in EVERY_ADDRESS or listen == control_host):
            raise DeployError(f"--control {control}: port {control_port} is the --fleet-port already, choose another")
        check_days(days, pki.AUTHORITY_DAYS)
        try:
            with made_whole(path) as folder:
                furnish(folder)
                authority, key = folder / "ca.crt", folder / "ca.key"
                pki.make_authority(authority, key)
                server = (folder / "server.crt", folder / "server.key")
                pki.make_server_certificate(authority, key, *server, [*names, control_host], days)
                token = (folder / "operator.token").read_text()
                write_flower_home(folder / "flower", about["control"], path / "ca.crt", token)
                pki.write_public(folder / SERVER_UNIT.name, server_unit(path).encode())
                audit.note(folder / "state", "init", hosts=" ".join(names), **about)
                pki.write_public(
                    folder / "federation.toml", tomli_w.dumps(about).encode()
                )  # last: it makes a folder one
        except OSError as error:
            raise DeployError(f"{path} cannot be made: {error}") from error
        return cls(path)

    def renew(self, hosts: Sequence[str], days: float) -> list[str]:
        """Make a new server certificate, for the names of the old one where none are given; return its names.

        Credentials that are missing from the folder are made as well.

        Raises
        ------
        DeployError
            When a host is none, or the authority's files cannot be used.
        """
        with self.noted("renew") as about:
            check_days(days, pki.AUTHORITY_DAYS)
            names = [host_name("--host", host) for host in hosts] or self._hosts()
            control, _ = address(f"control in {self.path / 'federation.toml'}", self.control)
            authority = (self.authority, self.authority_key)
            names = list(dict.fromkeys([*names, *({control} - set(pki.LOCAL))]))
            try:
                pki.make_server_certificate(*authority, self.certificate, self.certificate_key, names, days)
                furnish(self.path)
                self.write_connection(self.path / "flower")
            except (pki.PkiError, OSError) as error:
                raise DeployError(str(error)) from None
            about |= {"hosts": " ".join(names), "days": days}
        return names

    def _hosts(self) -> list[str]:
        try:
            return [host for host in pki.hosts_of(self.certificate) if host not in pki.LOCAL] or ["localhost"]
        except pki.PkiError as error:
            raise DeployError(f"{error}: say for which hosts the new one is, by --host") from None

    # Clients --------------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> list[Enrolled]:
        """All that were ever enrolled, in the order of names."""
        return self._roll.clients()

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

    def keys(self) -> list[Key]:
        """Return the keys that are good, or were until they expired, of all clients that are not revoked.

        Raises
        ------
        DeployError
            When a client's file cannot be used. One that is being replaced is read as it was or as it will be.
        """
        return self._roll.keys()

    def enroll(
        self,
        name: str,
        partition_id: int | None,
        unpack: bool,
        *,
        request: Path | None = None,
        days: float = KEY_DAYS,
        examples: int = 0,
    ) -> Path:
        """Register a client's public key and write the device's bundle; return where that is.

        Parameters
        ----------
        name
            What reports will call the client.
        partition_id
            Which of the task's clients it is; None for the first that is free.
        unpack
            Whether the bundle is a folder in place of a .tar.gz.
        request
            The file that the device's `fairbloom client keys` printed. Without one the keys are made here, and the
            private one is in the bundle alone.
        days
            How long the key is good; 0 for ever.
        examples
            How many training examples the client has; 0 where that is not known.

        Raises
        ------
        DeployError
            When one of these is impossible or taken, or the SuperLink does not register the key.
        """
        with self.noted("enroll", client=name) as about:
            if not NAME.fullmatch(name):
                raise DeployError(f"client {name!r}: up to 63 letters, digits, dots, dashes and underscores would do")
            check_days(days, LONGEST_DAYS, or_never=True)
            for option, number in (("--examples", examples), ("--partition-id", partition_id or 0)):
                if number < 0:
                    raise DeployError(f"{option} {number}: it is counted from 0")
            self._roll.check_new(name)
            keys = self._keys_for(name, request)
            self._retire()
            node_id = self._register(name, keys.public)
            with self._taken_back_on_failure(node_id), self._roll.locked():
                self._roll.check_new(name)  # another command may have been quicker
                taken = {client.partition_id for client in self.clients if not client.revoked}
                before = {client.name: client for client in self.clients}.get(name)
                enrolled = Enrolled(
                    name=name,
                    node_id=node_id,
                    partition_id=_first_free(taken) if partition_id is None else partition_id,
                    public_key=keys.public.decode(),
                    enrolled=_now(),
                    expires=_in_days(days) if days else "",
                    examples=examples,
                    former=before.all_former if before else (),
                )
                bundle = self._write_bundle(enrolled, keys.private, unpack)
                self._roll.save(enrolled)
            about |= _key_facts(enrolled)
        return bundle

    def rotate(
        self,
        name: str,
        unpack: bool,
        *,
        request: Path | None = None,
        days: float = KEY_DAYS,
        overlap: float = OVERLAP_DAYS,
    ) -> Path:
        """Register a new key for a client that stays what it is, and write a new bundle; return where that is.

        Parameters
        ----------
        name, unpack, request, days
            As of `enroll`.
        overlap
            How many days the old key stays good; 0 strikes it off at once.

        Raises
        ------
        DeployError
            When there is no such client, the key is impossible, or the SuperLink does not register it.
        """
        with self.noted("rotate", client=name) as about:
            self.client(name)
            check_days(days, LONGEST_DAYS, or_never=True)
            check_days(overlap, LONGEST_DAYS, or_never=True, option="--overlap")
            keys = self._keys_for(name, request)
            node_id = self._register(name, keys.public)
            with self._taken_back_on_failure(node_id), self._roll.locked():
                client = self.client(name)
                until = min(filter(None, (client.expires, _in_days(overlap))), key=datetime.fromisoformat)
                old = Former(node_id=client.node_id, public_key=client.public_key, expires=until)
                rotated = replace(
                    client,
                    node_id=node_id,
                    public_key=keys.public.decode(),
                    expires=_in_days(days) if days else "",
                    former=(*client.former, old),
                )
                bundle = self._write_bundle(rotated, keys.private, unpack)
                self._roll.save(rotated)
            about |= {**_key_facts(rotated), "old-node-id": old.node_id, "old-expires": until}
        self._retire()
        return bundle

    def revoke(self, name: str) -> Enrolled:
        """Unregister all of a client's keys, for ever; return what was known of it.

        Raises
        ------
        DeployError
            When the client is not enrolled, or the SuperLink does not answer.
        """
        with self.noted("revoke", client=name) as about, self._roll.locked():  # or a rotation could slip through
            client = self.client(name)
            about |= _key_facts(client)
            for key in client.keys:
                self._unregister(name, key.node_id)
            former = tuple(replace(old, unregistered=old.unregistered or _now()) for old in client.former)
            self._roll.save(replace(client, revoked=_now(), former=former))
            self._remove_bundle(name)
        self._retire()
        return client

    def export(self, name: str) -> bytes:
        """Return a client's bundle as a .tar.gz.

        Raises
        ------
        DeployError
            When the client is not enrolled, or its bundle is no longer here.
        """
        with self.noted("export", client=name):
            self.client(name)
            folder, packed = self._bundles(name)
            if packed.is_file():
                return packed.read_bytes()
            if folder.is_dir():
                files = {
                    file.name: (file.read_bytes(), file.stat().st_mode & 0o777) for file in sorted(folder.iterdir())
                }
                return _packed(name, files)
            raise DeployError(
                f"the bundle of client {name!r} is gone from {folder.parent}: fairbloom deploy rotate {name} makes "
                "a new one"
            )

    def _keys_for(self, name: str, request: Path | None) -> pki.KeyPair:
        """Return the key that a device asks for, without its private half, or a new pair."""
        if request is None:
            return pki.new_node_key()
        try:
            asked = pki.read_request(request.read_text(), str(request))
        except (OSError, UnicodeDecodeError) as error:
            raise DeployError(f"--request {request} cannot be read: {error}") from None
        if asked.name != name:
            raise DeployError(f"--request {request} is of client {asked.name!r}, not {name!r}: was the file mixed up?")
        for client in self.clients:
            known = {client.public_key, *(old.public_key for old in client.former)}
            if asked.public.decode() in known:
                whose = f"client {client.name!r}" + (", which is revoked" if client.revoked else "")
                raise DeployError(
                    f"--request {request}: {whose}, has had this key: make another on the device with "
                    f"fairbloom client keys {name}"
                )
        return pki.KeyPair(private=b"", public=asked.public)

    def _register(self, name: str, public_key: bytes) -> str:
        """Register a public key with the SuperLink; return the node's id."""
        with tempfile.NamedTemporaryFile(suffix=".pub") as public:
            public.write(public_key)
            public.flush()
            answer = self.flwr_json("supernode", "register", public.name, CONNECTION, "--name", name)
        return str(answer["node-id"])

    def _unregister(self, name: str, node_id: str) -> None:
        try:
            self.flwr_json("supernode", "unregister", node_id, CONNECTION)
        except (UnreachableError, RefusedError):
            raise
        except DeployError as error:
            nodes = {
                str(node["node-id"]): node["status"]
                for node in self.flwr_json("supernode", "list", CONNECTION)["nodes"]
            }
            if nodes.get(node_id) != "unregistered":  # an earlier attempt may have got this far
                raise DeployError(
                    f"{error}. If the SuperLink's database was made anew since, delete {self._roll.file(name)} and "
                    "enrol the client again"
                ) from None

    def _retire(self) -> None:
        """Unregister former keys whose time is over; what fails is tried again by the next command."""
        now = datetime.now(UTC)
        for key in self.keys():
            if not key.current and key.expired(now):
                try:
                    self._retire_one(key)
                except DeployError as error:
                    _warn(f"a former key of client {key.client} is not unregistered yet: {error}")

    def _retire_one(self, key: Key) -> None:
        self._unregister(key.client, key.node_id)
        with self._roll.locked():
            client = self.client(key.client)
            former = (replace(old, unregistered=_now()) if old.node_id == key.node_id else old for old in client.former)
            self._roll.save(replace(client, former=tuple(former)))
        self.note("unregister", client=key.client, **{"node-id": key.node_id})

    @contextlib.contextmanager
    def _taken_back_on_failure(self, node_id: str) -> Iterator[None]:
        """Unregister a node where the block fails: it would be nobody's."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(DeployError):
                self.flwr_json("supernode", "unregister", node_id, CONNECTION)
            raise

    def _bundles(self, name: str) -> tuple[Path, Path]:
        """Return where a client's bundle is as a folder, and where as a .tar.gz."""
        return self.path / "bundles" / name, self.path / "bundles" / f"{name}.tar.gz"

    def _remove_bundle(self, name: str) -> None:
        folder, packed = self._bundles(name)
        packed.unlink(missing_ok=True)
        if folder.is_dir():
            shutil.rmtree(folder)

    def _write_bundle(self, client: Enrolled, private_key: bytes, unpack: bool) -> Path:
        settings = {"superlink": self.superlink, "ca": "ca.crt", "key": "key", "name": client.name}
        files = {
            "ca.crt": (self.authority.read_bytes(), 0o644),
            "client.toml": (tomli_w.dumps(settings | {"partition-id": client.partition_id}).encode(), 0o644),
            UNIT.name: (UNIT.read_bytes(), 0o644),
        }
        if private_key:
            files["key"] = (private_key, 0o600)
        folder, packed = self._bundles(client.name)
        self._remove_bundle(client.name)
        if not unpack:
            pki.write_private(packed, _packed(client.name, files))
            return packed
        folder.mkdir()
        for name, (content, mode) in files.items():
            (pki.write_private if mode == 0o600 else pki.write_public)(folder / name, content)
        return folder

    # The audit log --------------------------------------------------------------------------------------------------

    def note(self, event: str, **about: str | int | float | None) -> None:
        """Note in the audit log what was done; where it cannot be written, say so and go on."""
        try:
            audit.note(self.state, event, **about)
        except OSError as error:
            _warn(f"the audit log {self.state / audit.FILE} cannot be written ({error.strerror}): {event} is not noted")

    @contextlib.contextmanager
    def noted(self, event: str, **about: str | int | float | None) -> Iterator[dict[str, str | int | float | None]]:
        """Note in the audit log what the block does, with what it adds to the yielded facts, or why it was refused."""
        try:
            yield about
        except (ValueError, OSError) as error:
            self.note("refused", **{"command": event, **about, "reason": str(error)})
            if isinstance(error, OSError):
                raise DeployError(f"{event}: {error}") from error
            raise
        self.note(event, **about)

    # Flower's own commands ------------------------------------------------------------------------------------------

    def write_connection(self, home: Path) -> None:
        """Write the connection to this federation's SuperLink, and the credential for it, into a home of Flower's.

        Raises
        ------
        DeployError
            When the operator's credential cannot be read.
        """
        write_flower_home(home, self.control, self.authority, self.token())

    def token(self) -> str:
        """Return the operator's credential.

        Raises
        ------
        DeployError
            When it cannot be read, or is none.
        """
        remedy = "bring it back from a copy, or delete it and let fairbloom deploy renew make a new one"
        try:
            token = self.operator_token.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeployError(f"the credential {self.operator_token} cannot be read: {error}; {remedy}") from None
        if not re.fullmatch(r"[!-~]+", token):
            raise DeployError(f"{self.operator_token} holds no credential: {remedy}")
        return token

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
                done = subprocess.run(  # noqa: S603 (Flower's own command)
                    [flwr_command(), *command, "--format", "json"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=COMMAND_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise UnreachableError(
                    f"{self.control} does not answer: is the SuperLink up? (fairbloom deploy doctor)"
                ) from None
        answer = _json_in(done.stdout)
        if answer.get("success"):
            return answer
        reason = str(answer.get("error-message") or done.stderr or done.stdout).strip()
        if UNAVAILABLE in reason:
            raise UnreachableError(
                f"the SuperLink's control API at {self.control} cannot be reached: is fairbloom server up there? "
                f"fairbloom deploy doctor --dir {self.path} says what is in the way"
            )
        if any(words in reason for words in UNAUTHENTICATED):
            raise RefusedError(
                f"the control API at {self.control} does not accept the credential in {self.operator_token}: is it "
                "the one that operators.toml on the server is for?"
            )
        raise DeployError(f"flwr {' '.join(command[:2])}: {reason}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")


def _first_free(taken: set[int]) -> int:
    return min(set(range(len(taken) + 1)) - taken)


def _key_facts(client: Enrolled) -> dict[str, str | int | float | None]:
    """Return what the audit log says of a client's key."""
    return {
        "node-id": client.node_id,
        "key": pki.fingerprint(client.public_key.encode()),
        "expires": client.expires or "never",
        "partition-id": client.partition_id,
        "examples": client.examples or None,
    }


def _warn(words: str) -> None:
    print(f"fairbloom deploy: {words}", file=sys.stderr, flush=True)


# Flower's commands and bundles ----------------------------------------------------------------------------------------


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


def holds_key(bundle: bytes) -> bool:
    """Return whether a bundle, packed, has a private key in it."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as packed:
        return any(name.endswith("/key") for name in packed.getnames())


def _packed(folder: str, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), mode
            bundle.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def server_unit(folder: Path) -> str:
    """Return the systemd unit that runs the server of a folder, as the account that asks."""
    place = folder.absolute()
    names = {"account": audit.account(), "python": sys.executable, "folder": str(place), "parent": str(place.parent)}
    # To systemd, a percent sign begins a name of its own.
    return SERVER_UNIT.read_text().format(**{name: value.replace("%", "%%") for name, value in names.items()})
