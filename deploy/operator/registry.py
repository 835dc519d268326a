"""The clients of a federation as its operator knows them: a file each."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..arguments import NAME, NAME_RULE
from ..errors import DeployError
from .records import Records, build


@dataclass(frozen=True, kw_only=True)
class EnrolledClient:
    """One client as the operator knows it.

    `enrolled` and `revoked` are moments, "" for never; `examples` is 0 where it was not given.
    """

    name: str
    node_id: str
    partition_id: int
    public_key: str
    enrolled: str
    revoked: str = ""
    examples: int = 0


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

    def enrolled(self) -> list[EnrolledClient]:
        """Return those that are not revoked."""
        return [client for client in self.clients() if not client.revoked]

    def parse(self, name: str, said: dict[str, Any]) -> EnrolledClient:
        """Return the client that a file says."""
        client = build(EnrolledClient, said)
        if not client.node_id.isdecimal():
            raise ValueError(f"{client.node_id!r} is not a node's number at the SuperLink")
        for moment in (client.enrolled, client.revoked):
            if moment and datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(f"{moment} lacks a time zone")
        if client.name != name:
            raise ValueError(f"it is of a client {client.name!r}")
        return client


def check_name(clients: Sequence[EnrolledClient], name: str) -> None:
    """Raise DeployError where no client may have a name: it is none, or differs from another one's in case alone."""
    if not NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {NAME_RULE}")
    for client in clients:
        if client.name != name and client.name.lower() == name.lower():
            state = "revoked" if client.revoked else "enrolled"
            raise DeployError(
                f"client {name!r} differs from client {client.name!r}, which is {state}, in case alone: "
                "choose another name"
            )


def check_key(clients: Sequence[EnrolledClient], name: str, public_key: bytes) -> None:
    """Raise DeployError where a client has, or has had, the key that is to be one's of this name."""
    for client in clients:
        if public_key.decode() == client.public_key:
            owner = f"client {client.name!r}" + (", which is revoked" if client.revoked else "")
            raise DeployError(
                f"the request of {name}: {owner}, has had this key: make another on the device with "
                f"fairbloom client keys {name}"
            )
