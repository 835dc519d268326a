"""The order of the rows on a device: it follows from a secret that no server knows.

A server that knew which rows each step has could solve the rounds of a run for its rows.
"""

import math
from pathlib import Path
from secrets import token_bytes, token_hex

from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.retry import write_until

from ..states import explain_disk_errors, fingerprint_of

# The secret's file in a state folder; of a client without one, its record in Flower's context.
NAME = "order-secret"

# Bytes of a secret.
SIZE = 32


def secret_of(folder: Path, until: float = -math.inf) -> bytes:
    """Return the secret in a state folder, of SIZE bytes; it is made if needed.

    A write is tried again until the moment `until`; see `write_until`.
    """
    path = folder / NAME

    def make() -> None:
        make_folder(folder)
        write_private(path, token_bytes(SIZE))

    if not path.exists() or path.stat().st_size != SIZE:
        write_until(make, until, folder)
    return path.read_bytes()


def secret_order(settings: RunSettings, until: float) -> str:
    """Return the seed of the order by the secret in the state folder, which is made if needed.

    It is the same for the same settings of a run; without a state folder, it is a new one. For
    `until` see `secret_of`.
    """
    if not settings.state_dir:
        return token_hex()
    with explain_disk_errors("written to"):
        return f"{secret_of(Path(settings.state_dir), until).hex()} {fingerprint_of(settings)}"
