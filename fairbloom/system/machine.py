"""The processor cores and the memory of this machine that a process may use, and its allocator."""

import contextlib
import ctypes
import os
from collections.abc import Mapping
from pathlib import Path


def processors_here() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def half_of_memory(root: Path = Path("/")) -> int:
    """Return half of the memory, in bytes, of the machine or of this process's service.

    `root` is the folder of the system's files.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # without cgroups of version 2, or without a limit ("max"), the machine's memory counts
    with contextlib.suppress(OSError, ValueError):
        group = (root / "proc/self/cgroup").read_text().strip().rpartition("::")[2]
        limit = root / "sys/fs/cgroup" / group.strip("/") / "memory.max"
        memory = min(memory, int(limit.read_text()))
    return memory // 2


def tune_allocator(options: Mapping[int, int]) -> None:
    """Set parameters of glibc's mallopt for this process, by their numbers."""
    with contextlib.suppress(AttributeError):  # other libraries have no mallopt
        for option, value in options.items():
            ctypes.CDLL(None).mallopt(option, value)
