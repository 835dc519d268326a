"""What all benchmarks share: sides measured in turn, medians with their spread, and tables that name the machine."""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fairbloom.errors import FairbloomError
from fairbloom.experiments.studies.progress import quiet_log
from fairbloom.server.run_folder.files import ENGINE
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

FEWEST_ROUNDS, MOST_ROUNDS = 4, 5_000
"""No run is made shorter, since the evaluation after the last round would count too much, and none longer."""


@dataclass(frozen=True)
class Measured:
    """Values of the same thing, measured again and again; shown as their median, with the least and the greatest."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        least, greatest = min(self.values), max(self.values)
        scale, unit = (1000.0, "ms") if self.unit == "s" and self.median < 1.0 else (1.0, self.unit)
        spread = f" ({scale * least:.3g}–{scale * greatest:.3g})" if least < greatest else ""
        return f"{scale * self.median:.3g} {unit}{spread}"


Cell = Measured | str
Cells = Mapping[str, Cell]
"""A row of a table: what stands in each of its columns."""

Side = Callable[[Settings], float]
"""One way to compute a run: returns its seconds a round after the first, and raises FairbloomError where it cannot."""


# Measuring ------------------------------------------------------------------------------------------------------------


class InProcess:
    """A whole run in process by one engine: from its first row to its end, with records, checkpoints and evaluation.

    Parameters
    ----------
    engine
        Which engine computes, whatever the settings say.

    Attributes
    ----------
    choice
        What the last run has recorded of its engine: which one it was, and why.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.choice: Mapping[str, Any] = {}

    def __call__(self, settings: Settings) -> float:
        """Return the seconds a round after the first; raise FairbloomError when the engine cannot compute this run."""
        first: list[float] = []

        def on_round(recorded: RecordedRound) -> None:
            first.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as scratch, quiet_log():
            chosen = Settings.of({**settings.run_config(), "engine": self.engine, "out": f"{scratch}/run"})
            folder = simulate(chosen, on_round)
            ended = time.perf_counter()
            self.choice = ENGINE.read(folder) or {}
        return (ended - first[0]) / (settings.num_rounds - 1)


def in_turn(
    sides: Mapping[str, Side], settings: Settings, *, seconds: float, repeats: int
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure the seconds a round of each side on the same settings, each side once before any of them again.

    Parameters
    ----------
    sides
        The sides by their names.
    settings
        Of the run; every side makes as many rounds of it as take about `seconds`.
    seconds
        How long one measurement is to last.
    repeats
        How often each side is measured.

    Returns
    -------
    tuple
        What was measured, by side, and the reasons of those sides that cannot compute the run.
    """
    lengths: dict[str, Settings] = {}
    refused: dict[str, str] = {}
    for name, side in sides.items():
        try:
            lengths[name] = settings.model_copy(update={"num_rounds": rounds_in(seconds, side, settings)})
        except FairbloomError as reason:
            refused[name] = str(reason)
    values: dict[str, list[float]] = {name: [] for name in lengths}
    for _ in range(repeats):
        for name, length in lengths.items():
            values[name].append(sides[name](length))
    return {name: Measured(tuple(found), "s") for name, found in values.items()}, refused


def rounds_in(seconds: float, side: Side, settings: Settings) -> int:
    """Return how many rounds take a side about so many seconds; trying it out also warms it up."""
    rounds = FEWEST_ROUNDS
    while True:
        a_round = side(settings.model_copy(update={"num_rounds": rounds}))
        if a_round * rounds >= seconds / 4 or rounds >= MOST_ROUNDS:
            return int(min(max(FEWEST_ROUNDS, 1.0 + seconds / a_round), MOST_ROUNDS))
        rounds = min(4 * rounds, MOST_ROUNDS)


def times(slower: Measured, faster: Measured) -> Measured:
    """Return how many times as long the one takes as the other, repeat by repeat."""
    return Measured(tuple(a / b for a, b in zip(slower.values, faster.values, strict=True)), "×")


# Showing --------------------------------------------------------------------------------------------------------------


def parser_of(about: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure less, for a first look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, rows and all measured values there")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    return parser


class Report:
    """Tables that are printed, and written as JSON where that is asked for.

    Parameters
    ----------
    chosen
        The options of `parser_of`.
    """

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._markdown, self._file = bool(chosen.markdown), chosen.json
        self._tables: dict[str, Sequence[Cells]] = {}
        self._machine = machine()
        self._print(f"{self._machine}\nload at the start: {os.getloadavg()[0]:.1f}\n")

    def add(self, title: str, rows: Sequence[Cells], notes: Sequence[str] = ()) -> None:
        """Print a table and notes on it, and write all tables up to now to the file."""
        self._tables[title] = rows
        if self._markdown:
            self._print(as_markdown(title, rows))
        else:
            Console(width=max(120, Console().width)).print(as_table(title, rows))
        self._print("".join(f"- {note}\n" for note in notes))
        if self._file is not None:
            self._file.write_text(json.dumps(self._as_json(), indent=2, ensure_ascii=False))

    def tell(self, row: Cells) -> None:
        """Print a row of a table that is under way to stderr."""
        Console(stderr=True, soft_wrap=True).print("  ".join(map(str, row.values())), markup=False, highlight=False)

    def _print(self, words: str) -> None:
        Console(soft_wrap=True).print(words, markup=False, highlight=False)

    def _as_json(self) -> dict[str, object]:
        def plain(cell: Cell) -> object:
            return {"values": cell.values, "unit": cell.unit} if isinstance(cell, Measured) else cell

        tables = {
            title: [{heading: plain(cell) for heading, cell in row.items()} for row in rows]
            for title, rows in self._tables.items()
        }
        return {"machine": self._machine, "tables": tables}


def headings_of(rows: Sequence[Cells]) -> list[str]:
    """Return the columns of all rows, in the order in which they first occur."""
    return list(dict.fromkeys(heading for row in rows for heading in row))


def as_table(title: str, rows: Sequence[Cells]) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(title=title)
    headings = headings_of(rows)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*(str(row.get(heading, "")) for heading in headings))
    return table


def as_markdown(title: str, rows: Sequence[Cells]) -> str:
    """Return the rows as a table in Markdown."""
    headings = headings_of(rows)
    lines = [headings, ["---", *("---:" for _ in headings[1:])]]
    lines += [[str(row.get(heading, "")).replace("|", "\\|") for heading in headings] for row in rows]
    return "\n".join([f"{title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def machine() -> str:
    """Return in one line what the numbers depend on: processor, memory, and the versions of what computes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("fairbloom", "torch", "numpy", "flwr"))
    return (
        f"{os.cpu_count()} processors ({_processor()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
