"""Write the table and the picture of the four hospitals, from the recipe heart-disease.

`python -m docs.hospitals` runs the missing runs of `fairbloom reproduce heart-disease`, and writes
the table of the page on measurements into docs/data and the picture of the first page into
docs/images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.tables import write_lines
from fairbloom import Reproduction, Run, reproduce
from fairbloom.experiments.results.differences import Difference, difference_of
from fairbloom.server.run_folder.files import CLIENTS

from .figures import svg_of, themed

PICTURE = Path(__file__).parent / "images" / "four-hospitals.svg"
"""The picture of the first page."""

TABLE = Path(__file__).parent / "data" / "hospitals" / "methods.csv"
"""The table of the page."""

FEW = {
    "FedAvg (weighting=examples)": "FedAvg",
    "FedAvg (weighting=uniform)": "FedAvg, uniform weights",
    "q-FedAvg (q=1)": "q-FedAvg (q = 1)",
    "FedMGDA+ (server-lr=0.1)": "FedMGDA+",
    "FedFV (alpha=0.1)": "FedFV (α = 0.1)",
    "DRFA (gamma=0.01)": "DRFA",
    "Pooled training (pooled=true)": "pooled training",
    "Local": "each hospital alone",
}
"""The rows of the first page's picture, with their labels."""

HOSPITALS = {  # sorted by name, as scores are
    "Cleveland": ("#0072B2", "o"),
    "Hungary": ("#56B4E9", "s"),
    "Long Beach": ("#E69F00", "D"),
    "Switzerland": ("#D55E00", "^"),
}
"""Colour and marker of each hospital."""

HEADINGS = (
    "method",
    "worst hospital, %",
    "against FedAvg",
    "better, worse",
    "highest loss",
    "against FedAvg",
    "better, worse",
    "mean, %",
)


@dataclass(frozen=True)
class Served:
    """How a method serves the hospitals.

    Attributes
    ----------
    name
        The method with its parameters.
    scores
        Balanced accuracies in percent, shape (splits, hospitals).
    losses
        Test losses of the same shape; None for personal models, because runs do not record theirs.
    """

    name: str
    scores: NDArray[np.float64]
    losses: NDArray[np.float64] | None

    @property
    def worst(self) -> NDArray[np.float64]:
        """The balanced accuracy of the worst-served hospital, by split."""
        lowest: NDArray[np.float64] = self.scores.min(axis=1)
        return lowest

    @property
    def highest(self) -> NDArray[np.float64] | None:
        """The highest loss of a hospital, by split."""
        return None if self.losses is None else self.losses.max(axis=1)


def served(reproduction: Reproduction) -> list[Served]:
    """Return how each row of the recipe serves the hospitals; the first row is FedAvg."""
    return [
        _read_runs(outcome.name, outcome.row.evaluated, [*outcome.runs.values()])
        for outcome in reproduction.outcomes
    ]


def _read_runs(name: str, evaluated: str, runs: Sequence[Run]) -> Served:
    finals = [run.final(model=evaluated) for run in runs]
    scores = np.array([[final[hospital] for hospital in sorted(final)] for final in finals])
    if evaluated == "personal":
        return Served(name, scores, None)
    return Served(name, scores, np.array([_losses(run) for run in runs]))


def _losses(run: Run) -> list[float]:
    """Return the hospitals' test losses under the final model."""
    rows = [row for row in CLIENTS.read(run.folder) if int(row["round"]) == run.rounds_done]
    return [
        float(row["test_loss_of_global_model"])
        for row in sorted(rows, key=lambda row: row["client"])
    ]


def against(
    values: NDArray[np.float64], base: NDArray[np.float64], *, lower_is_better: bool = False
) -> Difference:
    """Return by how much a method is better than FedAvg, from their values by split.

    The error is over splits of the same patients; with a `test_share` it would be over patients.
    """
    return difference_of(base - values if lower_is_better else values - base)


def is_bold(difference: Difference) -> bool:
    """Return whether a difference is larger than two standard errors."""
    return abs(difference.mean) > 2.0 * difference.error


# The table ----------------------------------------------------------------------------------------


def table(methods: Sequence[Served]) -> list[tuple[str, ...]]:
    """Return the rows of the table, headings first; bold if above two standard errors."""
    return [HEADINGS, *(_cells(each, methods[0]) for each in methods)]


def _cells(method: Served, base: Served) -> tuple[str, ...]:
    score = ("–", "–") if method is base else _cells_against(method.worst, base.worst, 1)
    loss = ("–", "–")
    highest = "–"
    if method.highest is not None:
        highest = _number(method.highest, 3)
        if method is not base and base.highest is not None:
            loss = _cells_against(method.highest, base.highest, 3, lower_is_better=True)
    mean = _number(method.scores.mean(axis=1), 1)
    return (method.name, _number(method.worst, 1), *score, highest, *loss, mean)


def _number(values: NDArray[np.float64], decimals: int) -> str:
    found = difference_of(values)  # the difference from 0: mean and standard error
    return f"{found.mean:.{decimals}f} ± {found.error:.{decimals}f}"


def _cells_against(
    values: NDArray[np.float64],
    base: NDArray[np.float64],
    decimals: int,
    *,
    lower_is_better: bool = False,
) -> tuple[str, str]:
    """Return the difference to FedAvg, and in how many splits it is better and worse."""
    found = against(values, base, lower_is_better=lower_is_better)
    mean = 0.0 - found.mean if lower_is_better else found.mean
    text = f"{mean:+.{decimals}f} ± {found.error:.{decimals}f}".replace("-", "−")
    if is_bold(found):
        text = f"**{text}**"
    return text, f"{found.better}, {found.worse}"


# The picture --------------------------------------------------------------------------------------


def picture(methods: Sequence[Served]) -> Figure:
    """Return the first page's figure: each hospital's mean balanced accuracy by method."""
    chosen = {
        FEW[method.name]: method.scores.mean(axis=0) for method in methods if method.name in FEW
    }
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.2, 0.28 * len(chosen) + 0.9), layout="constrained")
        axes = figure.subplots()
        for place, values in enumerate(reversed(chosen.values())):
            axes.plot(
                [values.min(), values.max()],
                [place, place],
                color="#CCCCCC",
                linewidth=2.5,
                zorder=1,
            )
        for column, (name, (colour, marker)) in enumerate(HOSPITALS.items()):
            scores = [values[column] for values in reversed(chosen.values())]
            axes.scatter(
                scores, range(len(chosen)), color=colour, marker=marker, s=34, label=name, zorder=2
            )
        axes.set_yticks(range(len(chosen)), [*reversed(chosen)])
        axes.set_xlabel(
            "balanced accuracy over the hospital's test patients, %, mean over 20 splits"
        )
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=len(HOSPITALS), frameon=False)
    return figure


if __name__ == "__main__":
    found = served(reproduce("heart-disease"))
    write_lines(TABLE, table(found))
    with themed():
        PICTURE.write_bytes(svg_of(picture(found)))
