"""What the system tells of running processes."""

import contextlib
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def pss(pid: int) -> float:
    """Return the memory of a process in MB, pages that it shares with others counted in parts; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) / 1000
    return 0.0
