"""What the command line shows of a recommendation: the answer in sentences, and how the candidates came out."""

from rich.markup import escape

from ..results.recommendation import FILE, Recommendation
from .tables import Digits, Grid, console, show_grid


def show_recommendation(found: Recommendation) -> None:
    """Print the answer, how far the candidates came, and the commands that run it."""
    for sentence in found.sentences:
        console.print(escape(sentence))
    console.print()
    if found.tried:
        show_grid(tried_grid(found))
    console.print(f"run it:    {escape(found.command)}", soft_wrap=True)
    console.print(f"deploy it: {escape(found.deploy)}", soft_wrap=True)
    console.print(f"all of it: {escape(str(found.folder / FILE))}", soft_wrap=True)


def tried_grid(found: Recommendation) -> Grid:
    """Return the table of the candidates, those that came furthest first."""
    digits = Digits.of(found.judged, (each.value for each in found.tried))
    rows = [
        (
            escape(each.method),
            str(each.rounds),
            str(each.seeds),
            digits.number(each.value),
            digits.number(each.misses) if each.misses else "-",
        )
        for each in found.tried
    ]
    return Grid(
        ("method", "rounds", "seeds", escape(found.gain.measure), "misses by"),
        rows,
        title=escape(f"{found.judged.title} on validation examples, by which candidates were chosen"),
        caption="Numbers after different rounds, or with different seeds, are not comparable.",
    )
