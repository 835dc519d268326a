"""What a device keeps of its rows: digests under a secret of its own, in one folder of its state.

The folder has the letters that have left (`deploy.device.profile`) and the sides of rows
(`tasks.sides`). Each file begins with a check of the secret: under another one, no row is known.
"""

import math
from pathlib import Path
from secrets import token_bytes

from blake3 import blake3

from fairbloom.errors import ReportableError

from .files import make_folder, write_private
from .retry import write_until
from .versions import read_sealed, write_sealed

# The folder in a state folder.
FOLDER = "profiles"

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


def write_kept(path: Path, content: bytes, secret: bytes) -> None:
    """Write what is kept of rows into a sealed file."""
    make_folder(path.parent)
    write_sealed(path, b"\n".join([_check_of(secret), content]), b"")


def read_kept(path: Path, secret: bytes, loss: str) -> bytes:
    """Return what `write_kept` wrote, b"" if there is no such file.

    Raise ReportableError, which says what the `loss` means, if it is damaged or of another secret.
    """
    if not path.exists():
        return b""
    head, _ = read_sealed(path, loss)
    check, _, content = head.partition(b"\n")
    if check != _check_of(secret):
        fault = f"is damaged, or of another {NAME}: {loss}"
        raise ReportableError(f"{path} {fault}", f"a file in its state-dir {fault}")
    return content


def _check_of(secret: bytes) -> bytes:
    return blake3(b"profiles", key=secret).hexdigest().encode()
