"""A page as a value: sections of tables, charts and notes for the renderers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from fairbloom.errors import FairbloomError

from .theme import Series, Spec

# The colour of a cell; text repeats its meaning.
Tone = Literal["", "better", "worse", "quiet"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the number behind it."""

    text: str
    value: float | int | None = None
    tone: Tone = ""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the cell of a value as Python writes it."""
        return cls(str(value), value if isinstance(value, int | float) else None)


@dataclass(frozen=True)
class Table:
    """A table; a folded one is closed in a report, and a terminal shows its ends.

    The first `keys` columns say what a row is about: each part of a wide table has them. `hidden`
    is the number of rows that a folded table lacks between its ends; a terminal counts them as
    `nouns`.
    """

    name: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False
    keys: int = 1
    hidden: int = 0
    nouns: str = "rows"

    kind = "table"

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [self._is_numeric(column) for column in range(len(self.headings))]

    def _is_numeric(self, column: int) -> bool:
        return any(row[column].value is not None for row in self.rows)


@dataclass(frozen=True)
class Chart:
    """A chart: its specification, and a description for those who do not see it."""

    name: str
    title: str
    description: str
    spec: Spec


@dataclass(frozen=True)
class Charts:
    """Charts side by side with one legend.

    Three narrow ones share a row if there is room.
    """

    charts: Sequence[Chart]
    legend: Sequence[Series] = ()
    narrow: bool = False

    kind = "charts"


@dataclass(frozen=True)
class Note:
    """A paragraph, or a list of sentences."""

    sentences: Sequence[str]

    kind = "note"


Block = Table | Charts | Note


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    id: str
    title: str
    intro: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """The page of a result: title, sentences with the most important first, sections."""

    title: str
    headline: str
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]]
    # in brief, which a terminal and a notebook have as well as a report
    sections: Sequence[Section]
    # only the report has these, which take longer to make
    details: Callable[[], Sequence[Section]] = tuple
    # where files lie, by what they are; a report does not say it
    files: Sequence[tuple[str, str]] = ()
    figure: Callable[[], Charts] | None = None
    # only a report has these, before the others
    about: Sequence[Section] = ()

    def make_figure(self) -> Charts:
        """Return the charts of the figure; raise FairbloomError where there is nothing to draw."""
        if self.figure is None:
            raise FairbloomError(f"{self.title}: there is nothing to draw")
        return self.figure()


def slug(text: str) -> str:
    """Return a text as a part of a file's name or an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
