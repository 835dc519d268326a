"""Enrol clients: each gets a certificate, a bundle, and a file in the registry."""

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec

from fairbloom.errors import join_names
from fairbloom.system.files import make_folder, write_private, write_public
from fairbloom.system.lock import exclusive_lock
from fairbloom.text import text_if

from .. import pki
from ..errors import DeployError
from .federation import Federation
from .members import Member, timestamp

# The systemd unit of a client, which is in each bundle.
CLIENT_UNIT = Path(__file__).parents[1] / "edge" / "fairbloom-client.service"


def enroll(
    federation: Federation,
    name: str,
    *,
    partition: int | None = None,
    examples: int = 0,
    request: Path | None = None,
) -> Path:
    """Enrol one client; see `enroll_all`."""
    (bundle,) = enroll_all(
        federation, [name], partition=partition, examples=examples, request=request
    )
    return bundle


def enroll_all(
    federation: Federation,
    names: Iterable[str],
    *,
    partition: int | None = None,
    examples: int = 0,
    request: Path | None = None,
) -> Iterator[Path]:
    """Enrol clients, or replace keys of enrolled ones; yield the folder of each bundle.

    Without a request, the key is made here and only the bundle has it. With `partition` None, a
    client gets the first free partition; `examples` 0 means that their number is unknown. An
    enrolled client keeps both unless they are given. The registry is read once.
    """
    for option, number in (("--examples", examples), ("--partition-id", partition or 0)):
        if number < 0:
            raise DeployError(f"{option} {number}: it is counted from 0")
    with _registry_locked(federation):
        members = {member.name: member for member in federation.members()}
        taken = {member.partition for member in members.values() if not member.revoked}
        for name in names:
            if request is None:
                made = pki.make_key()
                public = made.public_key()
                secret = pki.format_key(made)
            else:
                public = _read_request(request, name)
                secret = b""
            digest = pki.digest_key(public)
            _check_free(federation, members.values(), name, digest)
            before = members.get(name)
            place = partition
            count = examples
            if before is not None and not before.revoked:
                count = examples or before.examples
                place = before.partition if place is None else place
            if place is None:
                place = min({*range(len(taken) + 1)} - taken)
            member = Member(
                name=name, partition=place, key=digest, examples=count, enrolled=timestamp()
            )
            bundle = _write_bundle(
                federation,
                member,
                pki.issue_device_certificate(*federation.authority, public, name),
                secret,
            )
            _write(federation, member)  # last: the server admits a client once it has this file
            members[name] = member
            taken.add(place)
            yield bundle


def revoke(federation: Federation, name: str) -> None:
    """Stop admitting a client. A running server ends its calls within two seconds."""
    with _registry_locked(federation):
        enrolled = {member.name: member for member in federation.enrolled()}
        if name not in enrolled:
            raise DeployError(
                f"client {name!r} is not enrolled; enrolled are:"
                f" {join_names(enrolled) if enrolled else 'none'}"
            )
        _write(federation, replace(enrolled[name], revoked=timestamp()))
        _remove_bundle(federation, name)


def describe_clients_beyond(members: Sequence[Member], clients: int) -> str:
    """Describe the enrolled clients with a partition of `clients` or more; "" without such."""
    beyond = [member for member in members if member.partition >= clients]
    if not beyond:
        return ""
    text = join_names(f"client {each.name} has partition {each.partition}" for each in beyond)
    highest = max(member.partition for member in beyond)
    text += f", but clients={clients} has only 0 to {clients - 1}: set clients={highest + 1}"
    free = set(range(clients)) - {member.partition for member in members}
    if free:
        text += f", or enrol it again with --partition-id {min(free)}"
    return text


def _read_request(request: Path, name: str) -> ec.EllipticCurvePublicKey:
    """Return the public key in the request of the device with this name."""
    try:
        key, asked = pki.read_request(request.read_text(), str(request))
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"--request {request} cannot be read: {error}") from None
    if asked != name:
        raise DeployError(
            f"--request {request} is of client {asked!r}, not {name!r}: was the file mixed up?"
        )
    return key


def _check_free(federation: Federation, members: Iterable[Member], name: str, digest: str) -> None:
    """Raise DeployError if a name is invalid, or another client has the name or the key."""
    if not pki.NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {pki.NAME_RULE}")
    if name.lower() in map(str.lower, pki.read_hosts(federation.identity[0])):
        raise DeployError(
            f"client {name!r} is called like a host of the server's certificate: choose another"
            " name"
        )
    from fairbloom.tables.cells import fold_value  # imported late: it needs NumPy

    for member in members:
        if member.name != name and fold_value(member.name) == fold_value(name):
            state = "revoked" if member.revoked else "enrolled"
            raise DeployError(
                f"client {name!r} differs from client {member.name!r}, which is {state}, only in"
                " spelling: choose another name"
            )
        if member.key == digest and (member.name != name or member.revoked):
            owner = f"client {member.name!r}" + text_if(member.revoked, ", which is revoked,")
            raise DeployError(
                f"the request of {name}: {owner} has had this key: make another on the device with"
                f" fairbloom client keys {name}"
            )


def _write_bundle(federation: Federation, member: Member, certificate: bytes, key: bytes) -> Path:
    """Write a device's bundle, replacing the previous one; return its folder."""
    bundle = _remove_bundle(federation, member.name)
    make_folder(bundle)
    about = {
        "server": federation.server,
        "partition-id": member.partition,
        "ca": "ca.crt",
        "certificate": "certificate",
        "key": "key",
        "state-dir": "state",
    }
    write_public(bundle / "ca.crt", federation.authority[0].read_bytes())
    write_public(bundle / "certificate", certificate)
    write_public(bundle / "client.toml", tomli_w.dumps(about).encode())
    write_public(bundle / CLIENT_UNIT.name, CLIENT_UNIT.read_bytes())
    if key:
        write_private(bundle / "key", key)
    return bundle


def _remove_bundle(federation: Federation, name: str) -> Path:
    bundle = federation.path / "bundles" / name
    if bundle.is_dir():
        shutil.rmtree(bundle)
    return bundle


def _write(federation: Federation, member: Member) -> None:
    written = tomli_w.dumps(asdict(member))
    write_public(federation.path / "clients" / f"{member.name}.toml", written.encode())


@contextlib.contextmanager
def _registry_locked(federation: Federation) -> Iterator[None]:
    """Keep other commands from changing the registry; raise DeployError for the block's OSError."""
    try:
        with exclusive_lock(federation.path / "clients" / ".lock", seconds=math.inf):
            yield
    except OSError as error:
        raise DeployError(
            f"{error.filename or federation.path}: {error.strerror or error}"
        ) from error
