"""The environment of all tests, and of the process that commands are forked from: to be imported
before all else."""

import os
import shutil
import sys
import tempfile

# before NumPy and PyTorch are imported: bits need it, and tests run side by side
os.environ["OMP_NUM_THREADS"] = "1"
# pytest-xdist sets one, readline both, and what is printed would have another width
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)
# Everyday tests mean the CPU: with a card, `device = auto` would take it, and forked commands
# cannot train. FAIRBLOOM_TEST_CUDA=1, or `pytest -m gpu`, lets the tests of the card run.
if "gpu" in sys.argv:
    os.environ.setdefault("FAIRBLOOM_TEST_CUDA", "1")  # for the processes of pytest-xdist, too
if not os.environ.get("FAIRBLOOM_TEST_CUDA"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# No test cuts the power: waiting for the disk, thousands of times, would protect nothing.
os.fsync = lambda file: None


def is_roomy(folder: str) -> bool:
    """Return whether a folder in memory takes all files of a run of tests, programs among them."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        memory > 15 << 30
        and os.access(folder, os.W_OK)
        and shutil.disk_usage(folder).free > 4 << 30
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    )


# To write, rename and remove files in memory takes a fifth of the time that it takes on a disk.
MEMORY = "/dev/shm"
if is_roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    tempfile.tempdir = MEMORY
