"""The rows behind a report's charts: records of runs over seeds, thinned."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.scores import Score
from fairbloom.text import text_if

from ..render.theme import Series
from ..results.noise import EXACT, REACH, Values
from ..results.run import Run
from ..results.tables import is_shown
from .charts import series_of, short, thin

# So many rounds a curve has at most.
CURVE_ROUNDS = 60

# Up to this many clients are shown one by one; of more, the worst and best served.
NAMED = 40
WORST_SHOWN = 20
BEST_SHOWN = 10


@dataclass(frozen=True)
class Line:
    """A method in charts: its runs, one per seed, and the model shown, global or personal.

    `same_runs_as` is the label of the line that has the same runs and stands for their global
    models.
    """

    label: str
    runs: Sequence[Run]
    model: str = "global"
    same_runs_as: str = ""


@dataclass(frozen=True)
class Scene:
    """The subject of the sections of a report.

    The first line is the baseline, and personal models are lines of their own. `shown` are the
    clients that are shown one by one, from the worst served to the best by the baseline.
    `first_only`: single clients are shown for the first seed only, because each
    seed deals the data again.
    """

    lines: Sequence[Line]
    score: Score
    shown: Sequence[str]
    first_only: bool
    clients: int

    @property
    def series(self) -> list[Series]:
        """How the lines look."""
        labels = {line.label: line.model for line in self.lines}
        return series_of(
            [*labels],
            self.lines[0].label,
            [name for name, model in labels.items() if model == "personal"],
        )

    @property
    def trained(self) -> list[Line]:
        """The lines, except for personal models that come from the same runs as another."""
        return [line for line in self.lines if not line.same_runs_as]


def axis_title(score: Score) -> str:
    """Return the title of a score's axis: its name, unit and direction."""
    return f"test {score.title}{text_if(score.higher_is_better, ', higher is better')}"


def worst_first(values: Values, score: Score, noise: Values = EXACT) -> list[str]:
    """Return the clients from the worst served to the best; by name if scores have noise."""
    return sorted(
        values, key=lambda client: (0.0 if noise else score.better(values[client], 0.0), client)
    )


def spanned(values: Values, noise: Values) -> list[Values]:
    """Return values as if of seeds for a chart: also with the ends of their 95 % intervals."""
    return [
        {client: value + reach * noise.get(client, 0.0) for client, value in values.items()}
        for reach in ((-REACH, 0.0, REACH) if noise else (0.0,))
    ]


def shown_of(clients: Sequence[str]) -> list[str]:
    """Return which clients are shown of those from the worst served to the best."""
    return [*clients] if len(clients) <= NAMED else [*clients[:WORST_SHOWN], *clients[-BEST_SHOWN:]]


# Over rounds --------------------------------------------------------------------------------------


def curves(lines: Iterable[Line], measure: str) -> list[dict[str, Any]]:
    """Return a measure of each line over thinned rounds: mean, lowest and highest of the runs.

    Rounds that not all runs of a line have are left out, and so are lines without any.
    """
    rows = []
    for line in lines:
        by_run = [
            run.rounds.set_index("round").get(f"{run.score.column(line.model)}_{measure}", {})
            for run in line.runs
        ]
        rows += curve(line.label, by_run)
    return rows


def curve(label: str, by_run: Iterable[Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return a line over thinned rounds: mean, lowest and highest of the runs' numbers by round.

    Rounds without a number of each run are left out.
    """
    shown = [
        {number: value for number, value in values.items() if is_shown(value)} for values in by_run
    ]
    shared = set.intersection(*map(set, shown))
    return [
        {"round": number, "method": label} | mean_and_range([values[number] for values in shown])
        for number in thin(sorted(shared), CURVE_ROUNDS)
    ]


def mean_and_range(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean of values as `value`, the lowest as `low`, and the highest as `high`."""
    return {
        "value": short(float(np.mean(values))),
        "low": short(min(values)),
        "high": short(max(values)),
    }


def sorted_scores(by_seed: Sequence[Mapping[str, float]], score: Score) -> NDArray[np.float64]:
    """Return the scores of each seed from the worst client to the best, shape (seeds, clients).

    A seed with fewer clients than another, some of which have no score, is stretched to as many.
    """
    rows = [np.sort(list(values.values())) for values in by_seed]
    rows = [row if score.higher_is_better else row[::-1] for row in rows]
    most = max(len(row) for row in rows)
    places = np.linspace(0.0, 1.0, most)
    return np.array(
        [
            row if len(row) == most else np.interp(places, np.linspace(0.0, 1.0, len(row)), row)
            for row in rows
        ]
    )
