"""The memory of a simulated round: the peak of `fairbloom run` and all its processes.

Each run is a separate command. Pages that processes share are counted once (PSS, every 50 ms). On
the CPU, the table also has the promised bound: the data, three models for each client of a round,
and 500 MB for Python, PyTorch and Flower. On a card, it has the peak of the card's memory, which no
other program may use meanwhile.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fairbloom.protocol.settings import Value
from fairbloom.tasks import Task, load_task

from .engines import ENGINES
from .flower import SCRIPTS
from .measuring import Measured
from .processes import family, pss
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS, Workload

# Between two readings of the processes' memory.
SECONDS = 0.05

FIXED = 500.0
"""Promised megabytes, without data and models."""


def main() -> None:
    """Run the chosen workloads by the chosen engines, and print a table."""
    parser = parser_of(__doc__, [*WORKLOADS], on_devices=True)
    parser.set_defaults(rounds=4, repeats=1)
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    print_machine(chosen.device)
    rows: list[Row] = []
    for name in chosen.workloads:
        config = WORKLOADS[name].config(
            num_rounds=chosen.rounds + 1, evaluate_every=1, device=chosen.device
        )
        for engine in chosen.engines:
            peaks = [
                peak_of_run({**config, "engine": engine}, device) for _ in range(chosen.repeats)
            ]
            row = {"workload": name, "engine": engine, **cells_of(peaks, device)}
            if device.type == "cpu":
                row["bound"] = f"{promised(WORKLOADS[name]):.0f} MB"
            rows.append(row)
            print_row(row)
    print_table("Peak memory of a run", rows, as_csv=chosen.csv)


def cells_of(peaks: Sequence["Peak | None"], device: torch.device) -> dict[str, object]:
    """Return the cells of repeated runs; – if one failed."""
    found = [peak for peak in peaks if peak is not None]
    if len(found) < len(peaks):
        return {"peak": "–"}
    cells: dict[str, object] = {"peak": Measured(tuple(peak.processes for peak in found), "MB")}
    if device.type == "cuda":
        cells["on the card"] = Measured(tuple(peak.card for peak in found), "MB")
    return cells


def promised(workload: Workload) -> float:
    """Return the bound in megabytes."""
    task = load_task(workload.settings())
    model: int = sum(tensor.nbytes for tensor in task.model().state_dict().values())
    return (data_bytes(task) + 3 * workload.drawn * model) / 1e6 + FIXED


def data_bytes(task: Task) -> int:
    """Return the bytes of all clients' examples; shared memory is counted once."""
    storages = [
        tensor.untyped_storage()
        for name in task.clients
        for part in task.splits(name)
        for tensor in (part.inputs, part.targets)
    ]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


class Peak(NamedTuple):
    """Peak memory in megabytes: of a command and its children, and on the card."""

    processes: float
    card: float


def peak_of_run(config: Mapping[str, Value], device: torch.device) -> Peak | None:
    """Return the peak memory of `fairbloom run` with this run config; None if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        assignments = [f"--set={key}={value}" for key, value in config.items()]
        command = [str(SCRIPTS / "fairbloom"), "run", f"--out={scratch}/run", *assignments]
        log = Path(scratch, "log")
        before = card_megabytes(device)
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)  # noqa: S603 (our own command)
        processes = 0.0
        card = 0.0
        while process.poll() is None:
            processes = max(processes, sum(map(pss, family(process.pid))))
            card = max(card, card_megabytes(device) - before)
            time.sleep(SECONDS)
        if process.returncode != 0:
            sys.stderr.write(log.read_text()[-500:])
            return None
        return Peak(processes, card)


def card_megabytes(device: torch.device) -> float:
    """Return the used memory of a card; 0 for another device."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 1e6


if __name__ == "__main__":
    main()
