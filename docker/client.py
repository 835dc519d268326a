"""A client's container: it takes the first free folder of the volume and runs the client there.

A restarted container finds its folder free and continues as the same client.
"""

import itertools
import os
import sys
import time
from pathlib import Path

from fairbloom.deploy.device.keys import make
from fairbloom.system.lock import open_locked

CLIENTS = Path("/clients")
BUNDLE_POLL_SECONDS = 0.5


def take_folder() -> Path:
    """Return the first folder that no other container holds, and lock it for this process."""
    for number in itertools.count():
        folder = CLIENTS / f"client-{number}"
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = open_locked(folder / "taken", mode=0o600)
        except BlockingIOError:
            continue
        # the client, which replaces this process, must keep the lock
        os.set_inheritable(lock, True)
        return folder
    raise AssertionError("numbers do not end")


def main() -> None:
    """Request enrolment unless that was done before, wait for it, and become the client."""
    os.umask(0o077)
    folder = take_folder()
    if not (folder / "key").exists():
        # a rehearsal with public data: the order of rows is that of one process
        (folder / "owner.toml").write_text('[limits]\norder = "run"\n')
        make(folder, folder.name)
    while not (folder / "client.toml").exists():
        time.sleep(BUNDLE_POLL_SECONDS)
    words = ["client", str(folder / "client.toml"), *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "fairbloom.deploy", *words])  # noqa: S606 (this Python)


if __name__ == "__main__":
    main()
