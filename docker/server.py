"""The container of the server: it gives the volumes to RUN_AS, makes the federation, serves it, and enrols clients.

Whoever may write to the clients' volume is enrolled: these are the containers of this composition.
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

FEDERATION, CLIENTS, RUNS = Path("/federation"), Path("/clients"), Path("/runs")
LOOK_SECONDS = 0.5


def give_up_root(run_as: str) -> None:
    """Give the volumes to USER:GROUP, and go on as this user."""
    user, _, group = run_as.partition(":")
    for folder in (FEDERATION, CLIENTS, RUNS):
        os.chown(folder, int(user), int(group or user))
    os.setgroups([])
    os.setgid(int(group or user))
    os.setuid(int(user))
    os.umask(0o077)


def open_federation(hosts: list[str]) -> Federation:
    """Return the federation in the volume, made where the volume is empty; what is there is never deleted."""
    if any(FEDERATION.iterdir()):
        return Federation.read(FEDERATION)
    return Federation.init(FEDERATION, hosts, 9092)


def enroll_requests(federation: Federation) -> None:
    """Enrol each client that has written a request, and give it the files of its bundle; the key stays its own."""
    for request in sorted(CLIENTS.glob("client-*/*.request")):
        folder, name = request.parent, request.stem
        if not (folder / "client.toml").exists():
            number = int(name.removeprefix("client-"))
            bundle = enroll(federation, name, partition=number, request=request)
            for file in ("ca.crt", "certificate", "client.toml"):  # the last one says that all is there
                shutil.copy(bundle / file, folder / file)


def main() -> int:
    """Serve until SIGTERM; return how the server ended."""
    give_up_root(os.environ.get("RUN_AS") or "1000:1000")
    try:
        federation = open_federation(["server", *os.environ.get("HOSTS", "").split()])
    except FairbloomError as error:
        print(error, file=sys.stderr)
        return 2
    command = [sys.executable, "-P", "-m", "fairbloom.deploy.fleet.daemon", str(FEDERATION)]
    server = subprocess.Popen(command, cwd="/")  # noqa: S603 (this Python)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.terminate())
    while server.poll() is None:
        try:
            enroll_requests(federation)
        except (FairbloomError, ValueError, OSError) as error:
            print(f"a client cannot be enrolled: {error}", file=sys.stderr, flush=True)
        time.sleep(LOOK_SECONDS)
    return server.returncode


if __name__ == "__main__":
    sys.exit(main())
