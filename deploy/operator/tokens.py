"""Join tokens: texts with a secret, by which devices have themselves enrolled. A hash of the secret stays here."""

import hashlib
import hmac
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import Lock, exclusive_lock

from ..errors import DeployError, RefusedDeviceError
from .registry import EnrolledClient

ID = re.compile("[0-9a-f]{8}")
"""A token's id, which is no secret."""

TYPES: Mapping[str, type] = {"days": float, "clients": int, "examples": int, "approve": bool, "requests": dict}
"""The types of what a token's file says, where it is no text."""

REMEDY = "ask the federation's operator for another (fairbloom deploy token)"


@dataclass(frozen=True, kw_only=True)
class Token:
    """A join token, for the client `name`, or for `clients` that choose their names.

    With `approve`, the operator has a say in each. `days` and `examples` are those of `enroll`. `requests` has the
    request of each device that has used it, by the client's name: this device may repeat its call.
    """

    id: str
    sha256: str
    made: str
    expires: str
    days: float
    name: str = ""
    clients: int = 1
    approve: bool = False
    examples: int = 0
    revoked: str = ""
    requests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if datetime.fromisoformat(self.expires).tzinfo is None:
            raise ValueError(f"{self.expires} lacks a time zone")

    def check(self, name: str, request: str) -> None:
        """Raise RefusedDeviceError unless this token is good for a device's request to be a client of this name."""
        this = f"the join token {self.id}"
        if self.revoked:
            raise RefusedDeviceError("a revoked token", f"{this} was revoked on {self.revoked}: {REMEDY}")
        if self.requests.get(name) == request:
            return
        if datetime.fromisoformat(self.expires) <= datetime.now(UTC):
            raise RefusedDeviceError("a token that has ended", f"{this} was good until {self.expires}: {REMEDY}")
        if self.name and self.name != name:
            words = f"{this} is for the client {self.name!r}, not {name!r}: {REMEDY}"
            raise RefusedDeviceError("a token of another name", words)
        if name in self.requests:
            words = f"another device has come as {name!r} by {this}: {REMEDY}, and say so if none should have"
            raise RefusedDeviceError("a token that another device has used", words)
        if len(self.requests) >= self.clients:
            words = f"{this} is used up: it was for {self.clients} client(s): {REMEDY}"
            raise RefusedDeviceError("a token that is used up", words)


class Tokens:
    """The tokens that were ever made, in the folder of their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # What each file said, with its version: whoever knows a token's id has it read before a limit holds.
        self._parsed: dict[str, tuple[tuple[int, int, int], Token]] = {}

    def all(self) -> list[Token]:
        """Return all, the oldest first."""
        found = (self.read(file.stem) for file in self.folder.glob("*.toml"))
        return sorted((token for token in found if token), key=lambda token: token.made)

    def read(self, number: str) -> Token | None:
        """Return the token with this id, None where there is none."""
        file = self.folder / f"{number}.toml"
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._parsed.get(number)
            if known and known[0] == version:
                return known[1]
            said = tomllib.loads(file.read_text())
            for key, value in [*said.items(), *(("request", line) for line in dict(said.get("requests", {})).values())]:
                if type(value) is not TYPES.get(key, str):
                    raise ValueError(f"{key} = {value!r} is of another type")
            token = Token(**said)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise DeployError(f"{file} cannot be used: {error}; delete it, and make another token") from None
        self._parsed[number] = version, token
        return token

    def find(self, shown: str) -> Token | None:
        """Return the token that a device shows, ID.SECRET, None where it guesses; a better guess takes no longer."""
        number, _, secret = shown.partition(".")
        token = self.read(number) if ID.fullmatch(number) else None
        return token if token and hmac.compare_digest(hash_secret(secret), token.sha256) else None

    def save(self, token: Token) -> None:
        """Write a token's file, whole or not at all."""
        make_folder(self.folder)
        write_private(self.folder / f"{token.id}.toml", tomli_w.dumps(asdict(token)).encode())

    def waiting(self, clients: Sequence[EnrolledClient]) -> list[tuple[Token, str, str]]:
        """Return the token, name and request of each device that waits for approval: no client has its key."""
        asked = [token for token in self.all() if token.approve and not token.revoked]
        known = {key for client in clients for key in client.public_keys} if asked else set[str]()
        return [
            (token, name, request)
            for token in asked
            for name, request in token.requests.items()
            if " ".join(request.split()[:2]) not in known
        ]

    def keep(self, name: str) -> bool:
        """Return whether a token of this name, in whatever case, still enrols a device or lets one repeat its call."""
        named = (token for token in self.all() if token.name.lower() == name.lower())
        return any(is_open(token) or (token.requests and not token.revoked) for token in named)

    def locked(self) -> Lock:
        """Keep other commands and devices from using tokens."""
        make_folder(self.folder)
        return exclusive_lock(self.folder / ".lock", seconds=math.inf)


def is_open(token: Token) -> bool:
    """Return whether further devices can join by a token."""
    is_late = datetime.fromisoformat(token.expires) <= datetime.now(UTC)
    return not (token.revoked or is_late) and len(token.requests) < token.clients


def hash_secret(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
