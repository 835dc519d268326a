"""What a device gets from its operator: certificate, settings, systemd unit, and its key if that was made here.

The bundle lies in the federation's folder, as a .tar.gz or unpacked.
"""

import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from fairbloom.system.files import write_private, write_public

from .. import pki
from ..bundle import device_files
from ..errors import DeployError
from .federation import Federation, warn
from .registry import EnrolledClient


def _bundle_paths(federation: Federation, name: str) -> tuple[Path, Path]:
    """Return where a client's bundle is as a folder, and where as a .tar.gz."""
    return federation.path / "bundles" / name, federation.path / "bundles" / f"{name}.tar.gz"


def remove_bundle(federation: Federation, name: str, *, unpacked: bool = True) -> None:
    """Delete a client's bundle from the federation's folder, if it is there."""
    folder, packed = _bundle_paths(federation, name)
    packed.unlink(missing_ok=True)
    if unpacked and folder.is_dir():
        shutil.rmtree(folder)


def write_bundle(federation: Federation, client: EnrolledClient, keys: pki.KeyPair, unpack: bool) -> Path:
    """Write a client's bundle, packed or as a folder, into the federation's folder; return where it is."""
    if not (identity := make_identity(federation, client, keys.signing)):
        why = f"{federation.authority_key} is not here" if keys.signing else "its request has no key for these"
        warn(f"{client.name} cannot take part in private runs: {why}; fairbloom deploy rotate makes another bundle")
    about = (federation.superlink, federation.authority.read_bytes(), client.name, client.partition_id, identity)
    files = {name: (content, 0o644) for name, content in sorted(device_files(*about).items())}
    if keys.private:
        files["key"] = (keys.private, 0o600)
    folder, packed = _bundle_paths(federation, client.name)
    remove_bundle(federation, client.name)
    if not unpack:
        write_private(packed, _pack(client.name, files))
        return packed
    folder.mkdir()
    for name, (content, mode) in files.items():
        (write_private if mode == 0o600 else write_public)(folder / name, content)
    return folder


def make_identity(federation: Federation, client: EnrolledClient, signing: bytes) -> bytes:
    """Return a client's identity in private runs; b"" where it has no key for these, or the authority's is not here."""
    if not signing or not federation.authority_key.exists():
        return b""
    return pki.make_identity(federation.authority, federation.authority_key, client.name, client.expires, signing)


def export(federation: Federation, name: str) -> bytes:
    """Return a client's bundle as a .tar.gz; DeployError if the client, or its bundle, is not here."""
    with federation.audited("export", client=name):
        federation.find_client(name)
        folder, packed = _bundle_paths(federation, name)
        if packed.is_file():
            return packed.read_bytes()
        if folder.is_dir():
            files = {file.name: (file.read_bytes(), file.stat().st_mode & 0o777) for file in sorted(folder.iterdir())}
            return _pack(name, files)
        raise DeployError(
            f"the bundle of client {name!r} is gone from {folder.parent}: fairbloom deploy rotate {name} makes "
            "a new one"
        )


def holds_key(bundle: bytes) -> bool:
    """Return whether a bundle, packed, has a private key in it."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as packed:
        return any(name.endswith("/key") for name in packed.getnames())


def _pack(folder: str, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), mode
            bundle.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
