"""A device on the fleet port: its settings, and the loop that connects it again."""

from __future__ import annotations

import json
import logging
import os
import signal
import ssl
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fairbloom.errors import FairbloomError
from fairbloom.system.files import make_folder
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.supervise import STOPPING

from ..device.client import ClientSettings
from ..device.connectivity import connection_fault
from ..device.contexts import Contexts
from ..device.outage import Outage, say
from ..errors import ClientError
from ..flower.device.worker import Worker
from .calls import Calls, RefusedError
from .session import KeptReply, Session, load_session

AGAIN_SECONDS = 15.0
"""Pause until a client that the server has refused asks again."""


@dataclass(frozen=True, kw_only=True)
class FleetClient(ClientSettings):
    """Settings of one client; `certificate` is the file of the certificate for its key."""

    certificate: str

    def credentials(self) -> grpc.ChannelCredentials:
        """Return how this client shows who it is; ClientError where a file cannot be used."""
        try:
            ssl.create_default_context(cafile=self.ca).load_cert_chain(self.certificate, self.key)
            parts = (Path(self.ca), Path(self.key), Path(self.certificate))
            return grpc.ssl_channel_credentials(*(file.read_bytes() for file in parts))
        except OSError as error:  # ssl.SSLError is one
            words = "is not the key of" if isinstance(error, ssl.SSLError) else "cannot be read with"
            raise ClientError(
                f"key = {self.key} {words} certificate = {self.certificate} ({error.strerror or error}): take both "
                "from the bundle of this client's last enrolment"
            ) from error

    def worker(self, pipe: int) -> list[str]:
        """Return the command by which this process runs the worker, which is not told where the key is."""
        about: dict[str, Any] = {"app": self.app, "allow": self.allow, "limits": dict(self.limits), "node": self.node()}
        code = f"from fairbloom.deploy.fleet.app_process import main; main({os.getpid()})"
        return [sys.executable, "-P", "-c", code, str(pipe), json.dumps(about)]


def read_settings(file: Path) -> FleetClient:
    """Return the settings in a client.toml; relative paths begin at its folder. ClientError where they are none."""
    try:
        said = tomllib.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ClientError(f"{file} cannot be read: {error}") from error
    said["superlink"] = said.pop("server", "")
    for key in ("ca", "key", "certificate", "data-dir", "state-dir"):
        if said.get(key):
            said[key] = str(file.absolute().parent / said[key])
    said["allow"] = tuple(said.get("allow", ()))
    try:
        return FleetClient(**{key.replace("-", "_"): value for key, value in said.items()})
    except TypeError as error:
        raise ClientError(f"{file}: {error}") from error


def run(client: FleetClient) -> None:
    """Keep a client connected until SIGTERM or SIGINT."""
    worker, contexts, outage = Worker(client), Contexts(client.state_dir), Outage()
    kept, session = KeptReply(client.state_dir), load_session(client.state_dir)
    credentials = client.credentials()
    try:
        while True:
            calls = Calls(client.superlink, credentials, session, outage, lambda: connection_fault(client))
            try:
                Session(client.name, calls, worker, contexts, kept).serve()
            except RefusedError as error:
                outage.fault(str(error))
            finally:
                calls.close()
            time.sleep(AGAIN_SECONDS)
    finally:
        worker.end()


def main() -> int:
    """Run the client whose client.toml is named; what it writes is for its own account alone."""
    os.umask(0o077)
    logging.basicConfig(format="fairbloom client: %(message)s", level=logging.INFO)
    for number in STOPPING:
        signal.signal(number, lambda number, frame: sys.exit(0))
    try:
        client = read_settings(Path(sys.argv[1]))
        if not client.state_dir:
            run(client)
        make_folder(Path(client.state_dir))
        with exclusive_lock(Path(client.state_dir, "lock")):
            run(client)
    except FairbloomError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
