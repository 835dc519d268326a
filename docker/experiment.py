"""A run's container: it checks SETTINGS, submits and follows, and exits with its status."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

from fairbloom.deploy.fleet.federation import Federation, read_now
from fairbloom.deploy.fleet.runs import submit
from fairbloom.deploy.operator import submit as runs
from fairbloom.errors import FairbloomError
from fairbloom.logs import print_lines
from fairbloom.protocol.settings import parse_assignments
from fairbloom.server.progress import find_announced
from fairbloom.server.run_folder.files import CLIENTS, SCORES
from fairbloom.server.settings import Settings

FEDERATION = Path("/federation")

# Pause in seconds between two looks at the clients online.
ONLINE_POLL_SECONDS = 0.5

# A run starts once no client has connected for this number of seconds; for longer if fewer are
# online than containers were started, as a busy machine starts them one after the other.
SETTLED_SECONDS = 3.0
INCOMPLETE_SECONDS = 30.0

# Most seconds to wait for clients.
LONGEST_SECONDS = 120.0


def wait_for_clients() -> tuple[Federation, int]:
    """Wait until clients are online and no more connect; return federation and their number."""
    containers = int(os.environ.get("CLIENTS") or 0)
    number = 0
    since = time.monotonic()
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        time.sleep(ONLINE_POLL_SECONDS)
        try:
            federation = Federation.read(FEDERATION)
        except FairbloomError:  # the server is still creating it
            continue
        online = len(read_now(federation).online) if federation.is_served else 0
        if online != number:
            number = online
            since = time.monotonic()
            continue
        settled = SETTLED_SECONDS if number >= containers else INCOMPLETE_SECONDS
        if number and time.monotonic() - since >= settled:
            return federation, number
    raise FairbloomError(
        f"after {LONGEST_SECONDS:.0f} s no client is online: see docker compose logs server client"
    )


def show(folder: Path) -> None:
    """Print each client's last score of the global model."""
    column = SCORES.read(folder)[0].column()
    last = {row["client"]: row[column] for row in CLIENTS.read(folder) if row[column]}
    for name, value in last.items():
        print_lines(f"{name}: {column} {float(value):.4g}")


def main() -> int:
    """Submit and follow one run; return its exit status."""
    words = shlex.split(os.environ.get("SETTINGS") or "method=fedfv num-rounds=5")
    try:
        given = parse_assignments(words)
        Settings.of(given).check_deployed()
        federation, online = wait_for_clients()
        run = submit(federation.runs, runs.OURS.order(federation, {"clients": online, **given}))
    except FairbloomError as error:
        print_lines(f"SETTINGS: {error}", to=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):  # they stop this run, but no other
        signal.signal(number, lambda number, frame: run.stop())
    status = runs.follow(federation, run)
    print_lines(f"run {run.number}: {runs.describe_end(status)}")
    folder = find_announced(run.folder)
    if status == 0 and folder is not None:
        show(folder)
        print_lines(f"{folder.relative_to('/')} has all of it")
    print_lines("another run: docker compose run --rm experiment; the end: docker compose down")
    return status


if __name__ == "__main__":
    sys.exit(main())
