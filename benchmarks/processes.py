"""Memory and ids of running processes, and free ports for them."""

import atexit
import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

# Systems give higher ones to outgoing connections, which could take a port between its choice and
# its use.
PORTS = range(20_000, 32_768)


def free_port() -> int:
    """Return a free port of this machine, which is reserved until this process ends.

    No other call returns it, in this process or another: the UDP port of the same number is held as
    the claim.
    """
    while True:
        # tests seed the other generators, also in several processes with the same seed
        port = random.SystemRandom().choice(PORTS)
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), socket.socket() as listener:
            claim.bind(("127.0.0.1", port))
            listener.bind(("127.0.0.1", port))
            atexit.register(claim.close)
            return port
        claim.close()


def family(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def pss(pid: int) -> float:
    """Return a process's memory in MB, counting shared pages in part; 0 if it has ended."""
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") / 1000


def resident_memory(pid: int) -> float:
    """Return a process's memory in MB; 0 if it has ended."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS:") / 1000


def peak_memory(pid: int) -> float:
    """Return a process's peak memory in MB; 0 if it has ended."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmHWM:") / 1000


@contextlib.contextmanager
def grown_memory(pid: int) -> Iterator[list[float]]:
    """Give a list that holds, after the block, the growth of a process's peak memory in MB."""
    status = Path(f"/proc/{pid}/status")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak
    before = _kilobytes(status, "VmRSS:")
    grown = list[float]()
    yield grown
    grown.append((_kilobytes(status, "VmHWM:") - before) / 1000)


def _kilobytes(file: Path, key: str) -> float:
    with contextlib.suppress(OSError):
        return sum(
            float(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(key)
        )
    return 0.0
