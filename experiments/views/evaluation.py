"""How the command line shows what a run's model does for a site that took no part in it."""

from rich.markup import escape

from ..results.evaluation import Evaluation
from .tables import Grid, console, show_grid


def evaluation_grid(found: Evaluation) -> Grid:
    """Return the scores of the site, before and after, above those of the run's clients."""
    shown = [score for score in found.scores if score.name in found.before or score.name in found.others]
    rows = [
        [
            escape(name),
            "" if count is None else str(count),
            *(score.written(values[score.name]) if score.name in values else "-" for score in shown),
        ]
        for name, count, values in found.rows()
    ]
    title = f"{escape(str(found.run))} at {escape(found.client)}, {found.train_examples} examples to train on"
    headings = ["", "test examples", *(score.name for score in shown)]
    return Grid(headings, rows, title, "")


def show_evaluation(found: Evaluation) -> None:
    """Print the table, and what it means."""
    show_grid(evaluation_grid(found))
    for sentence in found.sentences():
        console.print(escape(sentence), soft_wrap=True)
    if found.kept is not None:
        console.print(
            f"kept: {escape(str(found.kept))}, which fairbloom predict reads"
            f"{', its personal model by --model personal' if found.after else ''}",
            soft_wrap=True,
        )
