"""The registry of a federation's clients: one file each, and lookup by certificate."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from cryptography import x509

from fairbloom.logs import log

from .. import pki
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
    """The members by name, from their files at the last `look`."""

    def __init__(self, folder: Path, *, pin_keys: bool = True) -> None:
        self.folder = folder
        self._pin_keys = pin_keys
        self._files: dict[str, tuple[tuple[int, int, int], Member]] = {}
        self.by_name: dict[str, Member] = {}
        self.names: dict[int, str] = {}
        """The members' names by node id."""

    def look(self) -> set[str]:
        """Read the files that have changed; return the names of new, changed and missing members.

        A file that cannot be used is logged, and its client is not a member. Raise OSError if the
        folder cannot be read.
        """
        before = self.by_name
        found = dict[str, tuple[tuple[int, int, int], Member]]()
        with os.scandir(self.folder) as entries:
            files = [entry for entry in entries if entry.name.endswith(".toml")]
        for entry in files:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._files.get(entry.name)
            if known is not None and known[0] == version:
                found[entry.name] = known
            elif (member := self._read(Path(entry.path))) is not None:
                found[entry.name] = version, member
        if found == self._files:
            return set()
        self._files = found
        self.by_name = {member.name: member for _, member in found.values()}
        self.names = {node_id_of(name): name for name in self.by_name}
        return {
            name for name in {*before, *self.by_name} if before.get(name) != self.by_name.get(name)
        }

    def admit(self, certificate: bytes) -> Member:
        """Return the member with this certificate (PEM).

        Raise NotAdmittedError if it is unknown or revoked, or was enrolled with another key.
        """
        name, key = identity_in(certificate)
        member = self.by_name.get(name)
        remedy = f"ask the federation's operator to enrol it (fairbloom deploy enroll {name})"
        if member is None:
            raise NotAdmittedError(f"client {name!r} is not enrolled here: {remedy}")
        if member.revoked:
            raise NotAdmittedError(
                f"client {name!r} was revoked by the federation's operator: {remedy} again"
            )
        if self._pin_keys and member.key != key:
            raise NotAdmittedError(
                f"client {name!r} is enrolled with another key: use the bundle of its last"
                f" enrolment, or {remedy} again"
            )
        return member

    def _read(self, file: Path) -> Member | None:
        try:
            values = tomllib.loads(file.read_text())
            for each in fields(Member):
                kind = int if each.name in ("partition", "examples") else str
                if each.name in values and type(values[each.name]) is not kind:
                    raise ValueError(f"{each.name} = {values[each.name]!r} is of another type")
            member = Member(**values)
            if member.name != file.stem:
                raise ValueError(f"it is of a client {member.name!r}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            log.error(
                "%s cannot be used (%s): its client is not let in; enrol it again", file, error
            )
            return None
        return member


@lru_cache(maxsize=10_000)
def identity_in(certificate: bytes) -> tuple[str, str]:
    """Return the common name and the key's digest of a certificate that TLS has verified."""
    loaded = x509.load_pem_x509_certificate(certificate)
    return pki.common_name(loaded.subject), pki.digest_key(loaded.public_key())
