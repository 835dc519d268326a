"""The folder of a federation: certificates, who is enrolled, and what its federation.toml says."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.system.files import write_public
from fairbloom.system.lock import is_held

from .. import pki
from ..errors import DeployError
from ..processes import split_address
from .mailbox import MEMORY_BYTES
from .members import Member, Members

# The systemd unit of a server.
SERVER_UNIT = Path(__file__).parents[1] / "edge" / "fairbloom-server.service"

# The keys of federation.toml with their defaults; bytes for both sizes. `init` writes the first
# two.
DEFAULTS: dict[str, Any] = {
    "server": "",
    "listen": "[::]:9092",
    "pin-keys": True,
    "max-reply": 0,
    "mailbox-memory": MEMORY_BYTES,
    "max-clients": 1000,
}


# File in the state folder which the server writes once a second, and how old it may be.
NOW = "now.json"
FRESH_SECONDS = 10.0


@dataclass(frozen=True)
class Federation:
    """A federation's folder, which `init` made.

    `server` and `listen` are HOST:PORT of what devices dial and of where the server listens.
    `pin_keys` says whether a device needs the key with which it was enrolled. `max_reply` and
    `mailbox_memory` are bytes.
    """

    path: Path
    server: str
    listen: str
    pin_keys: bool
    max_reply: int
    mailbox_memory: int
    max_clients: int

    @classmethod
    def read(cls, path: Path) -> Federation:
        """Read a federation's folder; DeployError for another folder or an unusable setting."""
        file = path / "federation.toml"
        try:
            said = tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise DeployError(
                f"{path} is not a federation's folder: make one with fairbloom deploy init {path}"
                " --host NAME, or name another by --dir"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise DeployError(f"{file} cannot be read: {error}") from error
        for key, value in said.items():
            default = DEFAULTS.get(key)
            if default is None:
                raise DeployError(
                    f"unknown setting {key} = {value!r} in {file}: there are {', '.join(DEFAULTS)}"
                )
            if type(value) is not type(default) or (isinstance(value, int) and value < 0):
                raise DeployError(
                    f"{key} = {value!r} in {file}: it must be of type {type(default).__name__}"
                )
        if "server" not in said:
            raise DeployError(
                f'server is missing in {file}: write server = "HOST:PORT", as devices reach the'
                " server"
            )
        for key in ("server", "listen"):
            try:
                host, port = split_address(said.get(key, DEFAULTS[key]))
            except ValueError as error:
                raise DeployError(f"{key} in {file}: {error}") from None
            normalise_host(f"{key} in {file}:", host)
            check_port(f"{key} in {file}:", port)
        return cls(
            path,
            **{key.replace("-", "_"): said.get(key, default) for key, default in DEFAULTS.items()},
        )

    @classmethod
    def init(cls, path: Path, hosts: Sequence[str], port: int) -> Federation:
        """Make the folder of a new federation, whole or not at all.

        DeployError if an argument is impossible.

        `hosts` are the server's names and addresses, the first for devices, which connect to
        `port`.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DeployError(
                f"{path} is not empty: choose another folder; fairbloom deploy renew makes a new"
                " server certificate"
            )
        if path.exists() and path.stat().st_uid != os.geteuid():
            raise DeployError(
                f"{path} belongs to another account, which could change its files: choose"
                " another folder"
            )
        names = [normalise_host("--host", host) for host in hosts]
        check_port("--port", port)
        first = f"[{names[0]}]" if ":" in names[0] else names[0]
        about = {"server": f"{first}:{port}", "listen": f"[::]:{port}"}
        try:
            with create_folder(path) as folder:
                for name in ("clients", "bundles", "state"):
                    (folder / name).mkdir(mode=0o700, exist_ok=True)
                authority = (folder / "ca.crt", folder / "ca.key")
                pki.make_authority(*authority)
                pki.make_server_certificate(
                    *authority, folder / "server.crt", folder / "server.key", names
                )
                write_public(folder / SERVER_UNIT.name, server_unit(path).encode())
                # last: it makes a folder one
                write_public(folder / "federation.toml", tomli_w.dumps(about).encode())
        except OSError as error:
            raise DeployError(f"{path} cannot be made: {error}") from error
        return cls.read(path)

    @property
    def state(self) -> Path:
        """The folder of what the server writes."""
        return self.path / "state"

    @property
    def lock(self) -> Path:
        """The file that the server holds as long as it runs."""
        return self.state / "lock"

    @property
    def runs(self) -> Path:
        """The folder of the runs' orders and logs."""
        return self.state / "runs"

    @property
    def authority(self) -> tuple[Path, Path]:
        """The authority's certificate and key."""
        return self.path / "ca.crt", self.path / "ca.key"

    @property
    def identity(self) -> tuple[Path, Path]:
        """The server's certificate and key."""
        return self.path / "server.crt", self.path / "server.key"

    @property
    def is_served(self) -> bool:
        """Whether a server runs on this folder."""
        return is_held(self.lock) and time.time() - read_now(self).get("at", 0.0) < FRESH_SECONDS

    def renew(self, hosts: Sequence[str] = (), days: float = pki.SERVER_DAYS) -> list[str]:
        """Make a new server certificate, by default for the old names.

        Return its names, loopback left out.
        """
        names = [normalise_host("--host", host) for host in hosts]
        if not hosts:
            try:
                names = [
                    host for host in pki.read_hosts(self.identity[0]) if host not in pki.LOCAL
                ] or ["localhost"]
            except DeployError as error:
                words = "say for which hosts the new one is, by fairbloom deploy renew --host"
                raise DeployError(f"{error}: {words}") from None
        try:
            pki.make_server_certificate(*self.authority, *self.identity, names, days)
        except OSError as error:
            raise DeployError(str(error)) from None
        return names

    def members(self) -> list[Member]:
        """Return all who were ever enrolled, in the order of names."""
        members = Members(self.path / "clients")
        try:
            members.look()
        except OSError as error:
            words = f"{members.folder} cannot be read ({error.strerror}): bring it back from a copy"
            raise DeployError(f"{words}, or use its owner's account") from error
        return [members.by_name[name] for name in sorted(members.by_name)]

    def enrolled(self) -> list[Member]:
        """Return those who are not revoked, in the order of names."""
        return [member for member in self.members() if not member.revoked]


def normalise_host(option: str, given: str) -> str:
    """Return a host's name or address as certificates have it.

    DeployError names the option that gave it.
    """
    try:
        return pki.normalise_host(given)
    except DeployError as error:
        raise DeployError(f"{option} {error}") from None


def check_port(option: str, given: int) -> None:
    """Raise DeployError unless a number can be a port."""
    if not 0 < given < 65536:
        raise DeployError(f"{option} {given}: a port is a number from 1 to 65535")


def read_now(federation: Federation) -> dict[str, Any]:
    """Return what the server said last of who is online and which runs go on.

    {} where it has said nothing.
    """
    try:
        said = json.loads((federation.state / NOW).read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


@contextlib.contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which is at `path` when the block succeeds.

    When it fails, all of it is gone.
    """
    if path.exists():  # a volume's root cannot be replaced
        path.chmod(0o700)
        (path / "clients").mkdir()  # of two at once, one stops here
        try:
            yield path
        except BaseException:
            for left in path.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            raise
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        yield draft
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def server_unit(folder: Path) -> str:
    """Return the systemd unit that runs the server of a folder, as the account that asks."""
    place = folder.absolute()
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user has often no name
        account = str(os.geteuid())
    names = {
        "account": account,
        "python": sys.executable,
        "folder": str(place),
        "parent": str(place.parent),
    }
    # To systemd, a percent sign begins a specifier.
    return SERVER_UNIT.read_text().format(
        **{name: value.replace("%", "%%") for name, value in names.items()}
    )
