"""Clients of the fleet port: each gets a key and a certificate, and a file in the registry."""

import tomllib
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fairbloom.system.files import make_folder, write_private, write_public, write_whole

from .. import pki
from ..arguments import NAME, NAME_RULE
from ..errors import DeployError
from .members import Member, member_of


def enroll(place: Path, name: str, partition: int, server: str) -> Path:
    """Enrol a client, or again with a new key; return its bundle. `server` is HOST:PORT for its client.toml."""
    if not NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {NAME_RULE}")
    if name in pki.read_hosts(place / "server.crt"):
        raise DeployError(f"client {name!r} is called like a host of the server's certificate: choose another name")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = pki.issue_device_certificate(place / "ca.crt", place / "ca.key", key.public_key(), name)
    digest = sha256(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    bundle = place / "bundles" / name
    make_folder(bundle)
    write_private(bundle / "key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_public(bundle / "certificate", certificate)
    write_public(bundle / "ca.crt", (place / "ca.crt").read_bytes())
    files = {"ca": "ca.crt", "key": "key", "certificate": "certificate", "state-dir": "state"}
    about = {"server": server, "name": name, "partition-id": partition, **files}
    write_public(bundle / "client.toml", tomli_w.dumps(about).encode())
    member = Member(name=name, partition=partition, key=digest, enrolled=datetime.now(UTC).isoformat())
    _write(place, member)  # last: the daemon lets in whom a file names
    return bundle


def revoke(place: Path, name: str) -> None:
    """Let a client in no longer; a daemon that runs ends the calls that it holds within two seconds."""
    file = place / "clients" / f"{name}.toml"
    try:
        said = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise DeployError(f"client {name!r} is not enrolled: there is no {file}") from None
    _write(place, member_of({**said, "revoked": datetime.now(UTC).isoformat()}))


def _write(place: Path, member: Member) -> None:
    make_folder(place / "clients")
    write_whole(place / "clients" / f"{member.name}.toml", tomli_w.dumps(asdict(member)).encode(), 0o644)
