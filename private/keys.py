"""Keys of clients: those of one round, the channels that follow from them, and long-term identities."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from .errors import RefusedError
from .packing import pack, unpack


def derive(secret: bytes, *info: bytes | str) -> bytes:
    """Return a key of 32 bytes for one use, which `info` names unambiguously."""
    label = pack(["fairbloom-private", *info])
    return HKDF(SHA256(), length=32, salt=None, info=label).derive(secret)


@dataclass(frozen=True)
class RoundKey:
    """An X25519 key of one round."""

    private: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "RoundKey":
        """Return a fresh key."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> bytes:
        """The public half."""
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def exchange(self, other: bytes) -> bytes:
        """Return the secret that is shared with the holder of another public key."""
        try:
            return X25519PrivateKey.from_private_bytes(self.private).exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:  # a key of low order has no secret
            raise RefusedError("a public key is not a usable key") from None


def seal(secret: bytes, context: bytes, sender: str, receiver: str, number: int, content: bytes) -> bytes:
    """Encrypt what one client sends to another; `number` counts its messages of a round."""
    key = derive(secret, context, "channel", sender, receiver)
    return ChaCha20Poly1305(key).encrypt(number.to_bytes(12, "little"), content, None)


def unseal(secret: bytes, context: bytes, sender: str, receiver: str, number: int, content: bytes) -> bytes:
    """Decrypt what `seal` has encrypted; RefusedError where it was changed."""
    key = derive(secret, context, "channel", sender, receiver)
    try:
        return ChaCha20Poly1305(key).decrypt(number.to_bytes(12, "little"), content, None)
    except InvalidTag:
        raise RefusedError(f"the shares of {sender} were changed on their way") from None


# Identities ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """What an authority states: that a name in a federation has this Ed25519 key until a time."""

    federation: str
    name: str
    key: bytes
    expires: str
    signature: bytes

    def fields(self) -> list[str | bytes]:
        """Return the fields in the order of the constructor."""
        return [self.federation, self.name, self.key, self.expires, self.signature]

    def statement(self) -> bytes:
        """Return the bytes that the authority signs."""
        return pack(["fairbloom-certificate", self.federation, self.name, self.key, self.expires])


def issue(authority: bytes, federation: str, name: str, key: bytes, expires: str) -> Certificate:
    """Return a certificate that is signed with an authority's private key; `expires` is a time in ISO format."""
    draft = Certificate(federation, name, key, expires, b"")
    return Certificate(federation, name, key, expires, sign(authority, draft.statement()))


@dataclass(frozen=True)
class Authority:
    """The authority of a federation, as its clients know it: its Ed25519 public key."""

    federation: str
    key: bytes

    def check(self, certificate: Certificate) -> None:
        """Raise RefusedError where a certificate is not of this federation, not of this authority, or expired."""
        if certificate.federation != self.federation:
            raise RefusedError(f"the certificate of {certificate.name} is of another federation")
        if not verify(self.key, certificate.signature, certificate.statement()):
            raise RefusedError(f"the certificate of {certificate.name} is not signed by the federation's authority")
        if certificate.expires and datetime.fromisoformat(certificate.expires) <= datetime.now(UTC):
            raise RefusedError(f"the certificate of {certificate.name} expired on {certificate.expires}")


@dataclass(frozen=True)
class Identity:
    """A client's long-term key and certificate."""

    private: bytes = field(repr=False)
    certificate: Certificate

    @property
    def name(self) -> str:
        """The client's name."""
        return self.certificate.name


def write_identity(certificate: Certificate, authority: Authority) -> bytes:
    """Return the content of a file, which is no secret, with a client's certificate and its authority's public key."""
    return pack({"authority": authority.key, "certificate": certificate.fields()})


def read_identity(content: bytes, private: bytes) -> tuple[Identity, Authority]:
    """Return what `write_identity` was given, with the client's private key; ValueError where that is another's."""
    found = unpack(content)
    certificate = Certificate(*found["certificate"])
    if certificate.key != public_key(private):
        raise ValueError("the certificate is of another key")
    return Identity(private, certificate), Authority(certificate.federation, found["authority"])


def key_of_elliptic(key: EllipticCurvePrivateKey, label: str) -> bytes:
    """Return the private Ed25519 key that follows from a key on the curve P-384, for one use."""
    return derive(key.private_numbers().private_value.to_bytes(48, "big"), label)


def key_of_device(content: bytes) -> bytes:
    """Return the private Ed25519 key that follows from a device's own one, in OpenSSH format; ValueError for others."""
    key = load_ssh_private_key(content, None)
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.key_size != 384:
        raise ValueError("the key is not on the curve P-384")
    return key_of_elliptic(key, "client of private rounds")


def new_signing_key() -> tuple[bytes, bytes]:
    """Return a fresh Ed25519 key: its private and its public half."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public half of an Ed25519 key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """Return the signature of a message."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


@lru_cache(maxsize=1 << 14)
def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a message was signed with the private half of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(*values: object) -> bytes:
    """Return the SHA-256 of values."""
    return hashlib.sha256(pack(list(values))).digest()
