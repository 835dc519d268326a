"""Certificates and keys: an authority of the federation's own, the SuperLink's certificate, the nodes' keys."""

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, SERVER_DAYS = 3650, 398
"""How long certificates hold; 398 days is the longest that strict TLS clients accept of a server."""

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names every SuperLink's certificate has: health checks and the operator's commands go by loopback."""

SKEW = timedelta(hours=1)
"""Certificates begin that much in the past, for devices whose clock is behind."""


@dataclass(frozen=True)
class KeyPair:
    """A node's keys, in OpenSSH format, as Flower wants them."""

    private: bytes
    public: bytes


def new_node_key() -> KeyPair:
    """Return a new key pair of a node, on the curve P-384."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(_as_openssh(key), public)


def make_authority(certificate: Path, key: Path, days: float = AUTHORITY_DAYS) -> None:
    """Write a new certificate authority: its certificate, and its key, which only the operator may read."""
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fairbloom federation CA")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identity = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    signed = (
        _begun(name, name, private.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identity, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), critical=False)
        .sign(private, hashes.SHA384())
    )
    write_private(key, _as_pem(private))
    write_public(certificate, signed.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(
    authority: Path, authority_key: Path, certificate: Path, key: Path, hosts: Sequence[str], days: float = SERVER_DAYS
) -> None:
    """Write the SuperLink's certificate, for all of `hosts` (names or addresses) and loopback, and its key."""
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    signer = serialization.load_pem_private_key(authority_key.read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{authority_key} is no elliptic-curve key")
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    identity = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    signer_identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    signed = (
        _begun(name, issuer.subject, private.public_key(), days)
        .add_extension(
            x509.SubjectAlternativeName([*map(_alternative, dict.fromkeys([*hosts, *LOCAL]))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identity, critical=False)
        .add_extension(signer_identity, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_private(key, _as_pem(private))
    write_public(certificate, signed.public_bytes(serialization.Encoding.PEM))


def days_left(certificate: Path) -> float:
    """Return how many days a certificate still holds; below 0 where it has expired."""
    end = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return (end - datetime.now(UTC)) / timedelta(days=1)


def hosts_of(certificate: Path) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable by its owner alone from the first byte on."""
    _write(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable by all."""
    _write(path, content, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made with mode 600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin = min(now, now + timedelta(days=days)) - SKEW
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(now + timedelta(days=days))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _as_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)


def _as_openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.OpenSSH, plain)
