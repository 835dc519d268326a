"""What is shown of a result, as values: a page has sections of tables, charts and notes. Renderers make text of it."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar
from urllib.parse import quote

from fairbloom.server.run_folder.tables import format_csv

from .charts import Series, Spec

Tone = Literal["", "better", "worse", "quiet"]
"""How a cell is coloured; what it means is said in words as well."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is read, and the number behind it, which the CSV file has."""

    text: str
    value: float | int | None = None
    tone: Tone = ""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the cell of a value as Python writes it."""
        return cls(str(value), value if isinstance(value, int | float) else None)

    @property
    def exact(self) -> str | float | int:
        """What the CSV file has."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Table:
    """A table; `folded` closes it until it is asked for.

    Its files are called by its name, to which a page adds a number where two have the same.
    """

    name: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False

    kind = "table"

    @property
    def csv(self) -> str:
        """The table as CSV, with all digits; headings that are the same get a number."""
        columns = tuple(
            heading if heading not in self.headings[:i] else f"{heading} {i + 1}"
            for i, heading in enumerate(self.headings)
        )
        rows = [dict(zip(columns, (cell.exact for cell in row), strict=True)) for row in self.rows]
        return format_csv(columns, rows, header=True)

    @property
    def latex(self) -> str:
        """The table as LaTeX, for the package booktabs."""
        align = "".join("r" if numeric else "l" for numeric in self.numeric)
        lines = [[to_latex(heading) for heading in self.headings]]
        lines += [[to_latex(cell.text) for cell in row] for row in self.rows]
        head, *body = [" & ".join(line) + r" \\" for line in lines]
        top = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([f"% {_one_line(self.caption)}", *top, *body, r"\bottomrule", r"\end{tabular}", ""])

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [any(row[i].value is not None for row in self.rows) for i in range(len(self.headings))]

    @property
    def links(self) -> list[tuple[str, str, str]]:
        """Its files, each by its kind, its name and an address that holds all of it."""
        files = (("CSV", "csv", "text/csv", self.csv), ("LaTeX", "tex", "application/x-tex", self.latex))
        return [
            (kind, f"{self.name}.{ending}", f"data:{mime};charset=utf-8,{quote(text)}")
            for kind, ending, mime, text in files
        ]


@dataclass(frozen=True)
class Chart:
    """A chart: its specification, and what it shows in words for those who do not see it."""

    name: str
    title: str
    description: str
    spec: Spec


@dataclass(frozen=True)
class Charts:
    """Charts beside each other that have one legend; narrow ones stand three in a row where there is room."""

    charts: Sequence[Chart]
    legend: Sequence[Series] = ()
    narrow: bool = False

    kind = "charts"


@dataclass(frozen=True)
class Note:
    """A paragraph, or a list of sentences."""

    sentences: Sequence[str]

    kind = "note"


@dataclass(frozen=True)
class Listing:
    """Lines of code."""

    code: str
    language: str

    kind = "listing"


Block = Table | Charts | Note | Listing


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    id: str
    title: str
    intro: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page: its heading, the verdict, what it is of, and its parts."""

    title: str
    headline: str
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def __post_init__(self) -> None:
        """Give charts, and tables, that would have the same name, as of labels that differ in a sign, a number each."""
        taken: set[tuple[type, str]] = set()
        object.__setattr__(self, "sections", [_with_own_names(section, taken) for section in self.sections])

    @property
    def charts(self) -> list[Chart]:
        """All charts, in order."""
        groups = [block for section in self.sections for block in section.blocks if isinstance(block, Charts)]
        return [chart for group in groups for chart in group.charts]

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]


Named = TypeVar("Named", Table, Chart)


def _with_own_names(section: Section, taken: set[tuple[type, str]]) -> Section:
    """Return a section whose charts and tables have names of their own, which are added to those that are taken."""

    def own(named: Named) -> Named:
        names = itertools.chain([named.name], (f"{named.name}-{number}" for number in itertools.count(2)))
        found = next(each for each in names if (type(named), each) not in taken)
        taken.add((type(named), found))
        return replace(named, name=found)

    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Charts):
            blocks.append(replace(block, charts=[*map(own, block.charts)]))
        else:
            blocks.append(own(block) if isinstance(block, Table) else block)
    return replace(section, blocks=blocks)


def to_latex(text: str) -> str:
    """Return text as LaTeX writes it."""
    special: dict[str, str | int | None] = {char: rf"\{char}" for char in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    special |= {"±": r"$\pm$", "−": "$-$", "≠": r"$\neq$", "×": r"$\times$", "≥": r"$\ge$", "<": "$<$", ">": "$>$"}
    return _one_line(text).translate(str.maketrans(special))


def slug(text: str) -> str:
    """Return a text as a part of a file's name or an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _one_line(text: str) -> str:
    return " ".join(text.split())
