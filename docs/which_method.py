"""Write the tables, sentences and figure of the page on which method helps whom.

`python -m docs.which_method` reads docs/data/tuned, which `benchmarks.methods` and
`benchmarks.federations.describe` write: the values of each method's chosen arm by seed, and a row
about each federation. Federations without both are named as not run.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, cycle
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from benchmarks.federations.describe import COLUMNS
from benchmarks.methods import BASELINE, SEARCHED, WORKLOADS, gain
from benchmarks.tables import read_csv
from fairbloom.experiments.results.differences import Difference, correct_by_holm, differences_of
from fairbloom.experiments.studies.search import VALIDATION_SHARE
from fairbloom.protocol.scores import ERRORS
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS

from .figures import svg_of, themed

DATA = Path(__file__).parent / "data"

PICTURE = Path(__file__).parent / "images" / "which-method.svg"

FAMILIES = {
    "averages": ("fedavg", "fedprox", "fedavgn", "scaffold", "feddyn"),
    "weights by losses or accuracies": (
        *("qfedavg", "qfedsgd", "term", "afl", "drfa", "deltafl", "propfair", "gifair"),
        *("vred", "semivred", "eagle", "fedfa", "aaggff", "fedpw"),
    ),
    "common descent": (
        *("fedmgda", "fedmgdaplus", "mgdaprox", "fedfv", "adafed", "fedmdfg", "fedlf", "fairmoo"),
    ),
    "fairness between groups": ("fairfed", "fcfl"),
    "personal models": ("ditto", "local"),
}
"""The methods of each family, as in `strategies/registry.py`."""

FAIR = {*FAMILIES["weights by losses or accuracies"], *FAMILIES["common descent"]}
"""The methods that are fair with a common model."""

LEVEL = 0.05

MEASURES = ("worst_10", "mean")

FEWEST = 4
"""The fewest data sets of which a correlation says anything."""

Values = NDArray[np.float64]


# The data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """A federation: its row of federations.csv, and each method's measures by seed."""

    row: Mapping[str, str]
    values: Mapping[str, Mapping[int, Mapping[str, float]]]

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.row["workload"]

    @property
    def has_fewer_methods(self) -> bool:
        """Whether not all methods are searched on it, since it is large."""
        return not {*SEARCHED} <= {*WORKLOADS[self.name].methods}

    @property
    def is_error(self) -> bool:
        """Whether lower scores are better, as of errors of a quantity; others are percentages."""
        return self.row["score"] in ERRORS

    @property
    def test_share(self) -> float:
        """The ratio of test to training examples if seeds split the same rows, else 0."""
        settings = {**WORKLOADS[self.name].settings, "validation-share": VALIDATION_SHARE}
        dealt = "clients" in settings  # each seed deals the data to other clients
        return 0.0 if dealt else TASKS[str(settings["task"])].test_by_train(settings)

    def mean(self, method: str, measure: str) -> float:
        """Return the mean of a measure over the seeds."""
        return float(np.mean([each[measure] for each in self.values[method].values()]))

    @cached_property
    def differences(self) -> Mapping[tuple[str, str], Difference]:
        """The gains over FedAvg by method and measure, tested together with Holm's correction."""
        base = self.values[BASELINE]
        sign = -1.0 if self.is_error else 1.0
        gains = {
            (method, measure): [
                sign * (by_seed[seed][measure] - base[seed][measure])
                for seed in sorted(by_seed.keys() & base.keys())
            ]
            for method, by_seed in self.values.items()
            if method != BASELINE
            for measure in MEASURES
        }
        return differences_of(gains, test_share=self.test_share)

    @property
    def error(self) -> float:
        """The error of the worst tenth under FedAvg: in percent, or in units of the quantity."""
        worst = self.mean(BASELINE, "worst_10")
        return worst if self.is_error else 100.0 - worst

    def removed(self, method: str) -> float:
        """Return the percentage of `error` that a method removes: comparable between scores."""
        if method == BASELINE:
            return 0.0
        return 100.0 * self.differences[method, "worst_10"].mean / self.error

    @property
    def properties(self) -> tuple[float, float, float]:
        """What may predict a gain; see PREDICTORS."""
        mean = self.mean(BASELINE, "mean")
        error = mean if self.is_error else 100.0 - mean
        return (
            float(self.row["cosine"]),
            float(self.row["spread"]) / error,
            float(self.row["largest"]) / float(self.row["smallest"]),
        )

    def describe(self, method: str) -> str:
        """Return a method's gain of the worst tenth on this federation, in words."""
        found = self.differences[method, "worst_10"]
        unit = "" if self.is_error else " points"
        return f"{title(method)} on `{self.name}`: {found.mean:+.{self.digits}f}{unit}"

    @property
    def digits(self) -> int:
        """The decimal places of its scores."""
        return 2 if self.is_error else 1


INKS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#666666")
"""The colours of federations; with four markers, each federation has its own pair."""

PREDICTORS = (
    "mean cosine between updates",
    "spread of scores over mean error",
    "largest over smallest client",
)


def title(method: str) -> str:
    """Return a method's name in tables."""
    return METHODS[method].__name__


def read_federations(folder: Path) -> list[Federation]:
    """Return the federations that a folder has everything of."""
    found = []
    for row in read_csv(folder / "federations.csv", optional=True):
        path = folder / f"{row['workload']}-seeds.csv"
        values: dict[str, dict[int, dict[str, float]]] = {}
        for each in read_csv(path, optional=True):
            measured = {measure: float(each[measure]) for measure in MEASURES}
            values.setdefault(each["method"], {})[int(each["seed"])] = measured
        if BASELINE in values:
            found.append(Federation(row, values))
    return found


def one_a_data_set(federations: Iterable[Federation]) -> list[Federation]:
    """Return the first federation of each data set."""
    return [*{each.row["data"]: each for each in reversed([*federations])}.values()][::-1]


# Ranks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """The methods that ran on all data sets, ranked by the worst tenth: 1 is best."""

    federations: Sequence[Federation]

    @cached_property
    def methods(self) -> list[str]:
        """The methods that all federations have."""
        return [m for m in METHODS if all(m in each.values for each in self.federations)]

    @property
    def enough(self) -> bool:
        """Whether there are enough methods and data sets for ranks."""
        return len(self.methods) > 2 and len(self.federations) > 1

    def of(self, methods: Sequence[str]) -> Values:
        """Return the ranks of some methods, shape (data sets, methods); equal scores share them."""
        scores = [
            [each.mean(m, "worst_10") * (1.0 if each.is_error else -1.0) for m in methods]
            for each in self.federations
        ]
        return np.asarray(stats.rankdata(scores, axis=1))

    @cached_property
    def averages(self) -> dict[str, float]:
        """The average rank of each method, the best first."""
        means = dict(zip(self.methods, self.of(self.methods).mean(axis=0).tolist(), strict=True))
        return dict(sorted(means.items(), key=lambda item: item[1]))

    @property
    def friedman(self) -> float:
        """The p-value of Friedman's test that all methods serve the worst tenth alike."""
        return float(stats.friedmanchisquare(*self.of(self.methods).T).pvalue)

    def removed(self, method: str) -> list[float]:
        """Return the percentage of FedAvg's error that a method removes on each data set."""
        return [each.removed(method) for each in self.federations]

    @cached_property
    def control(self) -> dict[str, float]:
        """The p-values of Wilcoxon's signed ranks against FedAvg with Holm's correction."""
        others = [method for method in self.methods if method != BASELINE]
        p_values = [
            float(stats.wilcoxon(removed).pvalue) if any(removed) else 1.0
            for removed in map(self.removed, others)
        ]
        return dict(zip(others, correct_by_holm(p_values), strict=True))

    @cached_property
    def best(self) -> list[str]:
        """The method of each family with the best average rank."""
        found = [[m for m in self.averages if m in family] for family in FAMILIES.values()]
        return [each[0] for each in found if each]

    @property
    def critical_difference(self) -> float:
        """Nemenyi's critical difference of average ranks of `best` (Demšar 2006)."""
        k = len(self.best)
        q = stats.studentized_range.ppf(1.0 - LEVEL, k, math.inf) / math.sqrt(2.0)
        return float(q * math.sqrt(k * (k + 1) / (6.0 * len(self.federations))))

    @property
    def separated(self) -> list[tuple[str, str]]:
        """The pairs of `best` whose average ranks differ by more, the better one first."""
        means = dict(zip(self.best, self.of(self.best).mean(axis=0).tolist(), strict=True))
        ordered = sorted(means, key=lambda method: means[method])
        limit = self.critical_difference
        return [(a, b) for a, b in combinations(ordered, 2) if means[b] - means[a] > limit]


# Tables -------------------------------------------------------------------------------------------

Table = Sequence[Sequence[str]]


def gains_table(federations: Sequence[Federation], measure: str) -> Table:
    """Return a row a method: its gain over FedAvg on each federation; FedAvg's row has scores."""
    rows = [["method", *(each.name for each in federations)]]
    for method in METHODS:
        if not any(method in each.values for each in federations):
            continue
        cells = []
        for each in federations:
            if method == BASELINE:
                unit = "" if each.is_error else " %"
                cells.append(f"{each.mean(method, measure):.{each.digits}f}{unit}")
            else:
                found = each.differences.get((method, measure))
                cells.append(gain(found, each.digits) if found else "–")
        rows.append([title(method), *cells])
    return rows


def federations_table(federations: Sequence[Federation]) -> Table:
    """Return a row about each federation."""
    rows = [["", "clients", "rows", "largest, smallest", "model", "score", "cosine", "spread"]]
    for each in federations:
        low, mean, high = (f"{float(each.row[name]):.2f}".replace("-", "−") for name in COLUMNS[:3])
        sizes = f"{each.row['largest']}, {each.row['smallest']}"
        about = [each.row[name] for name in ("clients", "rows")]
        spread = f"{float(each.row['spread']):.{each.digits}f}"
        score = {"mae": "MAE"}.get(each.row["score"], each.row["score"].replace("-", " "))
        quantity = each.is_error and each.row["model"] == "logistic"
        model = "linear" if quantity else each.row["model"]
        cosine = f"{mean} ({low} to {high})"
        rows.append([f"`{each.name}`", *about, sizes, model, score, cosine, spread])
    return rows


def ranks_table(ranks: Ranks) -> Table:
    """Return a row a method that ran on all data sets, by average rank."""
    rows = [["method", "average rank", "better, worse than FedAvg", "p, Holm"]]
    for method, rank in ranks.averages.items() if ranks.enough else ():
        removed = np.array(ranks.removed(method))
        counts = f"{(removed > 0.0).sum()}, {(removed < 0.0).sum()}"
        p = f"{ranks.control[method]:.3f}" if method != BASELINE else ""
        rows.append([title(method), f"{rank:.1f}", counts if p else "", p])
    return rows


# Sentences ----------------------------------------------------------------------------------------


def findings(federations: Sequence[Federation], ranks: Ranks) -> list[str]:
    """Return the five sentences of the page; fewer without enough data sets."""
    if not federations:
        return ["No federation was run yet."]
    found = [fair_sentence(federations), local_sentence(federations)]
    if ranks.enough:
        found[1:1] = [rank_sentence(ranks), control_sentence(ranks)]
        found.append(predictor_sentence(ranks))
    return found


def fair_sentence(federations: Sequence[Federation]) -> str:
    """Return where some fair method with a common model helps the worst tenth."""
    helped = [
        max(clear, key=each.removed)
        for each in federations
        if (clear := [m for m in FAIR if is_clear(each, m, 1)])
    ]
    names = [each for each in federations if any(is_clear(each, m, 1) for m in FAIR)]
    sentence = (
        f"**Look at your own clients first:** on {len(names)} of {len(federations)} federations a"
        " fair method with a common model raises the worst 10 %, with an interval without 0"
    )
    if not names:
        return f"{sentence}."
    best = "; ".join(each.describe(m) for each, m in zip(names, helped, strict=True))
    tried = [len(FAIR & each.values.keys()) for each in federations]
    return (
        f"{sentence} ({best}). Of {min(tried)} to {max(tried)} such methods on each, the best is"
        " named, which favours them."
    )


def is_clear(federation: Federation, method: str, sign: int) -> bool:
    """Return whether a method's gain of the worst tenth has a sign, with an interval without 0."""
    found = federation.differences.get((method, "worst_10"))
    return found is not None and found.excludes_zero and sign * found.mean > 0.0


def rank_sentence(ranks: Ranks) -> str:
    """Return the first methods by average rank, and Friedman's test."""
    first = [f"{title(m)} ({rank:.1f})" for m, rank in [*ranks.averages.items()][:3]]
    differ = "finds a" if ranks.friedman < LEVEL else "finds no"
    return (
        f"**By average rank** of {len(ranks.methods)} methods over {len(ranks.federations)} data"
        f" sets, {join(first)} come first, FedAvg has {ranks.averages[BASELINE]:.1f};"
        f" Friedman's test {differ} difference (p = {ranks.friedman:.2g})."
    )


def control_sentence(ranks: Ranks) -> str:
    """Return which methods differ from FedAvg over the data sets."""
    clear = [method for method, p in ranks.control.items() if p < LEVEL]
    better = [title(m) for m in clear if np.median(ranks.removed(m)) > 0.0]
    worse = [title(m) for m in clear if np.median(ranks.removed(m)) <= 0.0]
    parts = [f"{join(better)} better"] * bool(better) + [f"{join(worse)} worse"] * bool(worse)
    start = "**Against FedAvg**, Wilcoxon's signed ranks with Holm's correction"
    if not parts:
        least = min(1.0, 2.0 ** (1 - len(ranks.federations)) * len(ranks.control))
        able = f": with {len(ranks.federations)} data sets, the least possible p is {least:.2g}"
        return f"{start} find no method better or worse{able if least >= LEVEL else ''}."
    return f"{start} find {join(parts)}."


def local_sentence(federations: Sequence[Federation]) -> str:
    """Return how often clients are served better alone, or worse."""
    ran = [each for each in federations if "local" in each.values]
    better = [f"`{each.name}`" for each in ran if is_clear(each, "local", 1)]
    worse = [f"`{each.name}`" for each in ran if is_clear(each, "local", -1)]
    return (
        f"**Try each client alone:** Local serves the worst 10 % clearly better on {len(better)} of"
        f" {len(ran)} federations ({join(better) or 'none'}) and clearly worse on {len(worse)}"
        f" ({join(worse) or 'none'})."
    )


def predictor_sentence(ranks: Ranks) -> str:
    """Return which property goes best with the gains of fair methods."""
    n = len(ranks.federations)
    if n < FEWEST:
        return f"**What predicts a gain** is not known from {n} data sets."
    found = correlations(ranks)
    place = min(range(len(found)), key=lambda k: found[k][1])
    rho, p = found[place]
    claim = "goes with" if p * len(found) < LEVEL else "cannot be shown to go with"
    signed = f"{rho:+.2f}".replace("-", "−")
    return (
        f"**What predicts a gain:** of three properties, the {PREDICTORS[place]} {claim} the gain"
        f" of the median fair method (Spearman's ρ = {signed}, p = {p:.2g} before the correction"
        f" for three, {n} data sets)."
    )


def correlations(ranks: Ranks) -> list[tuple[float, float]]:
    """Return Spearman's correlation and its p-value of each property with `fair_gain`."""
    gains = [fair_gain(each) for each in ranks.federations]
    found = []
    for column in zip(*(each.properties for each in ranks.federations), strict=True):
        varies = np.ptp(column) > 0.0 and np.ptp(gains) > 0.0
        tested = stats.spearmanr(column, gains) if varies else None
        found.append((float(tested.statistic), float(tested.pvalue)) if tested else (0.0, 1.0))
    return found


def fair_gain(federation: Federation) -> float:
    """Return the percentage of FedAvg's error that the median fair method removes."""
    fair = [method for method in federation.values if method in FAIR]
    return float(np.median([federation.removed(method) for method in fair]))


def nemenyi(ranks: Ranks) -> str:
    """Return which of the families' best methods the data separate, in words."""
    if not ranks.enough or len(ranks.best) < 2:
        return "There are too few data sets to rank methods."
    means = ranks.of(ranks.best).mean(axis=0)
    listed = [f"{title(m)} {rank:.2f}" for m, rank in zip(ranks.best, means, strict=True)]
    sentences = [
        f"Average ranks of each family's best: {', '.join(listed)}. The critical difference is"
        f" {ranks.critical_difference:.2f}."
    ]
    found = ranks.separated
    pairs = [*combinations(ranks.best, 2)]
    rest = [pair for pair in pairs if pair not in found and pair[::-1] not in found]
    if found:
        sentences.append(f"The data separate {join([between(pair, ' from ') for pair in found])}.")
    if not found:
        sentences.append("They differ by less: the data cannot separate any two of these methods.")
    elif rest:
        words = ", nor ".join(between(pair, " and ") for pair in rest)
        sentences.append(f"They cannot separate {words}.")
    return " ".join(sentences)


def between(pair: tuple[str, str], word: str) -> str:
    """Return two methods with a word between them."""
    return word.join(map(title, pair))


def not_run(federations: Sequence[Federation]) -> str:
    """Return the workloads without results, and those that share their data with another."""
    missing = [f"`{name}`" for name in WORKLOADS if name not in [f.name for f in federations]]
    counted = one_a_data_set(federations)
    left_out = [f"`{each.name}`" for each in federations if each not in counted]
    sentences = [f"Not run yet: {join(missing)}."] * bool(missing)
    if left_out:
        sentences.append(
            f"{join(left_out)} shares its data with another one and is left out of ranks."
            if len(left_out) == 1
            else f"{join(left_out)} share their data with others and are left out of ranks."
        )
    return " ".join(sentences)


def to_try(ranks: Ranks) -> str:
    """Return the methods to begin with, as the page on comparisons lists them."""
    if not ranks.enough:
        return "Begin with `fedavg`, one method of each family, and `local`."
    begin = dict.fromkeys((BASELINE, *ranks.best, "local"))
    names = ",".join(begin)
    return (
        f"Begin with the best of each family over {len(ranks.federations)} data sets:"
        f" `--methods {names}`."
    )


def join(names: Sequence[str]) -> str:
    """Return names as an enumeration, "" of none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


# The figure ---------------------------------------------------------------------------------------


def picture(federations: Sequence[Federation]) -> Figure:
    """Return the figure: the median fair method's gain against each property."""
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(7.2, 3.3), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for place, (axes, heading) in enumerate(zip(panels, PREDICTORS, strict=True)):
            axes.axhline(0.0, color="#B0B0B0", linewidth=0.8, zorder=1)
            for each, color, marker in zip(federations, cycle(INKS), cycle("osD^"), strict=False):
                axes.scatter(
                    [each.properties[place]],
                    [fair_gain(each)],
                    color=color,
                    marker=marker,
                    label=each.name,
                    s=26,
                    zorder=2,
                )
            axes.set_xlabel(heading)
            axes.margins(x=0.1, y=0.1)
            axes.spines[["top", "right"]].set_visible(False)
        panels[2].set_xscale("log")
        panels[0].set_ylabel("error of the worst 10 % removed, %")
        if federations:
            handles = panels[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside upper center", ncols=6, frameon=False)
    return figure


# Files --------------------------------------------------------------------------------------------


def write(tuned: Path, out: Path, picture_file: Path) -> None:
    """Write all files that derive from a folder of results."""
    federations = read_federations(tuned)
    ranks = Ranks(one_a_data_set(federations))
    out.mkdir(exist_ok=True)
    largest = [each for each in federations if each.has_fewer_methods]
    others = [each for each in federations if not each.has_fewer_methods]
    for name, table in {
        "worst": gains_table(others, "worst_10"),
        "worst-largest": gains_table(largest, "worst_10"),
        "mean": gains_table(others, "mean"),
        "mean-largest": gains_table(largest, "mean"),
        "federations": federations_table(federations),
        "ranks": ranks_table(ranks),
    }.items():
        blank = [["–"] * len(table[0])] if len(table) == 1 else []  # Sphinx needs a row
        write_rows(out / f"{name}.csv", [*table, *blank])
    for name, text in {
        "findings": "\n".join(f"1. {sentence}" for sentence in findings(federations, ranks)),
        "nemenyi": nemenyi(ranks),
        "not-run": not_run(federations),
        "try": to_try(ranks),
    }.items():
        (out / f"{name}.txt").write_text(f"{text}\n")
    with themed():
        picture_file.write_bytes(svg_of(picture(federations)))


def write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a table."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    write(DATA / "tuned", DATA / "which-method", PICTURE)
