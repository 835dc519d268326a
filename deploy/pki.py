"""Certificates and keys of the federation's authority, the server and the devices."""

import contextlib
import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairbloom.system.files import write_private, write_public

from .errors import DeployError

# Days that certificates are valid. Strict TLS clients accept at most 398 days of a server.
AUTHORITY_DAYS = 3650
SERVER_DAYS = 398

# Names that are in every server certificate, for checks on the server itself.
LOCAL = ("localhost", "127.0.0.1", "::1")

# Certificates are valid from this time in the past, for devices with slow clocks.
SKEW = timedelta(hours=1)

# One part of a host name, between dots.
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)

# A client's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

# The remedy in errors about an invalid name.
NAME_RULE = "use up to 63 letters from A to Z, digits, dots, dashes and underscores"


def make_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key, on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def format_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the content of a private key's file (PEM, PKCS #8, not encrypted)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def digest_key(key: CertificatePublicKeyTypes) -> str:
    """Return the SHA-256 (hex) of a public key in DER."""
    return hashlib.sha256(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).hexdigest()


def write_request(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """Return a device's request for a certificate (PKCS #10, PEM)."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    request = builder.sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def read_request(text: str, source: str) -> tuple[ec.EllipticCurvePublicKey, str]:
    """Return the public key and the name in a request; raise DeployError, which names `source`."""
    remedy = "take the request that fairbloom client keys NAME printed on the device"
    if "PRIVATE KEY" in text:
        raise DeployError(
            f"{source} holds a private key, which has travelled and must be replaced: make a new"
            " one on the device with fairbloom client keys NAME, delete this file wherever it is,"
            " and bring the request that was printed"
        )
    try:
        request = x509.load_pem_x509_csr(text.encode())
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise DeployError(
            f"{source} is not a certificate request, or a damaged one ({error}): {remedy}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP256R1.name:
        raise DeployError(f"{source} asks for a key that is not on the curve P-256: {remedy}")
    if not signed:
        raise DeployError(f"{source} is not signed by the key that it asks for: {remedy}")
    return key, common_name(request.subject)


def common_name(subject: x509.Name) -> str:
    """Return the common name of a subject, "" unless it has exactly one."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def read_name(certificate: Path) -> str:
    """Return the common name in a certificate; raise DeployError if it cannot be read."""
    return common_name(_load_certificates(certificate)[0].subject)


def normalise_host(host: str, option: str = "--host") -> str:
    """Return a host in the form for certificates: bücher.example becomes xn--bcher-kva.example.

    Raise DeployError, which names the `option` of the host, if it is not one.
    """
    with contextlib.suppress(ValueError):
        if "%" not in host:
            return str(ipaddress.ip_address(host))
    try:
        name = host.encode("idna").decode()
        # Python's codec follows the rules of 2003. Names that it does not decode back, for example
        # with ß, have another form by today's rules.
        if not host.isascii() and name.encode().decode("idna").lower() != host.lower():
            raise DeployError(
                f"{option} {host!r} may be spelt in two ways on the wire: give it in its ASCII"
                " form, xn--..."
            )
    except UnicodeError:
        name = ""
    labels = name.split(".")
    if len(name) > 253 or labels[-1].isdigit() or not all(map(LABEL.fullmatch, labels)):
        raise DeployError(
            f"{option} {host!r}: give a name or an address without port, for example"
            " server.example.org"
        )
    return name


def make_authority(certificate: Path, key: Path, days: float = AUTHORITY_DAYS) -> None:
    """Write a new authority's certificate and its key, which only the operator can read."""
    made = make_key()
    extensions: dict[x509.ExtensionType, bool] = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        ): True,
    }
    write_private(key, format_key(made))
    write_public(
        certificate,
        _certify(made.public_key(), "Fairbloom federation CA", None, made, days, extensions),
    )


def make_server_certificate(
    authority: Path,
    authority_key: Path,
    certificate: Path,
    key: Path,
    hosts: Sequence[str],
    days: float = SERVER_DAYS,
) -> None:
    """Write the server's key and certificate, for `hosts` and loopback."""
    hosts = [normalise_host(host) for host in hosts]
    made = make_key()
    issuer, signer = _load_authority(authority, authority_key)
    names = list[x509.GeneralName]()
    for host in dict.fromkeys([*hosts, *LOCAL]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    extensions: dict[x509.ExtensionType, bool] = {
        x509.SubjectAlternativeName(names): False,
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]): False,
    }
    write_private(key, format_key(made))
    write_public(
        certificate, _certify(made.public_key(), hosts[0][:64], issuer, signer, days, extensions)
    )


def issue_device_certificate(
    authority: Path,
    authority_key: Path,
    key: ec.EllipticCurvePublicKey,
    name: str,
    days: float = AUTHORITY_DAYS,
) -> bytes:
    """Return a device's certificate (PEM), which is only for TLS clients, never for servers."""
    return _certify(
        key,
        name,
        *_load_authority(authority, authority_key),
        days,
        {
            x509.BasicConstraints(ca=False, path_length=None): True,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]): False,
        },
    )


def days_left(certificate: Path) -> float:
    """Return the number of days that all certificates in a file are valid, negative after that."""
    end = min(each.not_valid_after_utc for each in _load_certificates(certificate))
    return (end - datetime.now(UTC)) / timedelta(days=1)


def lifetime(certificate: Path) -> float:
    """Return the number of days that a certificate was made for."""
    loaded = _load_certificates(certificate)[0]
    return (loaded.not_valid_after_utc - loaded.not_valid_before_utc - SKEW) / timedelta(days=1)


def read_hosts(certificate: Path) -> list[str]:
    """Return the host names and addresses in a certificate."""
    loaded = _load_certificates(certificate)[0]
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _load_certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise DeployError(f"the certificate {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DeployError(f"{path} is not a certificate, or a damaged one: {error}") from None


def _load_authority(
    certificate: Path, key: Path
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    remedy = (
        "bring it back from your copy. Without one, no certificate can be made for this"
        " federation: make a new federation with fairbloom deploy init, and enrol its clients again"
    )
    try:
        issuers = _load_certificates(certificate)
    except DeployError as error:
        raise DeployError(f"{error}: {remedy}") from None
    try:
        signer = serialization.load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise DeployError(
            f"the authority's key {key} cannot be read: {error.strerror}: {remedy}"
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise DeployError(
            f"the authority's key {key} is not a private key, or a damaged one: {remedy}"
        ) from None
    for issuer in issuers:  # two while the authority is changed
        if (
            isinstance(signer, ec.EllipticCurvePrivateKey)
            and signer.public_key() == issuer.public_key()
        ):
            return issuer, signer
    raise DeployError(f"the authority's key {key} does not belong to {certificate}: {remedy}")


def _certify(
    key: ec.EllipticCurvePublicKey,
    name: str,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    days: float,
    extensions: Mapping[x509.ExtensionType, bool],
) -> bytes:
    """Return a certificate (PEM), signed by its issuer or, without one, by itself.

    `extensions` maps each extension to whether it is critical. The certificate expires no later
    than that of its issuer.
    """
    subject = _subject(name)
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    issuer_name = subject
    if issuer is not None:
        end = min(end, issuer.not_valid_after_utc)
        issuer_name = issuer.subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension, critical in extensions.items():
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
