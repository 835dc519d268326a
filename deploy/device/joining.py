"""A device that joins a federation: it makes its key, shows a token, and writes what a bundle would have held."""

import time
import tomllib
from pathlib import Path
from typing import Any

from fairbloom.system.files import write_public

from .. import pki
from ..arguments import NAME, NAME_RULE
from ..bundle import device_files
from ..errors import ClientError
from .client import ClientSettings
from .connectivity import connection_fault
from .keys import find_or_make
from .outage import Outage, say

ASK_SECONDS = 10.0
"""The pause before a device asks again whether it is approved, or a server that it could not reach."""


SAYS = ("superlink", "token", "name", "ca")
"""What the text of a token says; `name` is "" where the device chooses it."""


def read_token(file: Path) -> dict[str, str]:
    """Return what a token's file says; ClientError names the file and the remedy."""
    remedy = "save what fairbloom deploy token printed, whole"
    try:
        said = tomllib.loads(file.read_text())
        if not all(isinstance(said[key], str) for key in SAYS):
            raise ValueError("it holds something other than texts")
        return {key: said[key] for key in SAYS}
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise ClientError(f"{file} is not a join token: it lacks {error}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise ClientError(f"{file} is not a join token: {error}; {remedy}") from None


def join(file: Path, name: str, folder: Path | None) -> Path:
    """Have this device enrolled; return its client.toml. After a failure, the same call goes on.

    ClientError: the server refuses the device, or its files cannot be used.
    """
    token = read_token(file)
    name = name or token["name"]
    if not name:
        raise ClientError(f"{file} names no client: choose a name by --name, hospital-7 say")
    if not NAME.fullmatch(name):  # before it is a folder's
        raise ClientError(f"client {name!r}: {NAME_RULE}")
    folder = folder or Path(name)
    config = folder / "client.toml"
    if config.exists():
        raise ClientError(f"{config} is there already: start it by fairbloom client {config}, or give another --to")
    keys = find_or_make(folder, name)
    try:
        write_public(folder / "ca.crt", token["ca"].encode())
        settings = ClientSettings.of(
            {"superlink": token["superlink"], "ca": str(folder / "ca.crt"), "key": str(folder / "key"), "name": name}
        )
        answer = _ask(settings, token["token"], keys)
        files = device_files(token["superlink"], token["ca"].encode(), name, answer.partition_id, answer.identity)
        for each, content in files.items():  # client.toml last
            write_public(folder / each, content)
    except OSError as error:
        raise ClientError(f"{folder} cannot be written to: {error.strerror}; repeat the command") from error
    if not answer.identity:
        say(f"{name} cannot take part in private runs: the authority's key is not on the server")
    return config


def _ask(settings: ClientSettings, token: str, keys: pki.KeyPair) -> Any:
    """Return the server's answer once there is one."""
    from ..flower.device.fleet import Fleet, RefusedError

    outage, said = Outage(), False
    while True:
        if fault := connection_fault(settings):
            outage.fault(fault)
        else:
            fleet = Fleet(settings.superlink, settings.ca, settings.key, "", outage)
            try:
                answer = fleet.join(token, pki.write_request(keys, settings.name))
            except RefusedError as error:
                raise ClientError(f"the server refuses this device: {str(error).partition(': ')[2]}") from None
            finally:
                fleet.close()
            outage.end()
            if not answer.waits:
                return answer
            if not said:
                key = pki.fingerprint(keys.public)
                say(f"waiting until the operator lets in {settings.name} with key {key} (fairbloom deploy approve)")
            said = True
        time.sleep(ASK_SECONDS)
