"""`fairbloom watch` in a terminal: the live page as a picture, and in a pipe a line for each change."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fairbloom.logs import escape_unprintable

from ..report.page import Cell, Chart, Charts, Note, Page, Table
from ..terminal import console, tables_within
from .state import Snapshot, follow
from .view import page_of_snapshot

SPARKS = "▁▂▃▄▅▆▇█"

FEWEST_ROWS = 4
"""How many rows of a table are shown in the lowest terminal."""

LEAVE = "Ctrl-C leaves, and what runs goes on"


def watch(folder: Path, interval: float) -> Snapshot:
    """Show what a folder shows until it is over; return how it ended. On a terminal nothing of that stays."""
    if not console.is_terminal:
        return _print_changes(follow(folder, interval))
    snapshot = Snapshot(folder)
    with Live(Text(), screen=True, auto_refresh=False, console=console) as live:
        for snapshot in follow(folder, interval):
            live.update(render(page_of_snapshot(snapshot), console.width, console.height), refresh=True)
    return snapshot


def describe_end(snapshot: Snapshot) -> str:
    """Return in words how it ended."""
    if snapshot.alone:
        (run,) = snapshot.runs
        done = f"after round {run.rounds} of {run.num_rounds}"
    else:
        done = f"with {snapshot.done} of {len(snapshot.runs)} runs finished"
    return f"{snapshot.state} {done}"


def _print_changes(snapshots: Iterator[Snapshot]) -> Snapshot:
    """Print a line whenever a round, or a run of several, is there that was not."""
    before = ""
    for snapshot in snapshots:
        line = page_of_snapshot(snapshot).headline
        if snapshot.alone:
            (run,) = snapshot.runs
            line = f"round {run.rounds} of {run.num_rounds}" + (f": {run.measured}" if run.points else "")
        if line != before:
            print(escape_unprintable(line), flush=True)
            before = line
    return snapshot


# The picture ----------------------------------------------------------------------------------------------------------


def render(page: Page, width: int, height: int) -> RenderableType:
    """Return a page for a terminal of this size: charts as curves, and of tables the columns and rows that fit."""
    bar = max(8, min(30, width - 50))
    headline = f"{_draw_bar(page.done, bar)}  {page.headline}".strip()
    head = [_line(page.title, "bold"), _line(headline if len(headline) <= width else page.headline)]
    head += map(_line, page.sentences)
    blocks = [block for section in page.sections for block in section.blocks]
    curves = [
        line for block in blocks if isinstance(block, Charts) for each in block.charts for line in _curves(each, bar)
    ]
    tables = [block for block in blocks if isinstance(block, Table)]
    notes = [_line(sentence, "yellow") for block in blocks if isinstance(block, Note) for sentence in block.sentences]
    room = height - len(head) - len(notes) - 2 - 4 * len(tables)
    if room - len(curves) >= FEWEST_ROWS * len(tables):
        head, room = [*head, *curves], room - len(curves)
    parts: list[RenderableType] = [*head]
    for place, table in enumerate(tables):
        later = sum(min(FEWEST_ROWS, len(each.rows)) for each in tables[place + 1 :])
        shown = _cut(table, max(FEWEST_ROWS, room - later))
        room -= len(shown.rows)
        parts += [Text(), tables_within(_with_bars(shown, bar), width)[0]]
    facts = (f"{name}: {value}" for name, value in page.facts)
    return Group(*parts, *notes, Text(), _line("; ".join([LEAVE, *facts]), "dim"))


def _line(words: str, style: str = "") -> Text:
    return Text(escape_unprintable(words), style, overflow="ellipsis", no_wrap=True)


def _draw_bar(share: float | None, width: int) -> str:
    return "" if share is None else ("━" * round(share * width)).ljust(width, "╌")


def _with_bars(table: Table, width: int) -> Table:
    """Return a table with a bar before each number that is a share of something."""

    def draw(cell: Cell, place: int) -> Cell:
        if cell.share is None:
            return cell
        longest = max(len(row[place].text) for row in table.rows)
        return replace(cell, text=f"{_draw_bar(cell.share, width)} {cell.text:>{longest}}")

    return replace(table, rows=[[draw(cell, place) for place, cell in enumerate(row)] for row in table.rows])


def _cut(table: Table, most: int) -> Table:
    """Return a table of at most so many rows: the first ones and the last; a row between says how many are left out."""
    if len(table.rows) <= most:
        return table
    hidden = [Cell(f"… {len(table.rows) - most + 1} more"), *[Cell("")] * (len(table.headings) - 1)]
    return replace(table, rows=[*table.rows[: most - 2], hidden, table.rows[-1]])


def _curves(chart: Chart, width: int) -> list[Text]:
    """Return the lines of a chart over rounds as curves of the same scale, a line each."""
    lines: dict[str, list[float]] = {}
    for row in chart.spec["data"]["values"]:
        lines.setdefault(row["method"], []).append(row["value"])
    values = [value for line in lines.values() for value in line]
    longest = max(map(len, lines))
    drawn = ((name, spark(line, width, min(values), max(values)), line[-1]) for name, line in lines.items())
    title = f"{chart.title}: {chart.spec['layer'][0]['encoding']['y']['title']}"
    return [
        Text(),
        _line(title, "bold"),
        *(_line(f"{name:{longest}}  {curve}  {end:.4g}") for name, curve, end in drawn),
    ]


def spark(values: Sequence[float], width: int, low: float, high: float) -> str:
    """Return values as a curve of small bars, at most `width` of them: each is the mean of as many values."""
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    height = (high - low) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int((mean - low) / height * len(SPARKS)))] for mean in means)
