"""A large CSV file: what `fairbloom data` and the start of a run do with it, against pandas reading it.

The file has counts, measurements, categories, a target and a column of clients. Each side is measured in processes of
its own, one after the other, once its libraries are loaded: seconds of CPU and of the clock, and the most memory that
the process had, PyTorch and all. `data` is all that the command does but print. The start of a run is all that comes
before the first round: reading, splitting, summaries, agreement, checksums and every client's tensors. By Python reads
the same table with a blank line in it, which pyarrow does not read as Python does.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fairbloom.server.settings import Settings
from fairbloom.tasks import check_data, describe_data, digests, find_task, load_task

from .measuring import Cells, Measured, Report, parser_of, times

CLIENTS = 10


def main() -> None:
    """Measure all sides and print a table, with the ratios to pandas."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows the file has")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured")
    parser.add_argument("--by", nargs="+", choices=[*SIDES], default=[*SIDES], metavar="SIDE", help=", ".join(SIDES))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # what a process of ours is to measure
    chosen = parser.parse_args()
    if chosen.one:
        measure(chosen.one[0], Path(chosen.one[1]))
        return
    if chosen.quick:
        chosen.rows, chosen.repeats = 100_000, 1
    report = Report(chosen)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "table.csv")
        write_table(path, chosen.rows)
        found: dict[str, list[dict[str, float]]] = {side: [] for side in chosen.by}
        for _ in range(chosen.repeats):
            for side, values in found.items():
                values.append(measured(side, path))
        size = path.stat().st_size / 1e6
    measures = {
        side: {name: Measured(tuple(each[name] for each in values), unit) for name, unit in UNITS.items()}
        for side, values in found.items()
    }
    rows: list[Cells] = []
    for side, of_side in measures.items():
        ratios = {f"× {name}": times(of_side[name], measures[PANDAS][name]) for name in UNITS if PANDAS in measures}
        rows.append({"": side, **of_side, **ratios})
    report.add(f"A CSV file of {chosen.rows:,} rows × 20 columns, {size:.0f} MB", rows)


def write_table(path: Path, rows: int) -> None:
    """Write a file of twenty columns."""
    random = np.random.default_rng(0)
    columns = {f"count{k}": random.integers(0, 10 ** (k + 1), rows).astype(str) for k in range(6)}
    for k in range(8):
        values = random.normal(10 * k, 1 + k, rows)
        columns[f"measure{k}"] = np.array([f"{value:.{1 + k % 6}f}" for value in values])
    for k, number in enumerate((2, 3, 5, 8)):
        columns[f"group{k}"] = np.char.add("group ", random.integers(0, number, rows).astype(str))
    columns["site"] = np.char.add("site-", random.integers(0, CLIENTS, rows).astype(str))
    columns["target"] = np.where(columns["measure0"].astype(float) + random.normal(size=rows) > 0, "yes", "no")
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        file.writelines(",".join(row) + "\n" for row in zip(*columns.values(), strict=True))


# The sides, each in a process of its own ------------------------------------------------------------------------------

PANDAS = "pandas.read_csv"
UNITS = {"CPU": "s", "clock": "s", "memory": "MB"}


def measured(side: str, path: Path) -> dict[str, float]:
    """Return what a side takes, as a process of its own has measured it."""
    command = [sys.executable, "-m", "benchmarks.csv", "--one", side, str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603
    return found


def measure(side: str, path: Path) -> None:
    """Print what a side takes in this process, as JSON."""
    work = SIDES[side](path)
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    found = {"CPU": time.process_time() - cpu, "clock": time.perf_counter() - clock}
    # Of this process alone: what getrusage says holds what the process that has started it had.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(json.dumps(found | {"memory": int(peak.split()[1]) / 1000}))


def by_pandas(path: Path) -> Callable[[], object]:
    """Return what reads the file by pandas."""
    import pandas  # imported late, as pyarrow is: each side loads its own

    return lambda: pandas.read_csv(path)


def by_data(path: Path, *, start: bool = False) -> Callable[[], object]:
    """Return what `fairbloom data` does with the file, or what the start of a run does."""
    import pyarrow.compute
    import pyarrow.csv  # noqa: F401 (loaded before the clock starts, as pandas is)

    config = Settings.of({"task": "csv", "data-dir": str(path), "csv.client": "site"}).run_config()
    load_task({**config, "data-dir": ""})  # loads PyTorch
    return (lambda: start_of_run(config)) if start else (lambda: describe_data(config))


def by_start(path: Path) -> Callable[[], object]:
    """Return what the start of a run does with the file."""
    return by_data(path, start=True)


def start_of_run(config: dict[str, object]) -> None:
    """Do all that comes before the first round."""
    check_data(config)
    digests(config)
    task = load_task(config)
    assert task.about is not None  # noqa: S101 (as with all CSV files)
    agreed, _ = find_task("csv").agreement({name: json.loads(json.dumps(task.about(name))) for name in task.clients})
    task = load_task({**config, "agreed": agreed})
    splits = {name: task.splits(name) for name in task.clients}
    assert len(splits) == CLIENTS  # noqa: S101


def by_python(path: Path) -> Callable[[], object]:
    """Return what `fairbloom data` does with the file once it has a blank line, so that Python reads it."""
    other = path.with_name("blank.csv")
    other.write_bytes(path.read_bytes() + b"\n")
    return by_data(other)


SIDES = {PANDAS: by_pandas, "data": by_data, "start of a run": by_start, "data, by Python": by_python}


if __name__ == "__main__":
    main()
