"""Registered clients: the cost of a run that draws 100 clients a round from up to a million.

Each number of clients is a `fairbloom run` in its own process. Prints the seconds from the command
to the first row on disk, the median milliseconds of a round, and the largest resident memory of the
process.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fairbloom.protocol.streams import generator
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.tasks import Examples, Setup, Splits, Task

from .tables import Row, parser_of, print_machine, print_table

ROOT = Path(__file__).parents[1]
REGISTERED = (1_000, 100_000, 1_000_000)
A_ROUND = 100
EXAMPLES = 40
TESTED = 10
FEATURES = 60
CLASSES = 10


def strangers(setup: Setup) -> Task:
    """Clients with examples that are generated from their names on demand.

    Their names are not in the order of their numbers: client-10 comes before client-9.
    """
    # Not imported above: this process must stay small, because a child's memory is first its own.
    import torch
    from torch.nn.functional import cross_entropy

    concept = generator(setup.seed, "concept").standard_normal((FEATURES, CLASSES))

    def splits(client: str) -> Splits:
        random = generator(setup.seed, "examples", client)
        inputs = random.standard_normal((EXAMPLES, FEATURES))
        classes = (inputs @ (concept + random.standard_normal(concept.shape))).argmax(axis=1)
        x = torch.from_numpy(inputs).float()
        y = torch.from_numpy(classes)
        return Splits(Examples(x[TESTED:], y[TESTED:]), Examples(x[:TESTED], y[:TESTED]))

    def model() -> torch.nn.Module:
        torch.manual_seed(setup.seed)
        return torch.nn.Linear(FEATURES, CLASSES)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    return Task(tuple(f"client-{number}" for number in range(setup.clients)), model, loss, splits)


def main() -> None:
    """Measure all numbers of clients and print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--engine", default="auto")
    chosen = parser.parse_args()
    print_machine()
    title = (
        f"{A_ROUND} clients a round train and evaluate, logistic regression, {chosen.rounds} rounds"
    )
    rows = [measure(registered, chosen.rounds, chosen.engine) for registered in REGISTERED]
    print_table(title, rows, as_csv=chosen.csv)


def measure(registered: int, rounds: int, engine: str) -> Row:
    """Return the row of a run in its own process."""
    share = f"{A_ROUND / registered:g}"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "run")
        log = Path(scratch, "log")
        command = [
            str(Path(sys.executable).with_name("fairbloom")),
            "run",
            "--task=benchmarks.scale:strangers",
            f"--clients={registered}",
            f"--fraction={share}",
            f"--rounds={rounds}",
            f"--engine={engine}",
            "--device=cpu",
            f"--out={out}",
            f"--set=fraction-evaluate={share}",
            "--set=batch-size=0",
        ]
        started = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        # WNOWAIT, because wait4 below still has to return the memory of the process
        while not ROUNDS.read(out) and not os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.01)
        first = time.perf_counter() - started
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(
                f"the run of {registered} clients ended with an error: {log.read_text()}"
            )
        a_round = statistics.median(float(row["seconds"]) for row in ROUNDS.read(out)[1:])
    return {
        "registered": f"{registered:,}",
        "to the first row": f"{first:.1f} s",
        "a round": f"{1000 * a_round:.2f} ms",
        "peak": f"{used.ru_maxrss / 1024:.0f} MB",
    }


if __name__ == "__main__":
    main()
