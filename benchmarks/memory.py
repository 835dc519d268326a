"""The memory of a simulated round: the peak of `fairbloom run` and all its processes, each run a command of its own.

Pages that processes share are counted once (PSS, every 50 ms). Beside it stands the bound that is
promised: the data, three models for each client of a round, and 500 MB for Python, PyTorch and
Flower.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fairbloom.tasks import Task, load_task
from tests.deploy.flower import SCRIPTS
from tests.deploy.processes import family, pss

from .engines import ENGINES
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS, Workload

SECONDS = 0.05
"""Between one look at the processes' memory and the next."""

FIXED = 500.0
"""Megabytes that are promised for what is neither data nor models."""


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
    task = load_task(workload.settings().run_config())
    models: int = (
        3 * workload.drawn * sum(tensor.nbytes for tensor in task.model().state_dict().values())
    )
    return (data_bytes(task) + models) / 1e6 + FIXED


def data_bytes(task: Task) -> int:
    """Return the bytes of all clients' examples.

    Memory that several of them share is counted once.
    """
    tensors = (
        tensor
        for name in task.clients
        for part in task.splits(name)
        for tensor in (part.inputs, part.targets)
    )
    return sum(
        {
            each.data_ptr(): each.nbytes() for each in map(torch.Tensor.untyped_storage, tensors)
        }.values()
    )


def peak_of(command: Sequence[str], log: Path) -> float | None:
    """Return the most megabytes that a command and its children had at once, None where it fails."""
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
