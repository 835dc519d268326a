"""Submit a run with $SETTINGS to the federation, stream its log, exit with its status; then the others end too."""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

SIGNALS = Path("/signals")
PATIENCE_SECONDS = 40.0


def main() -> int:
    """Return the run's exit code."""
    signal.signal(signal.SIGTERM, stop)
    clients = len(os.environ["CLIENTS"].split())
    settings = [f"clients={clients}", *shlex.split(os.environ.get("SETTINGS", ""))]
    words = [word for setting in settings for word in ("--set", setting)]
    code = subprocess.call(["fairbloom", "deploy", "submit", "--app", "/app", *words])  # noqa: S603 (it checks them)
    if os.environ.get("STAY", "no") != "yes":
        end_all()
    return code


def stop(number: int, frame: object) -> None:
    """Stop the run before the clients leave: it would go on without them to the last."""
    subprocess.call(["fairbloom", "deploy", "stop"])
    sys.exit(128 + number)


def end_all() -> None:
    """Let server and clients end, and wait for them: each holds a lock while it runs."""
    (SIGNALS / "ended").touch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for name in ("running", "serving"):
        with (SIGNALS / name).open() as file:
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
