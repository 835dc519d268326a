"""The options and tables of all benchmarks, and a description of the machine."""

import argparse
import csv
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

Row = Mapping[str, object]
"""A row of a table: its cells by column."""


def parser_of(
    about: str | None, workloads: Sequence[str] = (), *, on_devices: bool = False
) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's options; with `workloads`, --workloads chooses some.

    With `on_devices`, there are --device, --rounds and --repeats.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", action="store_true", help="print tables as CSV")
    if workloads:
        parser.add_argument(
            "--workloads", nargs="+", choices=workloads, default=workloads, metavar="NAME"
        )
    if on_devices:
        parser.add_argument("--device", default="cpu", help="cpu, cuda or mps; cpu by default")
        parser.add_argument("--rounds", type=int, help="rounds after the first one of each run")
        parser.add_argument("--repeats", type=int, help="how often each side is measured")
    return parser


def print_machine(device: str = "cpu") -> None:
    """Print processor, memory and load of the machine, its card, and the packages' versions."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("fairbloom", "torch", "numpy", "flwr")
    )
    model = names[0] if names else platform.machine()
    processors = f"{os.cpu_count()} processors ({model})"
    print(f"{processors}, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f}, {platform.system()}")
    if device.startswith("cuda"):
        # Not imported above: a child of benchmarks.scale first has this process's memory.
        import torch

        print(torch.cuda.get_device_name(device))
    print(f"Python {platform.python_version()}, {packages}\n")


def print_table(title: str, rows: Iterable[Row], *, as_csv: bool = False) -> None:
    """Print a table with the columns of all rows, in the order in which they first occur."""
    rows = list(rows)
    if as_csv:
        print(title)
        write_csv(sys.stdout, rows)
        print()
        return
    table = Table(title=title)
    headings = headings_of(rows)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*(str(row.get(heading, "")) for heading in headings))
    Console(width=max(120, Console().width)).print(table)


def read_csv(path: Path, *, optional: bool = False) -> list[dict[str, str]]:
    """Return the rows of a table; an optional one that is not there has none."""
    if optional and not path.exists():
        return []
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def write_csv(file: TextIO, rows: Sequence[Row]) -> None:
    """Write a table as CSV, with the columns of all rows."""
    writer = csv.DictWriter(file, headings_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def write_lines(path: Path, lines: Iterable[Sequence[str]]) -> None:
    """Write lines of cells, the headings first, as a CSV file."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def headings_of(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in the order in which they first occur."""
    return list(dict.fromkeys(heading for row in rows for heading in row))


def print_row(row: Row) -> None:
    """Print a row to stderr, before its table is complete."""
    print(*row.values(), sep="  ", file=sys.stderr, flush=True)
