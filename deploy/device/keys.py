"""A device's key, made on the device, and the request to enrol it."""

import os
from pathlib import Path

from fairbloom.system.files import write_public

from .. import pki
from ..errors import DeployError


def make(folder: Path, name: str) -> str:
    """Make a device's key, write `key` (for its owner alone) and `NAME.request` to a folder.

    Return the request.
    """
    if not pki.NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {pki.NAME_RULE}")
    made = pki.make_key()
    key = folder / "key"
    request = pki.write_request(made, name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # For its owner alone, and new: of two that try at once, one does.
        with open(key, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(pki.format_key(made))
        write_public(folder / f"{name}.request", request.encode())
    except FileExistsError:
        raise DeployError(
            f"{key} is there already, and a federation may know this device by it: delete it first,"
            " or name another folder by --out"
        ) from None
    except OSError as error:
        raise DeployError(f"{folder}: the key cannot be written there: {error.strerror}") from error
    return request
