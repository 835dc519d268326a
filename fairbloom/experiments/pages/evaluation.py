"""The page of an evaluation: a site's scores next to the scores of the run's clients."""

from ..render.page import Cell, Page, Section, Table
from ..results.evaluation import Evaluation
from ..results.presentation import page_of
from .cells import NONE


@page_of.register
def page_of_evaluation(found: Evaluation) -> Page:
    """Return the page of an evaluation."""
    own = [Cell(found.written(score), found.values.get(score.name)) for score in found.scores]
    ranges = [(score, found.range_of(score)) for score in found.scores]
    rows = [
        [Cell(found.site), Cell.of(found.test_examples), *own],
        *(
            [
                Cell(f"{word} of the run's clients"),
                NONE,
                *(
                    NONE if ends is None else Cell(score.written(ends[place]), ends[place])
                    for score, ends in ranges
                ),
            ]
            for place, word in enumerate(("worst", "best") if found.clients else ())
        ),
    ]
    table = Table(
        "evaluation", "", ["", "test examples", *(score.words for score in found.scores)], rows
    )
    headline, *sentences = found.sentences()
    title = f"{found.run} at {found.site}, {found.train_examples} examples to train on"
    return Page(title, headline, sentences, (), [Section("scores", "Scores", "", [table])])
