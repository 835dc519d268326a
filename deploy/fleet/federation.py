"""The folder of a federation: certificates, enrolled clients, and settings (federation.toml)."""

import contextlib
import json
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tomli_w

from fairbloom.system.files import read_toml, write_public
from fairbloom.system.lock import is_held

from .. import pki
from ..errors import DeployError
from ..processes import split_address
from .content import MEMORY_BYTES
from .members import Member, Members, timestamp

# The template of a server's systemd unit.
SERVER_UNIT = Path(__file__).parents[1] / "edge" / "fairbloom-server.service"

# The keys of federation.toml with their defaults; both sizes are in bytes. `init` writes the first
# two keys.
DEFAULTS: dict[str, Any] = {
    "server": "",
    "listen": "[::]:9092",
    "pin-keys": True,
    "max-reply": 0,
    "mailbox-memory": MEMORY_BYTES,
    "max-clients": 1000,
    "keep-runs": 50,
}


# The file in the state folder that the server writes once a second, and the age in seconds up to
# which it shows that a server runs.
NOW = "now.json"
FRESH_SECONDS = 10.0

# Seconds for which status and doctor say that a copy of a client's machine was seen, and the words.
COPY_SECONDS = 86_400.0
COPIED = (
    "its key and state folder are on two machines, or came from a backup: the second machine waits."
    " End one of the two, or enrol it under a name of its own with an empty state-dir"
)

# The largest number in this file: the last second that a date can have.
LARGEST_TIME = 253_402_300_799


@dataclass(frozen=True)
class Federation:
    """A federation's folder and settings.

    `server` is the HOST:PORT that devices connect to, `listen` the one that the server listens at.
    With `pin_keys`, a device must use the key that it was enrolled with. `max_reply` and
    `mailbox_memory` are in bytes. Files of the last `keep_runs` ended runs are kept, with 0 all.
    """

    path: Path
    server: str
    listen: str
    pin_keys: bool
    max_reply: int
    mailbox_memory: int
    max_clients: int
    keep_runs: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a federation's folder; DeployError for another folder or an unusable setting."""
        file = path / "federation.toml"
        try:
            settings = read_toml(file)
        except FileNotFoundError:
            raise DeployError(
                f"{path} is not a federation's folder: make one with fairbloom deploy init {path}"
                " --host NAME, or name another by --dir"
            ) from None
        except (OSError, ValueError) as error:
            raise DeployError(f"{file} cannot be read: {error}") from error
        for key, value in settings.items():
            default = DEFAULTS.get(key)
            if default is None:
                raise DeployError(
                    f"unknown setting {key} = {value!r} in {file}: there are {', '.join(DEFAULTS)}"
                )
            if type(value) is not type(default) or (isinstance(value, int) and value < 0):
                raise DeployError(
                    f"{key} = {value!r} in {file}: it must be of type {type(default).__name__}"
                )
        if "server" not in settings:
            raise DeployError(
                f'server is missing in {file}: write server = "HOST:PORT", as devices reach the'
                " server"
            )
        for key in ("server", "listen"):
            try:
                host, port = split_address(settings.get(key, DEFAULTS[key]))
            except ValueError as error:
                raise DeployError(f"{key} in {file}: {error}") from None
            pki.normalise_host(host, f"{key} in {file}:")
            check_port(f"{key} in {file}:", port)
        return cls(
            path,
            **{key.replace("-", "_"): value for key, value in (DEFAULTS | settings).items()},
        )

    @classmethod
    def init(cls, path: Path, hosts: Sequence[str], port: int) -> Self:
        """Create the folder of a new federation, complete or not at all.

        `hosts` are the server's names and addresses; devices connect to the first one at `port`.
        Raise DeployError if an argument is invalid.
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
        names = [pki.normalise_host(host) for host in hosts]
        check_port("--port", port)
        first = f"[{names[0]}]" if ":" in names[0] else names[0]  # an IPv6 address has colons
        settings = {"server": f"{first}:{port}", "listen": f"[::]:{port}"}
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
                # last: with this file, the folder is a federation's
                write_public(folder / "federation.toml", tomli_w.dumps(settings).encode())
        except OSError as error:
            raise DeployError(f"{path} cannot be made: {error}") from error
        return cls.read(path)

    @property
    def state(self) -> Path:
        """The folder of the files that the server writes."""
        return self.path / "state"

    @property
    def lock(self) -> Path:
        """The file that the server locks while it runs."""
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
        return is_held(self.lock) and abs(time.time() - read_now(self).at) < FRESH_SECONDS

    def renew(self, hosts: Sequence[str] = (), days: float = pki.SERVER_DAYS) -> list[str]:
        """Make a new server certificate; return its names except loopback's.

        Without `hosts`, it has the names of the old certificate.
        """
        names = [pki.normalise_host(host) for host in hosts]
        if not hosts:
            try:
                old = pki.read_hosts(self.identity[0])
            except DeployError as error:
                raise DeployError(
                    f"{error}: name the hosts of the new one by fairbloom deploy renew --host"
                ) from None
            names = [host for host in old if host not in pki.LOCAL] or ["localhost"]
        try:
            pki.make_server_certificate(*self.authority, *self.identity, names, days)
        except OSError as error:
            raise DeployError(str(error)) from None
        return names

    def note(self, command: str, **about: str | int) -> None:
        """Add an operator's command, with time and account, to the log commands.jsonl."""
        line = {"at": timestamp(), "account": account_name(), "command": command, **about}
        try:
            with (self.path / "commands.jsonl").open("a") as file:
                file.write(f"{json.dumps(line)}\n")
        except OSError as error:
            raise DeployError(
                f"{command} is done, but {error.filename or self.path} cannot be written:"
                f" {error.strerror}"
            ) from error

    def members(self) -> list[Member]:
        """Return all clients that were ever enrolled, sorted by name."""
        members = Members(self.path / "clients")
        try:
            members.refresh()
        except OSError as error:
            raise DeployError(
                f"{members.folder} cannot be read ({error.strerror}): bring it back from a copy, or"
                " use its owner's account"
            ) from error
        return [members.by_name[name] for name in sorted(members.by_name)]

    def enrolled(self) -> list[Member]:
        """Return the clients that are not revoked, sorted by name."""
        return [member for member in self.members() if not member.revoked]


def check_port(option: str, given: int) -> None:
    """Raise DeployError unless a number is a valid port."""
    if not 0 < given < 65536:
        raise DeployError(f"{option} {given}: a port is a number from 1 to 65535")


@dataclass(frozen=True)
class Now:
    """What the server wrote into now.json last.

    `run` is the number of the run that is carried out, or 0, and `waiting` says for which clients
    it waits. `failure` says which run failed, if the last one did. `version` is the server's, and
    `free` the share of each folder's disk that is free. `online`
    maps each client that is online to how often another process with its key was refused, `seen`
    each client to the time at which it was last seen, `versions` to its version of Fairbloom,
    `reasons` to its last error or why it was refused, `reasons_at` to when, and `copied` to when a
    copy of its machine was noticed last. `connections` has the number of the port's, `open`, and
    its `limit`; `refused` has the number of refused calls and replies by kind, and `days` how long
    the certificates in each file are valid.
    """

    at: float = 0.0
    run: int = 0
    waiting: str = ""
    version: str = ""
    failure: str = ""
    free: Mapping[str, float] = field(default_factory=dict)
    online: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    reasons_at: Mapping[str, float] = field(default_factory=dict)
    copied: Mapping[str, float] = field(default_factory=dict)
    connections: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    days: Mapping[str, float] = field(default_factory=dict)


def find_copied(now: Now) -> dict[str, float]:
    """Return the clients of which a copy was noticed in the last COPY_SECONDS, and when."""
    since = time.time() - COPY_SECONDS
    return {name: at for name, at in now.copied.items() if at > since}


def read_now(federation: Federation) -> Now:
    """Read now.json; a missing or damaged one says nothing."""
    try:
        now = Now(**json.loads((federation.state / NOW).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return Now()
    of_clients = (now.online, now.seen, now.reasons_at, now.copied)
    of_numbers = (*of_clients, now.connections, now.refused, now.days, now.free)
    if not all(isinstance(table, dict) for table in (*of_numbers, now.versions, now.reasons)):
        return Now()
    numbers = [now.at, *(each for table in of_numbers for each in table.values())]
    texts = [now.waiting, now.failure, now.version]
    texts += [*now.versions.values(), *now.reasons.values()]
    has_numbers = all(
        isinstance(number, int | float) and 0 <= number <= LARGEST_TIME for number in numbers
    )
    has_texts = all(isinstance(text, str) for text in texts)
    if has_numbers and has_texts and isinstance(now.run, int):
        return now
    return Now()


@contextlib.contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which is at `path` if the block succeeds, and is removed otherwise."""
    if path.exists():  # for example the root of a volume, which cannot be replaced
        path.chmod(0o700)
        (path / "clients").mkdir()  # if two processes do this at once, one of them fails here
        try:
            yield path
        except BaseException:
            for left in path.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()
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


def account_name() -> str:
    """Return the name of the account that runs this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user often has no name
        return str(os.geteuid())


def server_unit(folder: Path) -> str:
    """Return the systemd unit that runs the server of a folder, as the current account."""
    place = folder.absolute()
    names = {
        "account": account_name(),
        "python": sys.executable,
        "folder": str(place),
        "parent": str(place.parent),
    }
    # in a unit, a percent sign begins a specifier and is written twice to mean itself
    return SERVER_UNIT.read_text().format(
        **{name: value.replace("%", "%%") for name, value in names.items()}
    )
