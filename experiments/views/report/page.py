"""A page of charts and tables as one file that needs no network: its parts as values, and how they become HTML."""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fairbloom import __version__
from fairbloom.server.run_folder.tables import format_csv

from .charts import COLOURS, CONFIG, Series, Spec

HERE = Path(__file__).parent

Tone = Literal["", "better", "worse", "quiet"]
"""How a cell is coloured; what it means is said in words as well."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is read, and the number behind it, which the CSV file has."""

    text: str
    value: float | int | None = None
    tone: Tone = ""

    @property
    def exact(self) -> str | float | int:
        """What the CSV file has."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    name
        What its files are called; a page adds a number where two have the same.
    caption
        What it holds.
    headings
        One a column; the first column names the rows.
    rows
        The cells.
    note
        What is said below it.
    folded
        Whether it is closed until it is asked for.
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
    """A chart.

    Attributes
    ----------
    name
        What its file is called; a page adds a number where two have the same.
    title
        What is read above it.
    description
        What it shows, in words, for those who do not see it.
    spec
        The specification.
    """

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


Block = Table | Charts | Note


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    id: str
    title: str
    intro: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes
    ----------
    title
        What it is about: its heading and the window's title.
    headline
        What comes first: the verdict.
    sentences
        What follows the headline.
    facts
        What it is of, in pairs of a name and a value.
    sections
        Its parts.
    """

    title: str
    headline: str
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def __post_init__(self) -> None:
        """Give charts, and tables, that would have the same name, as of labels that differ in a sign, a number each."""
        taken: set[str] = set()
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


def _with_own_names(section: Section, taken: set[str]) -> Section:
    """Return a section whose charts and tables have names of their own, which are added to those that are taken."""

    def own(kind: str, name: str) -> str:
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        found = next(each for each in names if f"{kind} {each}" not in taken)
        taken.add(f"{kind} {found}")
        return found

    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Table):
            blocks.append(replace(block, name=own("table", block.name)))
        elif isinstance(block, Charts):
            blocks.append(replace(block, charts=[replace(each, name=own("chart", each.name)) for each in block.charts]))
        else:
            blocks.append(block)
    return replace(section, blocks=blocks)


def render(page: Page, *, live: str = "") -> str:
    """Return the page as one HTML file; `live` is a script that renews it from where the page came from.

    Its Content-Security-Policy allows no address at all, and no script but the page's own, by their digests: what a
    client's name says is never run, and nothing is fetched or sent. A live page may ask where it came from.
    """
    style = _theme() + (HERE / "page.css").read_text(encoding="utf-8")
    scripts = [*([_library()] if page.charts or live else []), (HERE / "page.js").read_text(encoding="utf-8")]
    scripts += [live] if live else []
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(style),  # noqa: S704 (ours)
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (ours and the library's)
        policy=policy(scripts, live=bool(live)),
        live=bool(live),
        config=as_script_data(CONFIG),
        specs={chart.name: as_script_data(chart.spec) for chart in page.charts},
        version=__version__,
    )


def policy(scripts: Sequence[str], *, live: bool = False) -> str:
    """Return a Content-Security-Policy under which a page needs no network, and runs these scripts alone.

    A live page may also ask where it came from.
    """
    allowed = " ".join(f"'sha256-{digest_of(script)}'" for script in scripts)
    asked = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"{asked}base-uri 'none'; form-action 'none'"
    )


def digest_of(script: str) -> str:
    """Return the digest by which a Content-Security-Policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def as_script_data(value: Mapping[str, Any]) -> Markup:
    """Return JSON that may stand in a <script>, whatever its texts are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    escaped: dict[str, str | int | None] = {
        "<": r"\u003c",
        ">": r"\u003e",
        "&": r"\u0026",
        "\u2028": r"\u2028",
        "\u2029": r"\u2029",
    }
    return Markup(text.translate(str.maketrans(escaped)))  # noqa: S704 (escaped above)


def to_latex(text: str) -> str:
    """Return text as LaTeX writes it."""
    special: dict[str, str | int | None] = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    special |= {char: rf"\{char}" for char in "&%$#_{}"}
    special |= {
        "±": r"$\pm$",
        "–": "--",
        "−": "$-$",
        "≠": r"$\neq$",
        "×": r"$\times$",
        "≥": r"$\ge$",
        "<": "$<$",
        ">": "$>$",
    }
    return _one_line(text).translate(str.maketrans(special))


def slug(text: str) -> str:
    """Return a text as a part of a file's name or an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _theme() -> str:
    """Return the colours of the page, light and dark, as CSS variables; print is light."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    return f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


@cache
def _library() -> str:
    """Return Vega-Lite and all that it needs, as a script for a page."""
    import vl_convert  # imported late: it starts a JavaScript engine, which takes a second

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError(f"vl-convert-python {version('vl-convert-python')} has a library that ends its own script")
    return script
