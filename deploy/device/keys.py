"""Make a device's key on the device, and the request to enrol it."""

import os
from pathlib import Path

from fairbloom.system.files import make_folder, write_public

from .. import pki
from ..errors import DeployError


def make(folder: Path, name: str) -> str:
    """Write a new key, `key`, and `NAME.request` to a folder; return the request.

    Only the key's owner can read it.
    """
    if not pki.NAME.fullmatch(name):
        raise DeployError(f"client {name!r}: {pki.NAME_RULE}")
    made = pki.make_key()
    key = folder / "key"
    request = pki.write_request(made, name)
    try:
        make_folder(folder)
        # "x": if two processes do this at once, one of them fails
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
