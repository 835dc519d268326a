"""Shared by a federation's processes: their memory, load an app, split an address, durations."""

import gc
import pkgutil
import re
from functools import cache
from typing import TypeVar

App = TypeVar("App")

# glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX: it keeps freed chunks of content for
# the next ones, in one heap for all threads. Otherwise most chunks get new pages from the system,
# which cost a third of the server's time. What is free at the heap's end beyond 16 MB goes back.
ONE_HEAP = {-3: 4 << 20, -1: 16 << 20, -8: 1}

# Only the first call has an effect. To ask whether there was one takes 30 ms in a worker:
# gc.get_freeze_count counts all objects that are frozen.
freeze_once = cache(gc.freeze)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and port of HOST:PORT, an IPv6 address without its brackets.

    Raise ValueError for anything else.
    """
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"{address!r}: write it as HOST:PORT, for example example.org:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def duration(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def load_app(app: str, kind: type[App], of: str) -> App:
    """Import an app of this kind by its import string, module:attribute.

    `of` is the owner of the app in the error: "this client", or "this run". Raise ImportError if
    the app is missing or is of another type.
    """
    try:
        found = pkgutil.resolve_name(app)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"app = {app!r} of {of} cannot be loaded: {error}") from error
    if not isinstance(found, kind):
        raise ImportError(
            f"app = {app!r} of {of} is of type {type(found).__name__}, not {kind.__name__}"
        )
    return found


def free_cycles() -> None:
    """Free what only refers to itself; after the first time, this only looks at newer objects.

    Flower's RecordDict refers to itself once its `array_records` are used. Python's collector would
    keep many models alive, as it counts objects, not bytes.
    """
    gc.collect()
    freeze_once()
