"""Print the lock file that pins a PyTorch requirement, or else the requirement itself, for pip.

In a fresh environment, what PyTorch needs comes from the other lock file, and first:

pip install --no-deps --requirement requirements.lock
python locks/pytorch.py torch==2.13.0+cpu > torch.txt
pip install --requirement torch.txt --extra-index-url https://download.pytorch.org/whl/cpu

Without a requirement, print the lock file of the registry's build; on Linux without an NVIDIA
driver, that of the CPU build if pip can get it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

# The registry's build, with CUDA on Linux, and the CPU build.
LOCKS = ("torch.lock", "torch-cpu.lock")


def find_lock(requirement: str) -> str:
    """Return the lock file that pins this requirement, or the requirement with a warning."""
    for name in LOCKS:
        lock = read(name)
        if f"\n{requirement} \\\n" in lock:
            return lock
    print(
        f"{requirement} is in no lock file: pip takes it and its dependencies without checking"
        " hashes",
        file=sys.stderr,
    )
    return f"{requirement}\n"


def choose_lock() -> str:
    """Return the lock file for this machine; print a line on stderr if it is the CPU build's."""
    cpu = re.findall(r"^torch==(\S+)", read("torch-cpu.lock"), re.MULTILINE)[0]
    if sys.platform != "linux" or shutil.which("nvidia-smi") or not can_get(cpu):
        return read("torch.lock")
    print(
        f"No NVIDIA driver here: taking PyTorch's CPU build, torch {cpu}; TORCH chooses another.",
        file=sys.stderr,
    )
    return read("torch-cpu.lock")


def can_get(version: str) -> bool:
    """Return whether pip finds this version of PyTorch in its indexes."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (this Python)
    return version in re.split(r"[\s,]+", done.stdout)


def read(name: str) -> str:
    """Return the text of a lock file."""
    return (Path(__file__).parent / name).read_text()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(find_lock(sys.argv[1]), end="")
    else:
        print(choose_lock(), end="")
