"""The server's container: it creates the federation, serves it, and enrols clients.

Every container that can write to the clients' volume is enrolled: those of this composition.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.errors import FairbloomError
from fairbloom.logs import print_lines

FEDERATION = Path("/federation")
CLIENTS = Path("/clients")
REQUESTS_POLL_SECONDS = 0.5


def open_federation(hosts: list[str]) -> Federation:
    """Return the federation in the volume; create one if the volume is empty."""
    if any(FEDERATION.iterdir()):
        return Federation.read(FEDERATION)
    return Federation.init(FEDERATION, hosts, 9092)


def enroll_requests(federation: Federation) -> None:
    """Enrol each client that has written a request, and copy the bundle's files to its folder."""
    for request in sorted(CLIENTS.glob("client-*/*.request")):
        folder = request.parent
        name = request.stem
        if not (folder / "client.toml").exists():
            bundle = enroll(
                federation, name, partition=int(name.removeprefix("client-")), request=request
            )
            # client.toml last: the client's container waits for it
            for file in ("ca.crt", "certificate", "client.toml"):
                shutil.copy(bundle / file, folder / file)


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the server's exit code."""
    os.umask(0o077)
    try:
        federation = open_federation(["server", *os.environ.get("HOSTS", "").split()])
    except FairbloomError as error:
        print_lines(str(error), to=sys.stderr)
        return 2
    server = subprocess.Popen(  # noqa: S603 (this Python)
        [sys.executable, "-P", "-m", "fairbloom.deploy.fleet.daemon", str(FEDERATION)], cwd="/"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.terminate())
    while server.poll() is None:
        try:
            enroll_requests(federation)
        except (FairbloomError, ValueError, OSError) as error:
            print_lines(f"a client cannot be enrolled: {error}", to=sys.stderr)
        time.sleep(REQUESTS_POLL_SECONDS)
    return server.returncode


if __name__ == "__main__":
    sys.exit(main())
