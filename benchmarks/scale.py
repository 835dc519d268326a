"""Registered clients: what a run of 100 clients a round costs where a thousand, or a million, could have been drawn.

Each number of clients is a `fairbloom run` in a process of its own. Prints the seconds from the command to the first
row on disk, the median milliseconds a round, and the largest resident memory of the process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fairbloom.protocol.streams import generator
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.tasks import Examples, Setup, Splits, Task

ROOT = Path(__file__).parents[1]
REGISTERED = (1_000, 100_000, 1_000_000)
A_ROUND = 100
EXAMPLES, TESTED, FEATURES, CLASSES = 40, 10, 60, 10


def strangers(setup: Setup) -> Task:
    """Clients whose examples are made from their names when they are asked for.

    Their names are not in the order of their numbers: client-10 comes before client-9.
    """
    import torch  # here, since this process must stay small: its memory counts as its children's until they begin
    from torch.nn.functional import cross_entropy

    concept = generator(setup.seed, "concept").standard_normal((FEATURES, CLASSES))

    def splits(client: str) -> Splits:
        random = generator(setup.seed, "examples", client)
        inputs = random.standard_normal((EXAMPLES, FEATURES))
        classes = (inputs @ (concept + random.standard_normal(concept.shape))).argmax(axis=1)
        x, y = torch.from_numpy(inputs).float(), torch.from_numpy(classes)
        return Splits(Examples(x[TESTED:], y[TESTED:]), Examples(x[:TESTED], y[:TESTED]))

    def model() -> torch.nn.Module:
        torch.manual_seed(setup.seed)
        return torch.nn.Linear(FEATURES, CLASSES)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    return Task(tuple(f"client-{number}" for number in range(setup.clients)), model, loss, splits)


@dataclass(frozen=True)
class Cost:
    """What a run took: seconds to its first row, seconds a round, and its largest resident memory in MB."""

    first: float
    a_round: float
    memory: float


def main() -> None:
    """Measure all numbers of clients and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--engine", default="auto")
    chosen = parser.parse_args()
    table = Table(title=f"{A_ROUND} clients a round train and evaluate, logistic regression, {chosen.rounds} rounds")
    for heading in ("registered", "s to the first row", "ms a round", "peak MB", "MB more"):
        table.add_column(heading, justify="right")
    costs = {registered: cost(registered, chosen.rounds, chosen.engine) for registered in REGISTERED}
    fewest = costs[REGISTERED[0]].memory
    for registered, its in costs.items():
        words = (f"{its.first:.1f}", f"{1000 * its.a_round:.2f}", f"{its.memory:.0f}", f"{its.memory - fewest:.0f}")
        table.add_row(f"{registered:,}", *words)
    Console().print(table)


def cost(registered: int, rounds: int, engine: str) -> Cost:
    """Run in a process of its own; return what it took."""
    share = f"{A_ROUND / registered:g}"
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch, "run"), Path(scratch, "log")
        command = [str(Path(sys.executable).with_name("fairbloom")), "run", "--task", "benchmarks.scale:strangers"]
        command += ["--clients", str(registered), "--fraction", share, "--set", f"fraction-evaluate={share}"]
        command += ["--rounds", str(rounds), "--engine", engine, "--device", "cpu", "--out", str(out)]
        command += ["--set", "batch-size=0"]
        started = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        while not table_of(out) and not ended(process.pid):
            time.sleep(0.01)
        first = time.perf_counter() - started
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"the run of {registered} clients ended with an error: {log.read_text()}")
        seconds = [float(row["seconds"]) for row in table_of(out)]
    return Cost(first, statistics.median(seconds[1:]), used.ru_maxrss / 1024)


def ended(pid: int) -> bool:
    """Return whether a process is over; what it has used is still to be asked for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def table_of(out: Path) -> list[dict[str, str]]:
    """Return the rounds of a run that are on disk."""
    return ROUNDS.read(out)


if __name__ == "__main__":
    main()
