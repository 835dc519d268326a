"""The registry of a federation's clients: one file each, and lookup by certificate."""

import os
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509

from fairbloom.system.files import read_small

from .. import pki
from .faults import Faults
from .messages import node_id_of


@dataclass(frozen=True, kw_only=True)
class Member:
    """An enrolled client, from clients/NAME.toml.

    `key` is the SHA-256 (hex) of its public key in DER. `examples` is 0 if unknown. `enrolled` and
    `revoked` are times (ISO 8601), "" for never.
    """

    name: str
    partition: int
    key: str
    examples: int = 0
    enrolled: str = ""
    revoked: str = ""


class NotAdmittedError(Exception):
    """A caller that is not a member; the message has the remedy."""


class Members:
    """The members by name, from their files at the last `refresh`.

    `clock` gives the time in seconds since 1970, with which certificates' ends are compared.
    """

    def __init__(
        self, folder: Path, *, pin_keys: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self._pin_keys = pin_keys
        self._clock = clock
        self._faults = Faults()
        self._files: dict[str, tuple[tuple[int, int, int], Member]] = {}
        self.by_name: dict[str, Member] = {}
        # The members' names by node id.
        self.names: dict[int, str] = {}

    def refresh(self) -> None:
        """Read the files that have changed.

        A file that cannot be used keeps its client out and no other. It is logged once, and read
        again at the next refresh. Raise OSError if the folder cannot be read.
        """
        found = dict[str, tuple[tuple[int, int, int], Member]]()
        with os.scandir(self.folder) as entries:
            files = [entry for entry in entries if entry.name.endswith(".toml")]
        for entry in files:
            path = Path(entry.path)
            try:
                status = entry.stat()
                version = (status.st_mtime_ns, status.st_size, status.st_ino)
                known = self._files.get(entry.name)
                if known is None or known[0] != version:
                    known = version, read_member(path)
            except FileNotFoundError:  # removed meanwhile
                continue
            except (OSError, ValueError, TypeError, RecursionError, MemoryError) as error:
                self._faults.say(
                    entry.name,
                    f"{path} cannot be used ({error}): its client is not let in; enrol it again",
                )
                continue
            self._faults.clear(entry.name)
            found[entry.name] = known
        if found != self._files:
            self._files = found
            self.by_name = {member.name: member for _, member in found.values()}
            self.names = {node_id_of(name): name for name in self.by_name}

    def admit(self, certificate: bytes) -> Member:
        """Return the member with this certificate (PEM).

        Raise NotAdmittedError if it is unknown or revoked, or was enrolled with another key, or if
        the certificate has expired: TLS compares its end only when a connection begins.
        """
        caller = identity_in(certificate)
        name = caller.name
        member = self.by_name.get(name)
        remedy = f"ask the federation's operator to enrol it (fairbloom deploy enroll {name})"
        if member is None:
            raise NotAdmittedError(f"client {name!r} is not enrolled here: {remedy}")
        if member.revoked:
            raise NotAdmittedError(
                f"client {name!r} was revoked by the federation's operator: {remedy} again"
            )
        if self._pin_keys and member.key != caller.key:
            raise NotAdmittedError(
                f"client {name!r} is enrolled with another key: use the bundle of its last"
                f" enrolment, or {remedy} again"
            )
        if self._clock() > caller.end:
            raise NotAdmittedError(
                f"the certificate of client {name!r} expired on"
                f" {datetime.fromtimestamp(caller.end, UTC).date()}: {remedy} again"
            )
        return member


def read_member(file: Path) -> Member:
    """Read a client's file; raise OSError, ValueError or TypeError if it cannot be used."""
    values = tomllib.loads(read_small(file))
    for each in fields(Member):
        if each.name in values and type(values[each.name]) is not each.type:
            raise ValueError(f"{each.name} = {values[each.name]!r} is of another type")
    member = Member(**values)
    if member.name != file.stem:
        raise ValueError(f"it is of a client {member.name!r}")
    return member


def timestamp() -> str:
    """Return the time in the format of a client's file."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Identity:
    """What a certificate says: common name, SHA-256 (hex) of the key, and its end since 1970."""

    name: str
    key: str
    end: float


@lru_cache(maxsize=10_000)
def identity_in(certificate: bytes) -> Identity:
    """Return the identity in a certificate that TLS has verified."""
    loaded = x509.load_pem_x509_certificate(certificate)
    return Identity(
        pki.common_name(loaded.subject),
        pki.digest_key(loaded.public_key()),
        loaded.not_valid_after_utc.timestamp(),
    )
