"""The page of a recommendation: the answer, how far the candidates came, and the commands that run it."""

from ..render.page import Cell, Page, Section, Table
from ..results.plans import RECOMMENDATION
from ..results.presentation import page_of
from ..results.recommendation import Recommendation
from .cells import Digits


@page_of.register
def page_of_recommendation(found: Recommendation) -> Page:
    """Return the page of a recommendation."""
    digits = Digits.of(found.judged, (each.value for each in found.tried))
    rows = [
        [*map(Cell.of, (each.method, each.rounds, each.seeds)), *map(digits.cell, (each.value, each.misses or None))]
        for each in found.tried
    ]
    headings = ("method", "rounds", "seeds", found.gain.measure, "misses by")
    caption = f"{found.judged.title} on validation examples, by which candidates were chosen"
    note = "Numbers after different rounds, or with different seeds, are not comparable."
    sections = [Section("tried", "What was tried", "", [Table("tried", caption, headings, rows, note)])] if rows else []
    headline, *sentences = found.sentences
    files = [("run it", found.command), ("deploy it", found.deploy), ("all of it", str(found.folder / RECOMMENDATION))]
    return Page("", headline, sentences, (), sections, files=files)
