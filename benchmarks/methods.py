"""Every method on five workloads, against FedAvg with the same seeds: what it gains, and what a round of it costs.

For each workload a comparison as `fairbloom compare` makes it, in a folder below --out, and a table: the mean score of
the clients, that of the worst-served tenth (the worst client, where there are up to ten), by how much both are better
than under FedAvg, with the 95 % interval of the paired difference, and the processor time and bytes of a round as
multiples of FedAvg's. Parameters were written down beforehand, as they stand in METHODS and WORKLOADS; none was tuned.

Finished runs are not run again, so that the command can be repeated when there are new methods. FAIRBLOOM_DATA has the
data sets; digits come with scikit-learn.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fairbloom import Comparison, compare
from fairbloom.experiments.arms import Arm, parse_arms
from fairbloom.experiments.results.comparison import personal_label
from fairbloom.experiments.results.differences import Difference
from fairbloom.experiments.results.groups import ALL
from fairbloom.experiments.studies.progress import quiet_log
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

from .tables import Row, parser_of, print_machine, print_table

BASELINE = "fedavg"

METHODS = (
    *("fedavg(local-epochs=3)", "fedavg(weighting=uniform)", "fedprox(mu=0.1)", "fedavgn"),
    "qfedavg(q=1,lipschitz=10)",
    *("qfedsgd(q=1,lipschitz=10)", "term(tilt=1)", "afl(gamma=0.1)", "drfa(gamma=0.01)", "deltafl(theta=0.5)"),
    *("propfair(baseline=5)", "gifair(strength=0.9)", "vred(beta=0.5)", "semivred(beta=0.5)", "fedfa"),
    *("fedmgda(epsilon=0.1)", "fedmgdaplus", "mgdaprox(mu=0.1)", "fedfv(alpha=0.1)", "adafed", "ditto(lam=0.1)"),
    *("local", "aaggff(rule=ons)", "aaggff(rule=ftrl)", "eagle", "fedmdfg", "fedlf", "scaffold", "feddyn"),
    "fedavg(server-optimizer=avgm,server-optimizer-lr=0.3)",
    *(f"fedavg(server-optimizer=adam,server-optimizer-lr={lr})" for lr in (0.01, 0.1)),
)
"""The methods, with the parameters of the recipe of the four hospitals. FedAvg with three times the local work shows
how much of a gain is faster training."""

OF_GROUPS = ("fcfl(stage1-rounds=50)", "fairfed")
"""The methods that need groups, which not every task has."""

TIMED_ROUNDS = 10
"""The rounds over which the processor time of a round is measured."""


def hidden(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a perceptron with one hidden layer, small enough that all methods are compared in an hour."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Linear(32, outputs))


class Workload(NamedTuple):
    """Clients to compare methods on.

    Attributes
    ----------
    seeds
        How many there are.
    settings
        Those that all runs share.
    groups
        Whether clients know the groups that some methods ask for.
    changed
        What stands in place of some of the methods, with parameters of another scale.
    """

    seeds: int
    settings: Mapping[str, Value]
    groups: bool = False
    changed: Mapping[str, str] = {}

    def methods(self, among: Sequence[str] | None = None) -> dict[str, str]:
        """Return the methods that are compared on it, all or some by their names, by what METHODS calls them."""
        every = (*METHODS, *(OF_GROUPS if self.groups else ()))
        return {words: self.changed.get(words, words) for words in every if not among or words.split("(")[0] in among}


PLAIN: Mapping[str, Value] = {"model": "logistic", "learning-rate": 0.1, "evaluate-every": 0}

WORKLOADS = {
    "digits": Workload(
        5,
        {
            **{**PLAIN, "task": "digits", "clients": 20, "partition": "iid", "digits.rotated-clients": 3},
            "num-rounds": 50,
        },
    ),
    "one-class": Workload(
        5,
        {
            **{**PLAIN, "task": "fashion-mnist", "fashion-mnist.classes": "0,2,6", "clients": 3, "partition": "class"},
            **{"batch-size": 0, "fraction": 1.0, "num-rounds": 60},
        },
    ),
    "dirichlet": Workload(
        3,
        {
            **{**PLAIN, "task": "fashion-mnist", "clients": 100, "partition": "dirichlet", "dirichlet-alpha": 0.3},
            **{"model": "benchmarks.methods:hidden", "batch-size": 50, "fraction": 0.1, "num-rounds": 40},
        },
    ),
    "adult": Workload(
        3,
        {
            **{**PLAIN, "task": "adult", "adult.group": "sex", "partition": "phd", "batch-size": 200},
            **{"fraction": 1.0, "num-rounds": 100},
        },
        groups=True,
    ),
    "hospitals": Workload(
        10,
        {
            **{**PLAIN, "task": "heart-disease", "batch-size": 10, "fraction": 1.0, "num-rounds": 50},
            "learning-rate": 0.01,
        },
        changed={
            "qfedavg(q=1,lipschitz=10)": "qfedavg(q=1,lipschitz=100)",
            "qfedsgd(q=1,lipschitz=10)": "qfedsgd(q=1,lipschitz=1)",
            "fedavgn": "fedavgn(server-lr=0.1)",
            "fedmgdaplus": "fedmgdaplus(server-lr=0.1)",
            "mgdaprox(mu=0.1)": "mgdaprox(mu=0.1,server-lr=0.1)",
        },
    ),
}
"""The workloads of docs/measured.md by name; the hospitals have the settings of the recipe heart-disease."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = parser_of(__doc__, [*WORKLOADS])
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods to run, by name; by default all")
    parser.add_argument("--rounds", type=int, help="fewer or more than a workload has")
    parser.add_argument("--seeds", type=int, help="fewer or more than a workload has")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a round's processor time; 0: none")
    chosen = parser.parse_args()
    print_machine()
    summary: dict[str, dict[str, object]] = {}
    for name in chosen.workloads:
        workload = WORKLOADS[name]
        methods = workload.methods(chosen.methods)
        arms = {words: parse_arms(method)[0] for words, method in methods.items()}
        settings = {**workload.settings, **({"num-rounds": chosen.rounds} if chosen.rounds else {})}
        compared = compare(
            methods=[BASELINE, *methods.values()],
            baseline=BASELINE,
            seeds=chosen.seeds or workload.seeds,
            jobs=chosen.jobs,
            out=chosen.out / name,
            settings=settings,
        )
        costs = costs_of(arms.values(), settings, chosen.repeats)
        print_table(name, rows_of(compared, arms.values(), costs), as_csv=chosen.csv)
        for words, arm in arms.items():
            served = next((each for each in (personal_label(arm.label), arm.label) if each in compared.finals), "")
            row = summary.setdefault(words, {"method": words})
            row[name] = gain(compared.difference(served, "worst_10"), brief=True) if served else "–"
    print_table("Gain of the worst-served client, or tenth, over FedAvg", summary.values(), as_csv=chosen.csv)


def rows_of(compared: Comparison, arms: Iterable[Arm], costs: Mapping[str, str]) -> Iterator[Row]:
    """Yield FedAvg's row of the table, then those of the methods; a method that could not be run has the reason."""
    worst = "worst client" if len(compared.values[compared.baseline][0]) <= 10 else "worst 10 %"
    sent = {label: statistics.fmean(bytes_of(run.folder) for run in runs) for label, runs in compared.runs.items()}
    gains = {measure: compared.differences(measure) for measure in ("mean", "worst_10")}
    gaps = gaps_of(compared)
    for label in (compared.baseline, *(arm.label for arm in arms)):
        if label in compared.failed:
            yield {"method": label, "mean": compared.failed[label]}
        for served in (label, personal_label(label)):
            if served in compared.finals:
                mine = {measure: gain(found[served]) if served in found else "" for measure, found in gains.items()}
                yield {
                    "method": served,
                    "mean": f"{compared.spread(served, 'mean')[0]:.1f}",
                    "gain, mean": mine["mean"],
                    worst: f"{compared.spread(served, 'worst_10')[0]:.1f}",
                    f"gain, {worst}": mine["worst_10"],
                    **({"gap between groups": gaps[served]} if served in gaps else {}),
                    "time": "1" if label == compared.baseline else costs.get(label, "–"),
                    "bytes": f"{sent[label] / sent[compared.baseline]:.2g}",
                }


def costs_of(arms: Iterable[Arm], settings: Mapping[str, Value], repeats: int) -> dict[str, str]:
    """Return how many times FedAvg's processor time a round of each method takes, by its label."""
    if not repeats:
        return {}
    ratios = {
        arm.label: [
            cpu_seconds({**settings, **arm.config}) / cpu_seconds({**settings, "method": BASELINE})
            for _ in range(repeats)
        ]
        for arm in arms
    }
    return {label: f"{statistics.median(each):.2g}" for label, each in ratios.items()}


def cpu_seconds(config: Mapping[str, Value]) -> float:
    """Return the processor time of a round in this process: the median of those between the first and the last.

    It is taken in place of the time on the clock, which other work on the machine makes longer.
    """
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, quiet_log():
        timed = {"engine": "stacked", "num-rounds": TIMED_ROUNDS, "out": f"{scratch}/run"}
        simulate(Settings.of({**config, **timed}), lambda recorded: stamps.append(time.process_time()))
    return statistics.median(later - before for before, later in pairwise(stamps[:-1]))


def bytes_of(folder: Path) -> float:
    """Return the bytes of a round of a run, both ways: the median over its rounds, since the last has an evaluation."""
    rows = list(ROUNDS.read(folder))
    return statistics.median(float(row["bytes_sent"]) + float(row["bytes_received"]) for row in rows)


def gaps_of(compared: Comparison) -> dict[str, str]:
    """Return by how many points the shares of positive decisions differ between groups, over all clients, by method."""
    found: dict[str, list[float]] = {}
    for row in compared.gap_rows():
        if row["client"] == ALL and row["score"] == "selection-rate":
            found.setdefault(row["method"], []).append(row["gap"])
    return {label: f"{statistics.fmean(gaps):.1f}" for label, gaps in found.items()}


def gain(found: Difference, *, brief: bool = False) -> str:
    """Return a difference with its interval; in bold where that is without 0, with * where Holm's correction agrees."""
    words = f"{found.mean:+.1f}".replace("-0.0", "+0.0")
    if math.isnan(found.low):  # a single seed, or the same difference with all
        return words
    words = words if brief else f"{words} ({found.low:+.1f} to {found.high:+.1f})"
    apart = found.low > 0.0 or found.high < 0.0
    return f"**{words}**{'*' if found.significant else ''}" if apart else words


if __name__ == "__main__":
    main()
