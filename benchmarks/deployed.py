"""A deployed round of warm clients over mutual TLS, on loopback.

Prints the seconds and CPU-seconds of a round, and the memory of each kind of process: when it is
idle, and what its peak adds (RSS: mapped content counts in each process that reads it). The load of
the machine at the start is printed, because other work on the same cores slows a round down.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from .deployment import Deployment, federation, names, rounds
from .processes import peak_memory, resident_memory
from .tables import Row, parser_of, print_machine, print_table

TICKS = os.sysconf("SC_CLK_TCK")
LARGE = Path(__file__).parent / "large"
"""An app that sends a model of `floats` numbers back and forth."""


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--floats", type=int, help="send a model of this many floats back and forth instead"
    )
    parser.add_argument("--wire-dtype", choices=("float32", "bfloat16"), default="float32")
    chosen = parser.parse_args()
    print_machine()
    model = f"{chosen.floats / 1e6:.1f} M floats" if chosen.floats else "logistic 64-10"
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        federation(Path(scratch, "home"), chosen.clients) as there,
    ):
        # A copy, because files in an editable checkout count as installed with it.
        copy = shutil.copytree(LARGE, f"{scratch}/large")
        before = os.environ.get("PYTHONPATH", "")
        there.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (copy, before)))
        options = ("--app", "large:client") if chosen.floats else ()
        for name in names(chosen.clients):
            there.start_client(name, *options)
        there.wait_for_clients(*names(chosen.clients), seconds=60.0 + 10.0 * chosen.clients)
        settings = {
            "num-rounds": chosen.rounds + 1,
            "wire-dtype": chosen.wire_dtype,
            "out": f"{scratch}/out",
        }
        if chosen.floats:
            run = there.submitting({**settings, "floats": chosen.floats}, LARGE)
            out = Path(scratch, "out")
            row = measure(there, run, partial(seconds_of_app, out))
            rows.append({**row, "run idle MB": json.loads(out.read_text())["idle"]})
        else:
            plain = {**settings, "clients": chosen.clients, "fraction": 1.0, "device": "cpu"}
            for what, every in (("train", 0), ("train + evaluate", 1)):
                out = Path(scratch, f"out-{every}")
                run = there.submitting({**plain, "evaluate-every": every, "out": str(out)})
                rows.append({"a round": what, **measure(there, run, partial(seconds_of_run, out))})
    print_table(f"{chosen.clients} clients, {model}, mutual TLS", rows, as_csv=chosen.csv)


def measure(
    there: Deployment, run: subprocess.Popen[bytes], finished: Callable[[], list[float]]
) -> Row:
    """Watch a run until it ends, and return the cost of a round.

    `finished` returns the seconds of the rounds that are finished.
    """
    cpu: list[tuple[float, ...]] = []
    memory: dict[str, dict[int, float]] = {}
    idle = {pid: resident_memory(pid) for family in families(there) for pid in family}
    over = False
    while not over:
        over = run.poll() is not None  # then this is the last reading
        for kind, pids in kinds(there).items():
            peaks = memory.setdefault(f"{kind} MB", {})
            peaks |= {pid: peak for pid in pids if (peak := peak_memory(pid))}
        while len(cpu) <= len(finished()):
            cpu.append(tuple(sum(map(cpu_seconds, family)) for family in families(there)))
        time.sleep(0.2)
    there.wait_for_end(run)
    # Round 1 loads data and libraries; the last round of a run that only trains evaluates.
    clients, server = [
        f"{(last - first) / (len(cpu) - 3):.2f}"
        for first, last in zip(cpu[1], cpu[-2], strict=True)
    ]
    return {
        "seconds": f"{statistics.median(finished()[1:-1]):.2f}",
        "CPU-s clients": clients,
        "CPU-s server": server,
        **{kind: most_memory(idle, peaks) for kind, peaks in memory.items()},
    }


def kinds(there: Deployment) -> dict[str, list[int]]:
    """Return the process ids of each kind of process."""
    runs = there.run_processes()
    sessions = [client.pid for client in there.clients.values()]
    workers = [pid for client in there.clients.values() for pid in there.offspring(client)]
    return {"daemon": [there.server.pid], "run": runs, "session": sessions, "worker": workers}


def most_memory(idle: Mapping[int, float], peaks: Mapping[int, float]) -> str:
    """Return what the largest process of a kind has when idle, and what its peak adds."""
    pid = max(peaks, key=peaks.__getitem__)
    before = idle.get(pid, 0.0)  # runs and workers are started later
    return f"{before:.0f} + {peaks[pid] - before:.0f}"


def seconds_of_run(out: Path) -> list[float]:
    """Return the seconds of each finished round; raise RuntimeError if a reply is missing."""
    rows = rounds(out)
    if any(row["missing"] or row["refused"] for row in rows):
        raise RuntimeError("replies are missing or refused")
    return [float(row["seconds"]) for row in rows]


def seconds_of_app(out: Path) -> list[float]:
    """Return the seconds of the rounds that the app has recorded."""
    with contextlib.suppress(OSError, ValueError):  # no file yet, or it is being written
        return [float(seconds) for seconds in json.loads(out.read_text())["seconds"]]
    return []


def families(there: Deployment) -> tuple[list[int], list[int]]:
    """Return the process ids of all clients, and of the server."""
    clients = [
        pid
        for process in there.clients.values()
        for pid in (process.pid, *there.offspring(process))
    ]
    return clients, [there.server.pid, *there.offspring(there.server)]


def cpu_seconds(pid: int) -> float:
    """Return the CPU-seconds of a process and of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


if __name__ == "__main__":
    main()
