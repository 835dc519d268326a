"""Join tokens: texts with a secret, by which devices have themselves enrolled. A hash of the secret stays here."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..errors import RefusedDeviceError
from .records import Records, build
from .registry import EnrolledClient

ID = re.compile("[0-9a-f]{8}")
"""A token's id, which is no secret."""

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
    requests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if datetime.fromisoformat(self.expires).tzinfo is None:
            raise ValueError(f"{self.expires} lacks a time zone")
        if not all(isinstance(line, str) for line in self.requests.values()):
            raise ValueError(f"requests = {self.requests!r} holds something other than texts")

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


class Tokens(Records[Token]):
    """The tokens that were ever made, in the folder of their files."""

    key, mode = "id", 0o600
    remedy = "; delete it, and make another token"

    def all(self) -> list[Token]:
        """Return all, the oldest first."""
        return sorted(self.read_all(), key=lambda token: token.made)

    def parse(self, name: str, said: dict[str, Any]) -> Token:
        """Return the token that a file says."""
        return build(Token, said)

    def find(self, shown: str) -> Token | None:
        """Return the token that a device shows, ID.SECRET, None where it guesses; a better guess takes no longer."""
        number, _, secret = shown.partition(".")
        token = self.read(number) if ID.fullmatch(number) else None
        return token if token and hmac.compare_digest(hash_secret(secret), token.sha256) else None

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


def is_open(token: Token) -> bool:
    """Return whether further devices can join by a token."""
    is_late = datetime.fromisoformat(token.expires) <= datetime.now(UTC)
    return not (token.revoked or is_late) and len(token.requests) < token.clients


def hash_secret(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
