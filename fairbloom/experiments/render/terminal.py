"""Prints pages in a terminal: whole tables at any width; names are never markup."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich import box, table as rich_table
from rich.cells import cell_len
from rich.console import ConsoleDimensions
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.logs import escape_unprintable

from .page import Cell, Note, Page, Table

# How cells are printed by their tone.
STYLES = {"better": "bold green", "worse": "bold red", "quiet": "dim"}

# The number of characters between two columns.
GAP = 2

# Number of rows that are printed of a folded table.
FIRST_ROWS = 6
LAST_ROWS = 3


class Output(Terminal):
    """A console that has no edge in a file or a pipe: there nothing is cut or wrapped."""

    @property
    def size(self) -> ConsoleDimensions:
        """The size of the terminal, or that of COLUMNS; else wider than any table."""
        size = super().size
        bounded = self.is_terminal or self.is_jupyter or "COLUMNS" in os.environ
        return size if bounded else ConsoleDimensions(100_000, size.height)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        self.width, self.height = size


console = Output(highlight=False)


def show_page(page: Page) -> None:
    """Print a page's sentences, tables and notes, and the places of its files."""
    if page.title:
        console.print(Text(page.title, style="bold"))
    if page.facts:
        facts = ", ".join(f"{name} {value}" for name, value in page.facts)
        console.print(Text(facts, style="dim"))
    said = [*map(Text, page.sentences)]
    if page.headline:
        said.insert(0, Text(page.headline, "bold"))
    if said:
        console.print(Text(" ").join(said))
    for block in (block for section in page.sections for block in section.blocks):
        if isinstance(block, Table) and block.rows:
            console.print()
            show_table(block)
        elif isinstance(block, Note):
            console.print()
            for sentence in block.sentences:
                console.print(Text(sentence))
    if page.files:
        console.print()
    for name, value in page.files:
        console.print(Text(f"{name}: {value}"), soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table, in several parts where it is wider than the console."""
    if table.caption:
        console.print(Text(table.caption, style="bold"))
    for place, part in enumerate(tables_within(table, console.width)):
        if place:
            console.print()
        if console.is_terminal or console.is_jupyter:
            console.print(part)
        else:  # without the spaces that fill each line up
            with console.capture() as captured:
                console.print(part)
            lines = (line.rstrip() for line in captured.get().splitlines())
            console.out(*lines, sep="\n", highlight=False)
    if table.note:
        console.print(Text(table.note, style="dim"))


def tables_within(table: Table, width: int) -> list[rich_table.Table]:
    """Return tables of at most this width that have all columns; each has the key columns."""
    shown = table.rows
    hidden = len(table.rows) - FIRST_ROWS - LAST_ROWS
    if table.folded and hidden > 1:
        gap = [
            Cell(f"… {hidden + table.hidden} more {table.nouns}"),
            *[Cell("")] * (len(table.headings) - 1),
        ]
        shown = [*shown[:FIRST_ROWS], gap, *shown[-LAST_ROWS:]]
    # Escaped here, as the widths are measured here.
    rows = [[*map(_escape, row)] for row in shown]
    table = replace(table, headings=[*map(escape_unprintable, table.headings)], rows=rows)
    everything = range(len(table.headings))
    bodies = [_widest(row[i].text for row in rows) for i in everything]
    whole = sum(map(max, bodies, map(cell_len, table.headings)))
    if whole + GAP * (len(bodies) - 1) <= width:
        return [_part(table, everything, {})]
    # Numbers stay in one piece; the words of headings lie below each other, and names are folded.
    words = [_widest(heading.split()) for heading in table.headings]
    fixed = {i: max(bodies[i], words[i]) for i in everything[1:] if table.numeric[i]}
    # Together, keys leave half of the width to the other columns.
    widest = [max(12, width // 3)] * len(everything)
    if table.keys > 1:
        widest[: table.keys] = [max(6, width // 2 // table.keys - GAP)] * table.keys
    needed = [max(body, word) for body, word in zip(bodies, words, strict=True)]
    least = [fixed.get(i, min(needed[i], widest[i])) for i in everything]
    # The narrowest tables among as few as possible have about as many columns each.
    parts = min((_cut(least, table.keys, narrower) for narrower in range(1, width + 1)), key=len)
    return [_part(table, columns, fixed) for columns in parts]


def _escape(cell: Cell) -> Cell:
    return replace(cell, text=escape_unprintable(cell.text))


def _widest(texts: Iterable[str]) -> int:
    """Return the width of the widest text, 0 without any."""
    return max(map(cell_len, texts), default=0)


def _cut(widths: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Split the columns over tables: each has the key columns, and others as they fit."""
    parts = [[*range(keys)]]
    for column in range(keys, len(widths)):
        needed = sum(widths[i] + GAP for i in parts[-1]) + widths[column]
        if len(parts[-1]) > keys and needed > width:
            parts.append([*range(keys)])
        parts[-1].append(column)
    return parts


def _part(table: Table, columns: Sequence[int], fixed: dict[int, int]) -> rich_table.Table:
    part = rich_table.Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1)
    )
    numeric = table.numeric
    for column in columns:
        right = column > 0 and numeric[column]
        part.add_column(
            Text(table.headings[column]),
            width=fixed.get(column),
            justify="right" if right else "left",
            overflow="fold",
            vertical="bottom" if right else "top",
        )
    for row in table.rows:
        cells = [row[column] for column in columns]
        part.add_row(*(Text(cell.text, STYLES.get(cell.tone, "")) for cell in cells))
    return part
