"""A page as its readers get it: what it would fetch or run, and its tables."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Parsed(HTMLParser):
    """The parts of a page that tests look at.

    Attributes
    ----------
    tags
        Every start tag with its attributes.
    scripts, styles
        What each <script> without a type, and each <style>, holds.
    data
        The JSON of each <script> with an id.
    tables
        By id, the texts of a table's rows, its headings first.
    text
        What is read outside of scripts and styles.
    """

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def of(cls, html: str) -> "Parsed":
        page = cls()
        HTMLParser.__init__(page)
        page._table = ""
        page._holder = ("", {})
        page._in_cell = False
        page.feed(html)
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        self.tags.append((tag, about))
        if tag in ("script", "style"):
            self._holder = (tag, about)
        if tag == "table":
            self._table = about["id"].removeprefix("table-")
            self.tables[self._table] = []
        if tag == "tr" and self._table:
            self.tables[self._table].append([])
        if tag in ("th", "td") and self._table:
            self.tables[self._table][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._holder = ("", {})
        if tag in ("th", "td"):
            self._in_cell = False
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        tag, about = self._holder
        if tag == "script" and "id" in about:
            self.data[about["id"]] = json.loads(data)
        elif tag == "script":
            self.scripts.append(data)
        elif tag == "style":
            self.styles.append(data)
        else:
            self.text += data
            if self._in_cell:
                self.tables[self._table][-1][-1] += data

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a table, by its headings."""
        headings, *rows = self.tables[name]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    def chart(self, name: str) -> dict[str, Any]:
        return self.data[f"spec-{name}"]
