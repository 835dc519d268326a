"""The clients of a federation as its operator knows them: a file each, and which keys are good."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..arguments import NAME, NAME_RULE
from ..errors import DeployError
from .records import Records, build

RENEWAL_DAYS = 30.0
"""How long before its end a client's key is renewed, at most a third of its life."""


@dataclass(frozen=True, kw_only=True)
class FormerKey:
    """A key that a client had before it was rotated; it is good until `expires`, or until it is unregistered."""

    node_id: str
    public_key: str
    expires: str
    unregistered: str = ""


@dataclass(frozen=True, kw_only=True)
class ClientKey:
    """A public key that is registered for a client: its current one, or a former one that is being changed over."""

    client: str
    node_id: str
    public_key: str
    made: str
    expires: str
    current: bool

    def expired(self, now: datetime) -> bool:
        """Return whether this key is no longer good."""
        return bool(self.expires) and datetime.fromisoformat(self.expires) <= now

    def is_due(self, now: datetime) -> bool:
        """Return whether it is time for the client's next key."""
        if not (self.current and self.made and self.expires):
            return False
        end = datetime.fromisoformat(self.expires)
        return end - now < min(timedelta(days=RENEWAL_DAYS), (end - datetime.fromisoformat(self.made)) / 3)


@dataclass(frozen=True, kw_only=True)
class EnrolledClient:
    """One client as the operator knows it.

    `expires` and `revoked` are dates, "" for never; `key_made` is when its key was registered, "" for `enrolled`;
    `examples` is 0 where it was not given; `former` has its earlier keys, oldest first.
    """

    name: str
    node_id: str
    partition_id: int
    public_key: str
    enrolled: str
    key_made: str = ""
    revoked: str = ""
    expires: str = ""
    examples: int = 0
    former: tuple[FormerKey, ...] = ()

    @property
    def all_former(self) -> tuple[FormerKey, ...]:
        """The keys that a revoked client has had, the last one with them, for one that is enrolled by its name."""
        last = FormerKey(
            node_id=self.node_id, public_key=self.public_key, expires=self.revoked, unregistered=self.revoked
        )
        return (*self.former, last)

    @property
    def public_keys(self) -> list[str]:
        """All keys that this client has had."""
        return [self.public_key, *(old.public_key for old in self.former)]

    @property
    def node_ids(self) -> list[str]:
        """All numbers that this client has had at the SuperLink."""
        return [self.node_id, *(old.node_id for old in self.former)]

    @property
    def keys(self) -> list[ClientKey]:
        """The keys that are registered for this client, the current one first."""
        held = [(self.node_id, self.public_key, self.expires)]
        held += [(old.node_id, old.public_key, old.expires) for old in self.former if not old.unregistered]
        made = self.key_made or self.enrolled
        return [
            ClientKey(client=self.name, node_id=node, public_key=key, made=made, expires=expires, current=number == 0)
            for number, (node, key, expires) in enumerate(held)
        ]


class Registry(Records[EnrolledClient]):
    """The clients that were ever enrolled, in the folder of their files."""

    key, mode = "name", 0o644
    remedy = (
        ". Bring it back from a copy; without one, delete it and strike its node off by its id (fairbloom deploy "
        "status shows it, flwr supernode unregister does it)"
    )

    def clients(self) -> list[EnrolledClient]:
        """Return all in the order of names."""
        if not self.folder.is_dir():
            raise DeployError(
                f"{self.folder}, where the enrolled clients are, is not a folder: bring it back from a copy"
            )
        return self.read_all()

    def keys(self) -> list[ClientKey]:
        """Return the keys of all clients that are not revoked: current ones, and those that are being replaced."""
        return [key for client in self.clients() if not client.revoked for key in client.keys]

    def revoked_keys(self) -> list[str]:
        """Return the public keys that were valid once and never will be again."""
        found = []
        for client in self.clients():
            found += [client.public_key] * bool(client.revoked)
            found += [old.public_key for old in client.former if old.unregistered or client.revoked]
        return found

    def parse(self, name: str, said: dict[str, Any]) -> EnrolledClient:
        """Return the client that a file says."""
        former = tuple(build(FormerKey, one) for one in said.get("former", ()))
        client = build(EnrolledClient, {**said, "former": former})
        for number in client.node_ids:
            if not number.isdecimal():
                raise ValueError(f"{number!r} is not a node's number at the SuperLink")
        for moment in (client.enrolled, client.key_made, client.expires, *(old.expires for old in former)):
            if moment and datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(f"{moment} lacks a time zone")
        if client.name != name:
            raise ValueError(f"it is of a client {client.name!r}")
        return client


def check_name(clients: Sequence[EnrolledClient], name: str) -> None:
    """Raise DeployError where no new client may have a name: it is none, another one's, or differs in case alone."""
    if not NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {NAME_RULE}")
    for client in clients:
        if client.name == name and not client.revoked:
            raise DeployError(f"client {name!r} is enrolled already: revoke it first, or choose another name")
        if client.name != name and client.name.lower() == name.lower():
            state = "revoked" if client.revoked else "enrolled"
            raise DeployError(
                f"client {name!r} differs from client {client.name!r}, which is {state}, in case alone: "
                "choose another name"
            )


def check_key(clients: Sequence[EnrolledClient], name: str, public_key: bytes) -> None:
    """Raise DeployError where a client has, or has had, the key that is to be one's of this name."""
    for client in clients:
        if public_key.decode() in client.public_keys:
            owner = f"client {client.name!r}" + (", which is revoked" if client.revoked else "")
            raise DeployError(
                f"the request of {name}: {owner}, has had this key: make another on the device with "
                f"fairbloom client keys {name}"
            )
