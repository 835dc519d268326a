"""What our processes around Flower's share: words for what happened."""

import os
import socket
import sys
from typing import NoReturn


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def duration(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def leave(code: int) -> NoReturn:
    """End this process at once, whatever threads are left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
