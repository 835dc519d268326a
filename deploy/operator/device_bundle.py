"""What a device gets from its operator: certificate, settings, systemd unit, and its key if that was made here.

The bundle is a folder in the federation's folder.
"""

import shutil
from pathlib import Path

from fairbloom.system.files import write_private, write_public

from .. import pki
from ..bundle import device_files
from .federation import Federation
from .registry import EnrolledClient


def remove_bundle(federation: Federation, name: str) -> Path:
    """Delete a client's bundle from the federation's folder, if it is there; return where it was."""
    folder = federation.path / "bundles" / name
    if folder.is_dir():
        shutil.rmtree(folder)
    return folder


def write_bundle(federation: Federation, client: EnrolledClient, keys: pki.KeyPair) -> Path:
    """Write a client's bundle into the federation's folder, in place of the one before; return where it is."""
    folder = remove_bundle(federation, client.name)
    folder.mkdir()
    about = (federation.superlink, federation.authority.read_bytes(), client.name, client.partition_id)
    for name, content in sorted(device_files(*about).items()):
        write_public(folder / name, content)
    if keys.private:
        write_private(folder / "key", keys.private)
    return folder
