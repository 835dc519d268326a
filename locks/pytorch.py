"""Print what pip is to install for a PyTorch requirement: the lock file that has it, or else the requirement itself.

python locks/pytorch.py torch==2.13.0+cpu > torch.txt && pip install --requirement torch.txt
"""

import sys
from pathlib import Path

LOCKS = ("torch.lock", "torch-cpu.lock")
"""The registry's build, with CUDA on Linux, and the CPU build."""


def wanted(requirement: str) -> str:
    """Return the lines of the lock file that pins this requirement, or the requirement with a word on stderr."""
    for name in LOCKS:
        lock = (Path(__file__).parent / name).read_text()
        if f"\n{requirement} \\\n" in lock:
            return lock
    print(
        f"{requirement} is in no lock file: pip takes it, and what it needs, without checking hashes", file=sys.stderr
    )
    return f"{requirement}\n"


if __name__ == "__main__":
    print(wanted(sys.argv[1]), end="")
