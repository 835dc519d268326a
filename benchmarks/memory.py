"""The memory of a simulated round: the peak of `fairbloom run` and all its processes.

Each run is a separate command. Pages that processes share are counted once (PSS, every 50 ms). The
table also has the promised bound: the data, three models for each client of a round, and 500 MB for
Python, PyTorch and Flower.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fairbloom.tasks import Task, load_task
from tests.deploy.flower import SCRIPTS
from tests.deploy.processes import family, pss

from .engines import ENGINES
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS, Workload

SECONDS = 0.05
"""Between two readings of the processes' memory."""

FIXED = 500.0
"""Promised megabytes, without data and models."""


def main() -> None:
    """Run the chosen workloads by the chosen engines, and print a table."""
    parser = parser_of(__doc__, [*WORKLOADS])
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print_machine()
    rows: list[Row] = []
    for name in chosen.workloads:
        bound = promised(WORKLOADS[name])
        config = WORKLOADS[name].config(num_rounds=chosen.rounds, evaluate_every=1)
        for engine in chosen.engines:
            with tempfile.TemporaryDirectory() as scratch:
                command = [str(SCRIPTS / "fairbloom"), "run", "--out", f"{scratch}/run"]
                for key, value in {**config, "engine": engine}.items():
                    command += ("--set", f"{key}={value}")
                peak = peak_of(command, Path(scratch, "log"))
            shown = "–" if peak is None else f"{peak:.0f} MB"
            rows.append(
                {"workload": name, "engine": engine, "bound": f"{bound:.0f} MB", "peak": shown}
            )
            print_row(rows[-1])
    print_table("Peak memory of a run", rows, as_csv=chosen.csv)


def promised(workload: Workload) -> float:
    """Return the bound in megabytes."""
    task = load_task(workload.settings())
    model: int = sum(tensor.nbytes for tensor in task.model().state_dict().values())
    return (data_bytes(task) + 3 * workload.drawn * model) / 1e6 + FIXED


def data_bytes(task: Task) -> int:
    """Return the bytes of all clients' examples; shared memory is counted once."""
    sizes: dict[int, int] = {}
    for name in task.clients:
        for part in task.splits(name):
            for tensor in (part.inputs, part.targets):
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def peak_of(command: Sequence[str], log: Path) -> float | None:
    """Return the peak memory of a command and its children in megabytes; None if it fails."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603 (our own command)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, sum(map(pss, family(process.pid))))
            time.sleep(SECONDS)
    if process.returncode != 0:
        sys.stderr.write(log.read_text()[-500:])
        return None
    return peak


if __name__ == "__main__":
    main()
