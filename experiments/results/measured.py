"""The measures that recipes name, of a run: over clients, of single ones, between groups, and against a baseline."""

import math
import re
import statistics
from collections.abc import Mapping

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.server.fairness import against_baseline, count_of_share
from fairbloom.server.run_folder.rows import MEASURES

from ..recipes.recipe import AGAINST, CLIENT, GAP, PERCENTILES, Case, parse_gap
from .groups import ALL
from .run import Run, final_of, measures

PERCENT = ("improved", "suffering_improved", "well_degraded")
"""Percentages of clients, which stay so whatever accuracies are in."""

BARE = ("angle", "jain", "gini", "entropy", "cosine")
"""Measures without a unit, but for the radians of the angle."""


def unit_of(measure: str, unit: str) -> str:
    """Return what a measure is in, "percent", "fraction" or "", in a recipe whose accuracies are in `unit`."""
    return "percent" if measure in PERCENT else "" if measure in BARE else unit


def decimals(measure: str, unit: str) -> int:
    """Return with how many decimals tables have a measure: as papers print them."""
    return 2 if unit_of(measure, unit) == "percent" else 3


def in_title(measure: str, unit: str) -> str:
    """Return what tables and figures of recipes call a measure; the worst of any number of clients is "worst 10 %"."""
    if measure.startswith((CLIENT, GAP)):
        return _named_title(measure)
    if measure in PERCENTILES:
        return f"{PERCENTILES[measure]:.0f}th percentile"
    words = re.sub(r"^(worst|best) (\d+)$", r"\1 \2 %", measure.replace("_", " "))
    return f"{words}, %" if unit_of(measure, unit) == "percent" and measure in PERCENT else words


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


def measures_of(run: Run, baseline: Run | None, case: Case) -> dict[str, float]:
    """Return the measures of a row's run in the recipe's unit; `baseline` is that of the same seed."""
    evaluated, unit = case.row.evaluated, case.recipe.unit
    values = scores_of(run, evaluated)
    against = {}
    if baseline is not None:
        base = final_of(baseline)
        change = statistics.fmean(values.values()) - statistics.fmean(base.values())
        against = {**against_baseline(values, base), "overall_change": change}
    spread = measures(values, run.score)
    return {
        measure: scaled(_measure(measure, run, evaluated, values, spread | against), measure, unit)
        for measure in case.recipe.measures
    }


def scores_of(run: Run, evaluated: str) -> dict[str, float]:
    """Return each client's score under the final model that a row evaluates: of attackers too, as papers print them."""
    if not (values := run.final(model=evaluated, hostile=True)):
        if evaluated == "global":
            return final_of(run)  # which raises
        raise FairbloomError(
            f"{run.folder} has no personal models: leave evaluated out, or take a method that has some"
        )
    return values


def scaled(value: float, measure: str, unit: str) -> float:
    """Return a measure of percentages in a recipe's unit."""
    if unit_of(measure, unit) != "fraction":
        return value
    return value / (10_000.0 if measure == "var" else 100.0)


def curve(run: Run, measure: str, evaluated: str, unit: str, window: int) -> dict[int, float]:
    """Return the moving average, over a window of rounds, of a measure after each round that has it."""
    if measure.startswith(CLIENT):
        by_round = run.over_rounds(measure.removeprefix(CLIENT), evaluated)
    elif measure == "improved":
        by_round = _column(run, "percent_of_participants_improved")
    elif measure == "angle":
        by_round = {
            number: _angle(value) for number, value in _column(run, f"{run.score.column(evaluated)}_cosine").items()
        }
    else:
        by_round = _column(run, f"{run.score.column(evaluated)}_{measure}")
    if not by_round:
        raise FairbloomError(
            f"the rounds of {run.folder} have no {measure}: let the recipe draw another measure, or evaluate rounds by "
            "evaluate-every = 1"
        )
    values = [scaled(value, measure, unit) for value in by_round.values()]
    return {number: statistics.fmean(values[max(0, i + 1 - window) : i + 1]) for i, number in enumerate(by_round)}


def _column(run: Run, column: str) -> dict[int, float]:
    return {int(row["round"]): float(row[column]) for row in run.rows_of_rounds() if row.get(column)}


def _measure(measure: str, run: Run, evaluated: str, values: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Return one measure, in percent where it is of accuracies."""
    if measure in MEASURES or measure in AGAINST:
        return known[measure]
    if measure in PERCENTILES:
        return float(np.percentile([*values.values()], PERCENTILES[measure]))
    if measure == "angle":
        return _angle(known["cosine"])
    if measure == "improved":
        return statistics.fmean(curve(run, measure, "global", "percent", 1).values())
    if measure == "uniform":
        examples = run.test_examples()
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


def _angle(cosine: float) -> float:
    return math.acos(min(1.0, cosine))
