"""Write the tables, sentences and figure of the page on which method helps whom.

`python -m docs.which_method` reads docs/data/tuned, which `benchmarks.methods` and
`benchmarks.federations.describe` write: the values of each method's chosen arm by seed, and a row
about each federation. Federations without both are named as not run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from benchmarks.federations.describe import COLUMNS
from benchmarks.federations.prepare import FLIGHTS
from benchmarks.methods import BASELINE, LATER, SEARCHED, WORKLOADS, gain
from benchmarks.tables import read_csv, write_lines
from fairbloom.experiments.results.differences import Difference, differences_of
from fairbloom.experiments.studies.search import VALIDATION_SHARE
from fairbloom.protocol.scores import find_direction
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS

from .figures import svg_of, themed
from .held_out import HeldOut
from .outcomes import LEVEL, Outcome, bound_of, outcomes
from .rule import PROPERTIES, Properties, label_of, leave_one_out, mcnemar, wilson

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
"""The fair methods: those with a common model that is not fair to groups of people alone."""

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
    def is_later(self) -> bool:
        """Whether it is one of the tables that were added when the question was asked."""
        return self.name in (*LATER, *FLIGHTS)

    @property
    def is_error(self) -> bool:
        """Whether lower scores are better, as of errors of a quantity; others are percentages."""
        return find_direction(self.row["score"]) is False

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
        return differences_of(gains, {}, test_share=self.test_share)

    @property
    def bound(self) -> float:
        """The gain of the worst tenth that would matter; see `outcomes`."""
        return bound_of(self.mean(BASELINE, "worst_10"), is_error=self.is_error)

    def gain(self, method: str) -> float:
        """Return a method's gain of the worst tenth over FedAvg, in units of `bound`."""
        if method == BASELINE:
            return 0.0
        return self.differences[method, "worst_10"].mean / self.bound

    @property
    def properties(self) -> Properties:
        """What may predict a gain: `rule.PROPERTIES`, none of them measured on test examples."""
        about = {name: float(self.row[name]) for name in ("cosine", "clients", "smallest")}
        score = float(self.row["validation"])
        error = score if self.is_error else 100.0 - score
        return {
            **about,
            "spread": float(self.row["spread"]) / error,
            "unequal": float(self.row["largest"]) / about["smallest"],
        }

    def describe(self, method: str) -> str:
        """Return a method's gain of the worst tenth on this federation, in units of `bound`."""
        return f"{title(method)} on `{self.name}`: {self.gain(method):+.1f}"

    @property
    def digits(self) -> int:
        """The decimal places of its scores."""
        return 2 if self.is_error else 1

    def cell(self, method: str, measure: str) -> str:
        """Return FedAvg's score, or another method's gain over it; – if the method did not run."""
        if method == BASELINE:
            unit = "" if self.is_error else " %"
            return f"{self.mean(method, measure):.{self.digits}f}{unit}"
        found = self.differences.get((method, measure))
        return unbroken(gain(found, self.digits)) if found else "–"


INKS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#666666")
"""The colours of federations; with four markers, each federation has its own pair."""

PREDICTORS = {
    "cosine": "mean cosine between updates",
    "spread": "spread of scores over mean error",
    "unequal": "largest over smallest client",
    "clients": "number of clients",
    "smallest": "examples of the smallest client",
}
"""The properties of a federation that may predict a gain, in words."""


def title(method: str) -> str:
    """Return a method's name in tables."""
    return METHODS[method].__name__


def read_federations(folder: Path) -> list[Federation]:
    """Return the federations that a folder has everything of."""
    found = []
    for row in read_csv(folder / "federations.csv", optional=True):
        values: dict[str, dict[int, dict[str, float]]] = {}
        for each in read_csv(folder / f"{row['workload']}-seeds.csv", optional=True):
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

    @cached_property
    def gains(self) -> dict[str, list[float]]:
        """The gain of each other method over FedAvg on each data set, in units of its bound."""
        return {
            method: [each.gain(method) for each in self.federations]
            for method in self.methods
            if method != BASELINE
        }

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        """What the data sets say of each method except FedAvg."""
        return outcomes(self.gains)

    @cached_property
    def fair(self) -> list[str]:
        """The fair methods that all data sets have: their median is of the same ones on each."""
        return [method for method in self.methods if method in FAIR]

    @cached_property
    def fair_gains(self) -> list[float]:
        """The gain of the median fair method on each data set, in units of its bound."""
        return [
            float(np.median([each.gain(method) for method in self.fair]))
            for each in self.federations
        ]

    @cached_property
    def labels(self) -> list[str]:
        """What serves the worst tenth of each data set best: one of `rule.LABELS`."""
        return [
            label_of({BASELINE: 0.0, "fair": fair_gain, "local": each.gain("local")})
            for each, fair_gain in zip(self.federations, self.fair_gains, strict=True)
        ]

    @cached_property
    def best(self) -> list[str]:
        """The method of each family with the best average rank."""
        found = [[m for m in self.averages if m in family] for family in FAMILIES.values()]
        return [each[0] for each in found if each]


# Tables -------------------------------------------------------------------------------------------

Table = Sequence[Sequence[str]]


def gains_table(federations: Sequence[Federation], measure: str) -> Table:
    """Return a row a method: its gain over FedAvg on each federation; FedAvg's row has scores."""
    ran = [method for method in METHODS if any(method in each.values for each in federations)]
    return [
        ["method", *(each.name for each in federations)],
        *([title(method), *(each.cell(method, measure) for each in federations)] for method in ran),
    ]


def federations_table(federations: Sequence[Federation]) -> Table:
    """Return a row about each federation."""
    rows = [["", "clients", "rows", "largest, smallest", "model", "score", "cosine", "spread"]]
    for each in federations:
        low, mean, high = (f"{float(each.row[name]):.2f}".replace("-", "−") for name in COLUMNS[:3])
        score = {"mae": "MAE"}.get(each.row["score"], each.row["score"].replace("-", " "))
        quantity = each.is_error and each.row["model"] == "logistic"
        model = "linear" if quantity else each.row["model"]
        rows.append(
            [
                f"`{each.name}`",
                each.row["clients"],
                each.row["rows"],
                f"{each.row['largest']}, {each.row['smallest']}",
                model,
                score,
                unbroken(f"{mean} ({low} to {high})"),
                f"{float(each.row['spread']):.{each.digits}f}",
            ]
        )
    return rows


def ranks_table(ranks: Ranks) -> Table:
    """Return a row a method that ran on all data sets, by average rank."""
    rows = [["method", "average rank", *OUTCOMES]]
    for method, rank in ranks.averages.items() if ranks.enough else ():
        cells = [""] * len(OUTCOMES) if method == BASELINE else outcome_cells(ranks, method)
        rows.append([title(method), f"{rank:.1f}", *cells])
    return rows


OUTCOMES = ("better, worse than FedAvg", "gain (90 %)", "p differs", "p equivalent", "outcome")
"""The columns of what the data sets say of a method."""


def outcome_cells(ranks: Ranks, method: str) -> list[str]:
    """Return the cells of OUTCOMES."""
    gains = np.array(ranks.gains[method])
    found = ranks.outcomes[method]
    return [
        f"{(gains > 0.0).sum()}, {(gains < 0.0).sum()}",
        unbroken(f"{found.estimate:+.2f} ({found.low:+.2f} to {found.high:+.2f})"),
        f"{found.differs:.3f}",
        f"{found.equivalent:.3f}",
        found.words,
    ]


def unbroken(cell: str) -> str:
    """Return a cell whose interval stays in one line: many columns make each of them narrow."""
    return cell.replace(" to ", "\u00a0to\u00a0")


def shown(value: float) -> str:
    """Return a property of a federation in at most three digits, or without decimals."""
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}".replace("-", "−")


# Sentences ----------------------------------------------------------------------------------------


def findings(federations: Sequence[Federation], ranks: Ranks, held_out: HeldOut) -> list[str]:
    """Return the five sentences of the page; fewer without enough data sets."""
    if not federations:
        return ["No federation was run yet."]
    found = [fair_sentence(federations), local_sentence(federations)]
    if ranks.enough:
        found = [outcome_sentence(ranks), *found, rule_sentence(ranks)]
    return [*found, *held_out.sentences]


def outcome_sentence(ranks: Ranks) -> str:
    """Return what the data sets say of the methods, and Friedman's test."""
    found: dict[str, list[str]] = {}
    for method, outcome in ranks.outcomes.items():
        found.setdefault(outcome.words, []).append(title(method))
    unknown = found.pop("neither", [])
    known = "; ".join(f"{words}: {join(names)}" for words, names in found.items())
    rest = f"of {join(unknown)} they cannot tell" if unknown else ""
    estimates = [outcome.estimate for outcome in ranks.outcomes.values()]
    differ = "finds a" if ranks.friedman < LEVEL else "finds no"
    return (
        f"**Over {len(ranks.federations)} data sets**, the worst 10 % under a method compare to"
        f" FedAvg's so: {'; '.join(filter(None, (known, rest)))}. The gains are estimated at"
        f" {min(estimates):+.2f} to {max(estimates):+.2f} times what would matter; Friedman's test"
        f" {differ} difference between {len(ranks.methods)} methods (p = {ranks.friedman:.2g});"
        f" Holm's correction is over the {len(ranks.outcomes)} others than FedAvg."
        " All of it is about the middle of the gains: it does not say what a method does for your"
        " clients, nor, where data cannot tell, that it is as good as FedAvg."
    )


def fair_sentence(federations: Sequence[Federation]) -> str:
    """Return where some fair method with a common model helps the worst tenth."""
    helped = [
        (each, max(clear, key=each.gain))
        for each in federations
        if (clear := [m for m in FAIR if is_clear(each, m, 1)])
    ]
    sentence = (
        f"**Look at your own clients first:** on {len(helped)} of {len(federations)} federations a"
        " fair method raises the worst 10 %, with an interval without 0"
    )
    if not helped:
        return f"{sentence}."
    held = [f"`{each.name}`" for each, _ in helped if any(is_significant(each, m) for m in FAIR)]
    best = "; ".join(each.describe(method) for each, method in helped)
    ran = [len(FAIR & each.values.keys()) for each in federations]
    return (
        f"{sentence} (in times what would matter, {best}). With Holm's correction over a"
        f" federation's methods, {len(held)} of them are left ({join(held) or 'none'}). Of the"
        f" {min(ran)} to {max(ran)} fair methods on each, the best is named, which favours them."
    )


def is_clear(federation: Federation, method: str, sign: int) -> bool:
    """Return whether a method's gain of the worst tenth has a sign, with an interval without 0."""
    found = federation.differences.get((method, "worst_10"))
    return found is not None and found.excludes_zero and sign * found.mean > 0.0


def is_significant(federation: Federation, method: str) -> bool:
    """Return whether a method clearly raises the worst tenth, also with Holm's correction."""
    found = federation.differences.get((method, "worst_10"))
    return found is not None and found.significant and found.mean > 0.0


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


def rule_sentence(ranks: Ranks) -> str:
    """Return which property goes best with the gains of fair methods, and how good the rule is."""
    n = len(ranks.federations)
    if n < FEWEST:
        return f"**What predicts a gain** is not known from {n} data sets."
    found = correlations(ranks)
    name = min(found, key=lambda each: found[each][1])
    rho, p = found[name]
    corrected = min(1.0, p * len(found))
    claim = "goes with" if corrected < LEVEL else "cannot be shown to go with"
    signed = f"{rho:+.2f}".replace("-", "−")
    labels = ranks.labels
    said = leave_one_out([each.properties for each in ranks.federations], labels)
    right = [a == b for a, b in zip(said, labels, strict=True)]
    low, high = wilson(sum(right), n)
    constants = {
        words: [label == name for label in labels]
        for words, name in (("always trying one is right on", "fair"), ("never on", BASELINE))
    }
    beside = [
        f"{words} {sum(constant)} (McNemar's p = {mcnemar(right, constant):.2g})"
        for words, constant in constants.items()
    ]
    beats = all(
        sum(right) > sum(constant) and mcnemar(right, constant) < LEVEL
        for constant in constants.values()
    )
    verdict = "It beats both." if beats else "It does not beat both: do not go by it."
    return (
        f"**What predicts a gain:** of {len(found)} properties, the {PREDICTORS[name]} {claim} the"
        f" gain of the median of the {len(ranks.fair)} fair methods that ran on all"
        f" (Spearman's ρ = {signed}, p = {corrected:.2g} with the"
        f" correction for {len(found)}). A rule says whether to try a fair method, Local, or"
        f" neither; chosen on the other data sets it is right on {sum(right)} of {n}, a share of"
        f" {100.0 * sum(right) / n:.0f} % ({100.0 * low:.0f} to {100.0 * high:.0f} %),"
        f" {' and '.join(beside)}. {verdict}"
    )


def correlations(ranks: Ranks) -> dict[str, tuple[float, float]]:
    """Return Spearman's correlation and its p-value of each property with `fair_gains`."""
    gains = ranks.fair_gains
    found = {}
    for name in PROPERTIES:
        column = [each.properties[name] for each in ranks.federations]
        varies = np.ptp(column) > 0.0 and np.ptp(gains) > 0.0
        tested = stats.spearmanr(column, gains) if varies else None
        found[name] = (float(tested.statistic), float(tested.pvalue)) if tested else (0.0, 1.0)
    return found


def rule_table(ranks: Ranks) -> Table:
    """Return a row a data set: its properties, its label, and what the others' rule says."""
    properties = [each.properties for each in ranks.federations]
    labels = ranks.labels
    said = leave_one_out(properties, labels) if len(labels) >= FEWEST else ["–"] * len(labels)
    return [
        ["", *PROPERTIES, "fair method", "Local", "label", "rule says"],
        *(
            [
                f"`{each.name}`",
                *(shown(each.properties[name]) for name in PROPERTIES),
                f"{fair_gain:+.2f}",
                f"{each.gain('local'):+.2f}",
                label,
                answer,
            ]
            for each, fair_gain, label, answer in zip(
                ranks.federations, ranks.fair_gains, labels, said, strict=True
            )
        ),
    ]


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
    names = ",".join(dict.fromkeys((BASELINE, *ranks.best, "local")))
    return (
        f"Begin with the best of each family over {len(ranks.federations)} data sets:"
        f" `--methods {names}`."
    )


def join(names: Sequence[str]) -> str:
    """Return names as an enumeration, "" of none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


# The figure ---------------------------------------------------------------------------------------


def picture(ranks: Ranks) -> Figure:
    """Return the figure: the median fair method's gain against each property."""
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(7.2, 5.6), layout="constrained")
        *panels, key = figure.subplots(2, 3, sharey=True).flat
        for axes, (name, heading) in zip(panels, PREDICTORS.items(), strict=True):
            axes.axhline(0.0, color="#B0B0B0", linewidth=0.8, zorder=1)
            points = zip(ranks.federations, ranks.fair_gains, strict=True)
            for (each, fair_gain), color, marker in zip(
                points, cycle(INKS), cycle("osD^"), strict=False
            ):
                axes.scatter(
                    [each.properties[name]],
                    [fair_gain],
                    color=color,
                    marker=marker,
                    label=each.name,
                    s=26,
                    zorder=2,
                )
            axes.set_xlabel(heading)
            axes.set_yscale("symlog", linthresh=1.0)
            axes.margins(x=0.1, y=0.1)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in panels[::3]:
            axes.set_ylabel("gain of the worst 10 %, times the bound")
        key.set_axis_off()
        if ranks.federations:
            for axes in panels[2:]:
                axes.set_xscale("log")
            key.legend(*panels[0].get_legend_handles_labels(), loc="center", ncols=2, frameon=False)
    return figure


# Files --------------------------------------------------------------------------------------------


def write(tuned: Path, out: Path, picture_file: Path) -> None:
    """Write all files that derive from a folder of results."""
    federations = read_federations(tuned)
    ranks = Ranks(one_a_data_set(federations))
    errors = {each.name for each in federations if each.is_error}
    held_out = HeldOut(read_csv(tuned / "held-out.csv", optional=True), FAIR, errors)
    out.mkdir(exist_ok=True)
    later = [each for each in federations if each.is_later]
    largest = [each for each in federations if each.has_fewer_methods and each not in later]
    first = [each for each in federations if not each.has_fewer_methods]
    for name, table in {
        "worst": gains_table(first, "worst_10"),
        "worst-largest": gains_table(largest, "worst_10"),
        "worst-later": gains_table(later, "worst_10"),
        "mean": gains_table(first, "mean"),
        "mean-largest": gains_table(largest, "mean"),
        "mean-later": gains_table(later, "mean"),
        "rule": rule_table(ranks),
        "held-out": held_out.table,
        "federations": federations_table(federations),
        "ranks": ranks_table(ranks),
    }.items():
        blank = [["–"] * len(table[0])] if len(table) == 1 else []  # Sphinx needs a row
        write_lines(out / f"{name}.csv", [*table, *blank])
    for name, text in {
        "findings": "\n".join(f"1. {each}" for each in findings(federations, ranks, held_out)),
        "not-run": not_run(federations),
        "try": to_try(ranks),
    }.items():
        (out / f"{name}.txt").write_text(f"{text}\n")
    with themed():
        picture_file.write_bytes(svg_of(picture(ranks)))


if __name__ == "__main__":
    write(DATA / "tuned", DATA / "which-method", PICTURE)
