"""The measures that recipes name, of a run: over clients, of single ones, and between groups."""

import math
import re
from collections.abc import Mapping

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.server.fairness import count_of_share
from fairbloom.server.run_folder.rows import MEASURES

from ..recipes.recipe import CLIENT, GAP, PERCENTILES, Case, parse_gap
from .groups import ALL
from .run import Run, final_of, measures

BARE = ("angle", "jain", "gini", "entropy", "cosine")
"""Measures without a unit, but for the radians of the angle."""


def decimals(measure: str) -> int:
    """Return with how many decimals tables have a measure: as papers print them."""
    return 3 if measure in BARE else 2


def in_title(measure: str) -> str:
    """Return what tables of recipes call a measure; the worst of any number of clients is "worst 10 %"."""
    if measure.startswith((CLIENT, GAP)):
        return _named_title(measure)
    if measure in PERCENTILES:
        return f"{PERCENTILES[measure]:.0f}th percentile"
    return re.sub(r"^(worst|best) (\d+)$", r"\1 \2 %", measure.replace("_", " "))


LARGER_CLASS = "larger class, %"
"""What tables call the share of a client's test examples that are of the larger one of two classes."""


def measure_title(measure: str, clients: int) -> str:
    """Return what tables call a measure over so many clients: "worst 10 %", which of four clients is "worst client"."""
    if measure.startswith((CLIENT, GAP)):
        return _named_title(measure)
    end, _, share = measure.partition("_")
    if end in ("worst", "best") and (not share or count_of_share(int(share), clients) == 1):
        return f"{end} client"
    return f"{end} {share} %" if share.isdigit() else measure.replace("_", " ")


def _named_title(measure: str) -> str:
    """Return what tables call a measure that holds a name: the client's, or "selection rate gap, site-a"."""
    if measure.startswith(CLIENT):
        return measure.removeprefix(CLIENT)
    score, client = parse_gap(measure)
    return f"{score.replace('-', ' ')} gap" + (f", {client}" if client else "")


def measures_of(run: Run, case: Case) -> dict[str, float]:
    """Return the measures of a row's run."""
    evaluated = case.row.evaluated
    values = scores_of(run, evaluated)
    spread = measures(values, run.score)
    return {measure: _measure(measure, run, evaluated, values, spread) for measure in case.recipe.measures}


def scores_of(run: Run, evaluated: str) -> dict[str, float]:
    """Return each client's score under the final model that a row evaluates: of attackers too, as papers print them."""
    if not (values := run.final(model=evaluated, hostile=True)):
        if evaluated == "global":
            return final_of(run)  # which raises
        raise FairbloomError(
            f"{run.folder} has no personal models: leave evaluated out, or take a method that has some"
        )
    return values


def over_rounds(run: Run, measure: str, model: str) -> dict[int, float]:
    """Return a measure over the clients after each round that has it."""
    column = f"{run.score.column(model)}_{measure}"
    return {int(row["round"]): float(row[column]) for row in run.rows_of_rounds() if row.get(column)}


def _measure(measure: str, run: Run, evaluated: str, values: Mapping[str, float], spread: Mapping[str, float]) -> float:
    """Return one measure of a run, of which the scores by client and their spread are known."""
    if measure in MEASURES:
        return spread[measure]
    if measure in PERCENTILES:
        return float(np.percentile([*values.values()], PERCENTILES[measure]))
    if measure == "angle":
        return math.acos(min(1.0, spread["cosine"]))
    if measure == "uniform":
        examples = run.test_examples(hostile=True)
        return sum(examples[name] * value for name, value in values.items()) / sum(examples[name] for name in values)
    if measure.startswith(GAP):
        return _gap(measure, run, evaluated)
    name = measure.removeprefix(CLIENT)
    if name not in values:
        raise FairbloomError(f"{measure}: {run.folder} has no client of that name: there are {', '.join(values)}")
    return values[name]


def _gap(measure: str, run: Run, evaluated: str) -> float:
    """Return how far the groups of the first grouping are apart in a score: a client's, or those over all clients."""
    score, client = parse_gap(measure)
    if (report := run.by_group(evaluated)) is None:
        raise FairbloomError(f"{measure}: {run.folder} has no groups: name them, as the setting csv.group = 'sex' does")
    if score not in (sizes := report.sizes(client)):
        raise FairbloomError(
            f"{measure}: {run.folder} has no such gap: of {client or ALL} there are gaps in "
            f"{', '.join(sizes) or 'nothing'}, and {', '.join(report.clients) or 'no client'} report groups"
        )
    return sizes[score]
