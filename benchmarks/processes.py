"""What the system tells of running processes."""

import contextlib
from collections.abc import Iterator
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
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") / 1000


def peak_memory(pid: int) -> float:
    """Return the most memory that a process has had, in MB; 0 where it is gone."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmHWM:") / 1000


@contextlib.contextmanager
def grown_memory(pid: int) -> Iterator[list[float]]:
    """Give a list that holds, afterwards, by how many MB at most a process grew in the meantime."""
    status = Path(f"/proc/{pid}/status")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # from here on its peak is counted anew
    before, grown = _kilobytes(status, "VmRSS:"), list[float]()
    yield grown
    grown.append((_kilobytes(status, "VmHWM:") - before) / 1000)


def _kilobytes(file: Path, key: str) -> float:
    with contextlib.suppress(OSError):
        return sum(float(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(key))
    return 0.0
