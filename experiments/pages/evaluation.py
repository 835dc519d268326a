"""The page of an evaluation: the scores of a site beside those of the run's clients."""

from collections.abc import Mapping, Sequence

from fairbloom.protocol.scores import Score

from ..render.page import Cell, Page, Section, Table
from ..results.evaluation import Evaluation
from ..results.presentation import page_of
from .cells import NONE


@page_of.register
def page_of_evaluation(found: Evaluation) -> Page:
    """Return the page of an evaluation."""
    shown = [score for score in found.scores if score.name in found.before or score.name in found.others]
    rows = [
        [Cell(name), NONE if count is None else Cell.of(count), *_cells(shown, values)]
        for name, count, values in found.rows()
    ]
    table = Table("evaluation", "", ["", "test examples", *(score.name for score in shown)], rows)
    headline, *sentences = found.sentences()
    title = f"{found.run} at {found.client}, {found.train_examples} examples to train on"
    personal = ", its personal model by --model personal" if found.after else ""
    files = [] if found.kept is None else [("kept", f"{found.kept}, which fairbloom predict reads{personal}")]
    return Page(title, headline, sentences, (), [Section("scores", "Scores", "", [table])], files=files)


def _cells(scores: Sequence[Score], values: Mapping[str, float]) -> list[Cell]:
    return [Cell(s.written(values[s.name]), values[s.name]) if s.name in values else NONE for s in scores]
