"""A deployed round of warm clients over TLS with node authentication, on loopback.

CPU-seconds a round and memory (PSS: shared pages counted once) stand beside the seconds. The load of the machine at the
start is printed: other work on the same cores counts.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.deploy.federation import Deployment, federation, names, rounds
from tests.deploy.processes import peak_memory, pss, resident_memory

TICKS = os.sysconf("SC_CLK_TCK")
LARGE = Path(__file__).parent / "large"


@dataclass
class Usage:
    """CPU-seconds of clients and server when each round was seen to end, and the most memory they had, in MB."""

    cpu: list[tuple[float, float]] = field(default_factory=list)
    memory: tuple[float, float] = (0.0, 0.0)

    def cpu_a_round(self, side: int) -> float:
        """Return the CPU-seconds a round of clients (0) or server (1), without the first round and the last."""
        first, last = self.cpu[1][side], self.cpu[-2][side]
        return (last - first) / (len(self.cpu) - 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--floats", type=int, help="send a model of so many floats to and fro instead")
    chosen = parser.parse_args()
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if chosen.floats:
        large(chosen.floats, chosen.clients, chosen.rounds)
    else:
        small(chosen.clients, chosen.rounds)


def small(clients: int, number: int) -> None:
    """Print the table of rounds that only train, and of rounds that evaluate as well."""
    title = f"{clients} clients, logistic 64-10, TLS, node keys, database"
    table = Table(title=title)
    headings = (
        "a round",
        "seconds",
        "CPU-s clients",
        "CPU-s server",
        "PSS clients MB",
        "PSS server MB",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in measured(clients, number + 1):
        table.add_row(*row)
    Console(width=120).print(table)


def measured(clients: int, number: int) -> Iterator[list[str]]:
    """Run train only, then train with evaluation, on one federation; give the table's cells of each."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        federation(Path(scratch, "home"), clients) as there,
    ):
        start_clients(there, clients)
        for what, every in (("train", 0), ("train + evaluate", 1)):
            out = Path(scratch, what.replace(" ", ""))
            settings = {
                "clients": clients,
                "fraction": 1.0,
                "num-rounds": number,
                "evaluate-every": every,
                "device": "cpu",
            }
            with watched(there, lambda out=out: len(rounds(out))) as usage:
                there.wait_for_end(there.submitting(settings | {"out": str(out)}), seconds=1800)
            rows = rounds(out)
            if any(row["missing"] or row["refused"] for row in rows):
                raise RuntimeError(f"{what}: replies are missing or refused")
            # Round 1 loads data and libraries; the last round of train only evaluates.
            seconds = statistics.median(float(row["seconds"]) for row in rows[1:-1])
            cpu = [f"{usage.cpu_a_round(side):.2f}" for side in (0, 1)]
            yield [what, f"{seconds:.2f}", *cpu, *(f"{megabytes:.0f}" for megabytes in usage.memory)]


def start_clients(there: Deployment, clients: int) -> None:
    """Start all clients and wait until they are online."""
    for name in names(clients):
        there.start_client(name)
    there.wait_for_clients(*names(clients), seconds=60.0 + 10.0 * clients)


def large(floats: int, clients: int, number: int) -> None:
    """Print seconds a round and memory with a model of `floats` numbers, and the SuperLink's memory as rounds go by."""
    series = Table(title="the SuperLink after rounds")
    for heading in ("rounds", "RSS MB", "PSS MB", "database MB"):
        series.add_column(heading, justify="right")
    table = Table(title=f"{floats / 1e6:.1f} M floats, {clients} clients, TLS, node keys, database")
    for heading in ("seconds a round", "peak MB a client", "peak MB SuperLink", "peak MB ServerApp"):
        table.add_column(heading, justify="right")
    with (
        tempfile.TemporaryDirectory() as scratch,
        federation(Path(scratch, "home"), clients) as there,
    ):
        there.environment["PYTHONPATH"] = str(LARGE)
        for name in names(clients):
            there.start_client(name, "--app", "large:client")
        there.wait_for_clients(*names(clients), seconds=60.0 + 10.0 * clients)
        out = Path(scratch, "seconds.json")
        run = there.submitting({"floats": floats, "num-rounds": number, "out": str(out)}, LARGE)
        peak, shown, superlink = 0.0, 0, there.part("superlink")
        while run.poll() is None:
            peak = max([peak, *(peak_memory(pid) for pid in there.serverapps())])
            finished = len(finished_seconds(out))
            if finished >= shown + max(1, number // 10):
                shown = finished
                database = sum(file.stat().st_size for file in (there.folder / "state").glob("superlink.db*")) / 1e6
                sizes = (resident_memory(superlink), pss(superlink), database)
                series.add_row(str(finished), *(f"{megabytes:.0f}" for megabytes in sizes))
            time.sleep(0.2)
        if run.returncode != 0:
            raise RuntimeError(f"the run did not complete:\n{there.log(run)}")
        nodes = [(process.pid, *there.offspring(process)) for process in there.clients.values()]
        seconds = statistics.median(finished_seconds(out)[1:])
        most = max(sum(peak_memory(pid) for pid in node) for node in nodes)
        row = (
            f"{seconds:.1f}",
            *(f"{megabytes:.0f}" for megabytes in (most, peak_memory(superlink), peak)),
        )
        table.add_row(*row)
    for each in (series, table):
        Console(width=120).print(each)


def finished_seconds(out: Path) -> list[float]:
    """Return how long each round took that the app has noted."""
    with contextlib.suppress(OSError, ValueError):  # there is none yet, or it is being written
        return [float(seconds) for seconds in json.loads(out.read_text())]
    return []


@contextlib.contextmanager
def watched(there: Deployment, finished_rounds: Callable[[], int]) -> Iterator[Usage]:
    """Watch what clients and server use while a run goes on."""
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        since = 0.0
        while not over.wait(0.2):
            if time.monotonic() - since > 10.0:  # looking at memory costs the processes time
                now = [sum(map(pss, family)) for family in families(there)]
                usage.memory = (max(usage.memory[0], now[0]), max(usage.memory[1], now[1]))
                since = time.monotonic()
            while len(usage.cpu) <= finished_rounds():
                used = [sum(map(cpu_seconds, family)) for family in families(there)]
                usage.cpu.append((used[0], used[1]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield usage
    finally:
        over.set()
        watcher.join()


def families(there: Deployment) -> tuple[list[int], list[int]]:
    """Return the processes of all clients, and those of the server."""
    clients = [pid for process in there.clients.values() for pid in (process.pid, *there.offspring(process))]
    server = [there.server.pid, *there.offspring(there.server)]
    return clients, server


def cpu_seconds(pid: int) -> float:
    """Return the CPU-seconds of a process and of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


if __name__ == "__main__":
    main()
