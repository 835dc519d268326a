"""Gives memory that is free inside this process back to the system; the C library keeps much of it otherwise."""

import ctypes
import time

TRIM_SECONDS = 5.0
"""Seconds between two times at which free memory is given back."""

MMAP_THRESHOLD, MMAP_BYTES = -3, 1 << 17
"""glibc's number for the size from which a block is mapped by itself and goes back when it is freed, and its default.
Left alone, glibc raises it with the largest block freed: the next buffers of TLS then lie on the heap and tear it."""


def keep_trimmed() -> None:
    """Give back, for ever, what a flood or a large model has left free; without glibc there is nothing to do."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return
    library.mallopt(MMAP_THRESHOLD, MMAP_BYTES)
    while True:
        time.sleep(TRIM_SECONDS)
        library.malloc_trim(0)
