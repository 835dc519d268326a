"""A page as Markdown, in which every text is shown as it is: others have chosen the names of clients and columns."""

import re
from collections.abc import Iterable, Iterator

from fairbloom import __version__
from fairbloom.tasks.files.agreement import make_printable

from .report.page import Block, Charts, Listing, Page, Table

HOME = "https://github.com/fairbloom/fairbloom"


def render(page: Page) -> str:
    """Return the page as Markdown, without its charts."""
    parts = [f"# {escaped(page.title)}", escaped(" ".join([page.headline, *page.sentences]))]
    parts += [f"{escaped(name)}: {escaped(value)}" for name, value in page.facts]
    for section in page.sections:
        parts += [f"## {escaped(section.title)}", escaped(section.intro)]
        parts += [part for block in section.blocks for part in _render_block(block)]
    parts.append(f"Made by [Fairbloom]({HOME}) {__version__}.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _render_block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield escaped(block.caption)
        lines = [block.headings, *([cell.text for cell in row] for row in block.rows)]
        head, *rows = [_row(map(escaped, line)) for line in lines]
        yield "\n".join([head, _row(["---"] * len(block.headings)), *rows])
        yield escaped(block.note)
    elif isinstance(block, Listing):
        yield fenced(block.code, block.language)
    elif not isinstance(block, Charts):
        mark = "- " if len(block.sentences) > 1 else ""
        yield "\n".join(f"{mark}{escaped(sentence)}" for sentence in block.sentences)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: no markup, HTML, link or further line comes of it."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!@^]|:(?=\S))|(?<=www)(?=\.)", r"\\\1", make_printable(text))


def fenced(code: str, language: str) -> str:
    """Return a block of code with a fence that is longer than any in the code."""
    fence = "`" * max(3, *(len(each) + 1 for each in re.findall("`+", code)), 3)
    return f"{fence}{language}\n{code}\n{fence}"
