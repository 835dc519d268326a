"""Gives memory that is free inside this process back to the system; the C library keeps much of it otherwise."""

import ctypes
import time


def keep_trimmed() -> None:
    """Give free memory back, forever, such as after a flood or a large model; only glibc needs it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return
    # M_MMAP_THRESHOLD, the size from which a block is mapped by itself and goes back when it is freed: its default.
    # glibc would raise it with the largest block freed, and the next buffers of TLS would fragment the heap.
    library.mallopt(-3, 1 << 17)
    while True:
        time.sleep(5.0)
        library.malloc_trim(0)
