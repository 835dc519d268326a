"""What a deployed round costs the server's processor: SuperLink and ServerApp, in CPU-seconds, with warm clients.

A real server (TLS, node keys, database) as `fairbloom server` starts it; the clients run in one process (see nodes.py),
so that 20 of them fit beside it and what is measured is the server. CPU-seconds bear other work on the same machine
better than seconds do; the load at the start is printed all the same.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .deployed import cpu_seconds
from .federation import Deployment, federation, names, rounds
from .flower import ROOT

WORK: Mapping[str, Mapping[str, Any]] = {
    "train": {"evaluate-every": 0},
    "train + evaluate": {"evaluate-every": 1},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--task", default="digits", help="synthetic has data for a thousand clients")
    parser.add_argument("--models", nargs="+", default=["logistic", "cnn"])
    parser.add_argument("--work", nargs="+", choices=[*WORK], default=[*WORK])
    chosen = parser.parse_args()
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    table = Table(title=f"a round of {chosen.clients} warm clients, {chosen.task}, TLS, node keys, database")
    for heading in ("model", "a round", "CPU-s SuperLink", "of it in the kernel", "CPU-s ServerApp", "seconds"):
        table.add_column(heading, justify="left" if heading in ("model", "a round") else "right")
    with tempfile.TemporaryDirectory() as scratch, federation(Path(scratch, "home"), chosen.clients) as there:
        start_nodes(there, chosen.clients)
        for model in chosen.models:
            for work in chosen.work:
                out = Path(scratch, f"{model}-{work}".replace(" ", ""))
                settings = {
                    "task": chosen.task,
                    "clients": chosen.clients,
                    "fraction": 1.0,
                    "model": model,
                    "device": "cpu",
                    "out": str(out),
                }
                table.add_row(model, work, *measured(there, out, {**settings, **WORK[work]}, chosen.rounds))
    Console(width=120).print(table)


def start_nodes(there: Deployment, clients: int) -> None:
    """Start all clients, in one process, and wait until they are online."""
    bundles = [str(there.bundle(name)) for name in names(clients)]
    place = (f"localhost:{there.fleet}", str(there.folder / "ca.crt"))
    before, there.environment = there.environment, there.environment | {"PYTHONPATH": str(ROOT)}
    nodes = there.start("python", "-m", "benchmarks.nodes", *place, *bundles)
    there.environment = before
    there.wait_for_words(nodes, "nodes: ready", seconds=60.0 + 5.0 * clients)


def measured(there: Deployment, out: Path, settings: Mapping[str, Any], number: int) -> list[str]:
    """Run, and give the table's cells: means over all rounds but the first two and the last."""
    run = there.submitting({**settings, "out": str(out), "num-rounds": number + 3})
    used = list(after_each_round(there, out, number + 2, run))[1:]
    there.wait_for_end(run, seconds=1800)
    if any(row["missing"] or row["refused"] for row in rounds(out)):
        raise RuntimeError("replies are missing or refused")
    first, last = used[0], used[-1]
    superlink, kernel, serverapp = ((end - begin) / (len(used) - 1) for begin, end in zip(first, last, strict=True))
    seconds = statistics.median(float(row["seconds"]) for row in rounds(out)[2:-1])
    return [f"{superlink:.2f}", f"{kernel:.2f}", f"{serverapp:.2f}", f"{seconds:.2f}"]


def after_each_round(
    there: Deployment, out: Path, number: int, run: subprocess.Popen[bytes]
) -> Iterator[tuple[float, float, float]]:
    """Give, as each of the first rounds is seen to end, CPU-seconds of SuperLink, its kernel's part, and ServerApp."""
    for finished in range(1, number + 1):
        while len(rounds(out)) < finished:
            time.sleep(0.02)
            if run.poll() is not None:
                raise RuntimeError(f"the run has ended after {len(rounds(out))} rounds")
        superlink = there.part("superlink")
        fields = Path(f"/proc/{superlink}/stat").read_text().rpartition(")")[2].split()
        kernel = int(fields[12]) / os.sysconf("SC_CLK_TCK")
        yield cpu_seconds(superlink), kernel, sum(map(cpu_seconds, there.serverapps()))


if __name__ == "__main__":
    main()
