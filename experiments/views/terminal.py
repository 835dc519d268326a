"""Prints pages in a terminal: tables whole at any width, and names of others as text, never as markup."""

import os
from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.console import ConsoleDimensions
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.logs import escape_unprintable

from .report.page import Block, Note, Page, Table

STYLES = {"better": "bold green", "worse": "bold red", "quiet": "dim"}
"""How cells are printed by their tone."""

GAP = 2
"""The number of characters between two columns."""


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
    """Print a page without its charts: the first section, what it shows in sentences, the others, and the facts."""
    if page.title:
        console.print(Text(page.title, style="bold"), soft_wrap=True)
    first, *others = page.sections
    _show_blocks(first.blocks)
    if page.headline:
        console.print(Text.assemble((page.headline, "bold"), *(f" {sentence}" for sentence in page.sentences)))
    for section in others:
        _show_blocks(section.blocks)
    if page.facts:
        console.print()
    for name, value in page.facts:
        console.print(Text(f"{name}: {value}"), soft_wrap=True)


def _show_blocks(blocks: Sequence[Block]) -> None:
    for place, block in enumerate(blocks):
        if isinstance(block, Table):
            if place and isinstance(blocks[place - 1], Table):
                console.print()
            show_table(block)
        elif isinstance(block, Note):
            for sentence in block.sentences:
                console.print(Text(sentence))


def show_table(table: Table) -> None:
    """Print a table, in several parts where it is wider than the console."""
    if table.caption:
        console.print(Text(table.caption, style="bold"))
    for part in tables_within(table, console.width):
        if console.is_terminal or console.is_jupyter:
            console.print(part)
        else:  # without the spaces that fill each line up
            with console.capture() as captured:
                console.print(part)
            lines = (line.rstrip() for line in captured.get().splitlines())
            console.out(*lines, sep="\n", highlight=False)
        console.print()
    if table.note:
        console.print(Text(table.note, style="dim"))


def tables_within(table: Table, width: int) -> list[rich_table.Table]:
    """Return tables of at most this width that have all cells: one, or several with a part of the columns each."""
    # Escaped here, as the widths are measured here.
    rows = [[replace(cell, text=escape_unprintable(cell.text)) for cell in row] for row in table.rows]
    table = replace(table, headings=[*map(escape_unprintable, table.headings)], rows=rows)
    bodies = [max((cell_len(row[i].text) for row in table.rows), default=0) for i in range(len(table.headings))]
    naturals = [max(body, cell_len(heading)) for body, heading in zip(bodies, table.headings, strict=True)]
    if sum(naturals) + GAP * (len(naturals) - 1) <= width:
        return [_part(table, range(len(naturals)), naturals)]
    name = min(naturals[0], max(12, width // 3))
    rest = [
        min(width - name - GAP, max(body, min(natural, max(map(cell_len, heading.split()), default=0), 12)))
        for body, natural, heading in zip(bodies, naturals, table.headings, strict=True)
    ]
    parts, chosen = [], [0]
    for column in range(1, len(naturals)):
        if len(chosen) > 1 and name + sum(GAP + rest[each] for each in (*chosen[1:], column)) > width:
            parts.append(chosen)
            chosen = [0]
        chosen.append(column)
    parts.append(chosen)
    # What is left over goes to the names of the rows.
    lefts = [width - sum(GAP + rest[each] for each in columns[1:]) for columns in parts]
    widest = max(name, min(naturals[0], *lefts))
    return [_part(table, columns, [widest, *rest[1:]]) for columns in parts]


def _part(table: Table, columns: Sequence[int], widths: Sequence[int]) -> rich_table.Table:
    part = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    numeric = table.numeric
    for column in columns:
        right = column > 0 and numeric[column]
        part.add_column(
            Text(table.headings[column]),
            width=widths[column],
            justify="right" if right else "left",
            overflow="fold",
            vertical="bottom" if right else "top",
        )
    for row in table.rows:
        part.add_row(*(Text(row[column].text, STYLES.get(row[column].tone, "")) for column in columns))
    return part
