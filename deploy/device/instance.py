"""Distinguishes a client that was started again from another one with a copy of its key."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from pathlib import Path

HEADER = "fairbloom-instance"
"""The header in which a node says which instance of its client it belongs to, when it connects."""

BOOT = Path("/proc/sys/kernel/random/boot_id")


class Instance:
    """Holds a client's key file as long as this process lives, so that no other process on this machine does meanwhile.

    The `name` is the same for all processes that have held this file since the machine was booted: each has seen its
    predecessor end. A process that finds the file held, or cannot tell, has another name.
    """

    def __init__(self, key: str) -> None:
        self.name = secrets.token_hex(16)
        try:
            self._file = os.open(key, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = os.fstat(self._file)
            place = f"{BOOT.read_text()} {about.st_dev} {about.st_ino}"
        except OSError:  # no key, held by another process, or a system without
            return
        self.name = hashlib.sha256(place.encode()).hexdigest()[:32]
