"""Every method on five workloads, against FedAvg with the same seeds: what it gains, and what a round of it costs.

For each workload a comparison as `fairbloom compare` makes it, in a folder below --out, and a table: the mean score of
the clients, that of the worst-served tenth (the worst client, where there are up to ten), by how much both are better
than under FedAvg, with the 95 % interval of the paired difference, and the processor time and bytes of a round as
multiples of FedAvg's. Parameters were written down beforehand, as they stand in METHODS and WORKLOADS; none was tuned.

Finished runs are not run again, so that the command can be repeated when there are new methods. FAIRBLOOM_DATA has the
data sets; digits come with scikit-learn.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from torch import nn

from fairbloom import Comparison, compare
from fairbloom.experiments.arms import Arm, parse_arms
from fairbloom.experiments.results.comparison import personal_label
from fairbloom.experiments.results.differences import Difference
from fairbloom.experiments.results.groups import ALL
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS as THERE
from fairbloom.system.files import write_whole

from .measuring import Cell, Cells, Report, machine

BASELINE = "fedavg"

BEFORE = (
    *("fedavg(local-epochs=3)", "fedavg(weighting=uniform)", "fedprox(mu=0.1)", "fedavgn"),
    "qfedavg(q=1,lipschitz=10)",
    *("qfedsgd(q=1,lipschitz=10)", "term(tilt=1)", "afl(gamma=0.1)", "drfa(gamma=0.01)", "deltafl(theta=0.5)"),
    *("propfair(baseline=5)", "gifair(strength=0.9)", "vred(beta=0.5)", "semivred(beta=0.5)", "fedfa"),
    *("fedmgda(epsilon=0.1)", "fedmgdaplus", "mgdaprox(mu=0.1)", "fedfv(alpha=0.1)", "adafed", "ditto(lam=0.1)"),
    "local",
)
"""The methods that were here before the others, with the parameters of the recipe of the four hospitals. FedAvg with
three times the local work shows how much of a gain is faster training."""

NEWER = (
    *("aaggff(rule=ons)", "aaggff(rule=ftrl)", "eagle", "fedmdfg", "fedlf", "scaffold", "feddyn"),
    "fedavg(server-optimizer=avgm,server-optimizer-lr=0.3)",
    *(f"fedavg(server-optimizer=adam,server-optimizer-lr={lr})" for lr in (0.01, 0.1)),
)
"""The newer methods, and FedAvg with server optimizers."""

COSTS, TIMED_ROUNDS = "costs.json", 10
"""Where the processor times of a workload are kept, beside its comparison; how many rounds each is measured over."""

OF_GROUPS = ("fcfl(stage1-rounds=50)", "fairfed")
"""The methods that need groups, which not every task has."""


def hidden(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a perceptron with one hidden layer, small enough that all methods are compared in an hour."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Linear(32, outputs))


@dataclass(frozen=True)
class Workload:
    """Clients to compare methods on.

    Attributes
    ----------
    title
        What its table is called.
    seeds
        How many there are.
    settings
        Those that all runs share.
    groups
        Whether clients know the groups that some methods ask for.
    changed
        What stands in place of some of the methods, with parameters of another scale.
    """

    title: str
    seeds: int
    settings: Mapping[str, Value]
    groups: bool = False
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are compared on it with FedAvg, as `fairbloom compare` takes them."""
        wanted = (*BEFORE, *NEWER, *(OF_GROUPS if self.groups else ()))
        return tuple(self.changed.get(each, each) for each in wanted)


WORKLOADS = {
    "digits": Workload(
        "Digits: 20 clients, three of them with a camera mounted sideways",
        5,
        {
            **{"task": "digits", "model": "logistic", "clients": 20, "partition": "iid", "digits.rotated-clients": 3},
            **{"num-rounds": 50, "learning-rate": 0.1, "evaluate-every": 0},
        },
    ),
    "one-class": Workload(
        "Fashion-MNIST: T-shirts, pullovers and shirts, a client each, linear model",
        5,
        {
            **{"task": "fashion-mnist", "fashion-mnist.classes": "0,2,6", "clients": 3, "partition": "class"},
            **{"model": "logistic", "batch-size": 0, "fraction": 1.0, "num-rounds": 60},
            **{"learning-rate": 0.1, "evaluate-every": 0},
        },
    ),
    "dirichlet": Workload(
        "Fashion-MNIST: 100 clients by Dirichlet(0.3), ten of them a round, 32 hidden units",
        3,
        {
            **{"task": "fashion-mnist", "model": "benchmarks.methods:hidden", "clients": 100, "partition": "dirichlet"},
            **{"dirichlet-alpha": 0.3, "batch-size": 50, "fraction": 0.1, "num-rounds": 40},
            **{"learning-rate": 0.1, "evaluate-every": 0},
        },
    ),
    "adult": Workload(
        "Adult: people with a doctorate, and those without",
        3,
        {
            **{"task": "adult", "adult.group": "sex", "model": "logistic", "partition": "phd", "batch-size": 200},
            **{"fraction": 1.0, "num-rounds": 100, "learning-rate": 0.1, "evaluate-every": 0},
        },
        groups=True,
    ),
    "hospitals": Workload(
        "Four hospitals: who has a heart disease",
        10,
        {
            **{"task": "heart-disease", "model": "logistic", "batch-size": 10, "fraction": 1.0, "num-rounds": 50},
            **{"learning-rate": 0.01, "evaluate-every": 0},
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
"""The workloads by the names that --workloads takes; the hospitals have the settings of the recipe heart-disease."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods to run, by name; by default all")
    parser.add_argument("--rounds", type=int, help="fewer or more than a workload has")
    parser.add_argument("--seeds", type=int, help="fewer or more than a workload has")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of the processor time of a round; 0: none are made"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and rows there")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    chosen = parser.parse_args()
    report = Report(chosen)
    compared: dict[str, tuple[Comparison, Running]] = {}
    for name in chosen.workloads:
        workload = WORKLOADS[name]
        running = Running(
            workload, chosen.out / name, chosen.seeds or workload.seeds, chosen.rounds, chosen.jobs, chosen.repeats
        )
        comparison = running.compare(chosen.methods)
        compared[name] = comparison, running
        report.add(workload.title, list(rows_of(comparison, running)), notes_of(comparison, running))
    report.add("Gain of the worst-served client, or tenth, over FedAvg", list(summary_of(compared)))


# Running --------------------------------------------------------------------------------------------------------------


class Running:
    """The comparison of a workload, which ends with those of its methods that could be run.

    Parameters
    ----------
    workload
        What is compared.
    out
        The comparison's folder.
    seeds, rounds
        How many; None: as many rounds as the workload has.
    jobs
        The number of runs at a time.
    repeats
        How often the processor time of a round is measured.
    """

    def __init__(
        self, workload: Workload, out: Path, seeds: int, rounds: int | None, jobs: int, repeats: int = 3
    ) -> None:
        self.workload, self.out, self.seeds, self.jobs, self.repeats = workload, out, seeds, jobs, repeats
        self.settings = {**workload.settings, **({"num-rounds": rounds} if rounds else {})}
        self.failed: dict[str, str] = {}
        """Why a method could not be run, by what the workload calls it."""
        self.arms: dict[str, Arm] = {}
        """The methods that there are, by what the workload calls them."""

    def compare(self, among: Sequence[str] | None) -> Comparison:
        """Run what is missing of the methods, all or some by their names, and return the comparison."""
        wanted = []
        for words in self.workload.methods:
            name = words.partition("(")[0]
            if name not in THERE:
                self.failed[words] = "is not part of this version"
                continue
            (self.arms[words],) = parse_arms(words)
            if among is None or name in among:
                wanted.append(words)
        compared = compare(
            methods=[BASELINE, *wanted],
            baseline=BASELINE,
            seeds=self.seeds,
            jobs=self.jobs,
            out=self.out,
            settings=self.settings,
        )
        self.failed |= {
            words: compared.failed[arm.label] for words, arm in self.arms.items() if arm.label in compared.failed
        }
        return compared

    def times(self, words: str) -> str:
        """Return how many times FedAvg's processor time a round of a method takes; it is measured once, and kept."""
        file = self.out / COSTS
        known: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
        if len(known.get(words, [])) < self.repeats:
            base, mine = {**self.settings, "method": BASELINE}, {**self.settings, **self.arms[words].config}
            known[words] = [cpu_seconds(mine) / cpu_seconds(base) for _ in range(self.repeats)]
            write_whole(file, json.dumps(known, indent=2).encode())
        return times(known[words]) if words in known else "–"


# The tables -----------------------------------------------------------------------------------------------------------


def cpu_seconds(config: Mapping[str, Value]) -> float:
    """Return the processor time of a round in this process: the median of those between the first and the last.

    It is taken in place of the time on the clock, which other work on the machine makes longer.
    """
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings.of(
            {**config, "engine": "stacked", "num-rounds": TIMED_ROUNDS, "out": str(Path(scratch, "run"))}
        )
        simulate(settings, lambda recorded: stamps.append(time.process_time()))
    return statistics.median(later - before for before, later in pairwise(stamps[:-1]))


def bytes_of(folder: Path) -> float:
    """Return the bytes of a round of a run, both ways: the median over its rounds, since the last has an evaluation."""
    rows = list(ROUNDS.read(folder))
    return statistics.median(float(row["bytes_sent"]) + float(row["bytes_received"]) for row in rows)


def rows_of(comparison: Comparison, running: Running) -> Iterator[Cells]:
    """Yield FedAvg's row of the table, then those of the methods in the workload's order, also of what is missing."""
    worst = "worst client" if len(comparison.values[comparison.baseline][0]) <= 10 else "worst 10 %"
    bytes_by = {label: [bytes_of(each.folder) for each in by_seed] for label, by_seed in comparison.runs.items()}
    gains = {measure: comparison.differences(measure) for measure in ("mean", "worst_10")}
    gaps = gaps_of(comparison)
    yield {
        "method": comparison.baseline,
        "mean": shown(comparison, comparison.baseline, "mean"),
        "gain, mean": "",
        worst: shown(comparison, comparison.baseline, "worst_10"),
        f"gain, {worst}": "",
        **gaps.get(comparison.baseline, {}),
        "time": "1",
        "bytes": "1",
    }
    for words in running.workload.methods:
        if words not in running.arms or running.arms[words].label not in bytes_by:
            yield {"method": words, "mean": "missing" if words not in running.failed else "not run"}
            continue
        label = running.arms[words].label
        sent = zip(bytes_by[label], bytes_by[comparison.baseline], strict=True)
        cost = {"time": running.times(words), "bytes": times(mine / theirs for mine, theirs in sent)}
        for served in (label, personal_label(label)):
            if served in comparison.finals:
                yield {
                    "method": served,
                    "mean": shown(comparison, served, "mean"),
                    "gain, mean": gain(gains["mean"][served]),
                    worst: shown(comparison, served, "worst_10"),
                    f"gain, {worst}": gain(gains["worst_10"][served]),
                    **gaps.get(served, {}),
                    **cost,
                }


def summary_of(compared: Mapping[str, tuple[Comparison, Running]]) -> Iterator[Cells]:
    """Yield a row a method: by how much its worst-served tenth is better off than under FedAvg, workload by workload.

    Of methods with personal models it is these that count.
    """
    for words in (*BEFORE, *NEWER, *OF_GROUPS):
        row: dict[str, Cell] = {"method": words}
        for name, (comparison, running) in compared.items():
            arm = running.arms.get(running.workload.changed.get(words, words))
            labels = (personal_label(arm.label), arm.label) if arm else ()
            served = next((label for label in labels if label in comparison.finals), "")
            row[name] = gain(comparison.difference(served, "worst_10"), brief=True) if served else "–"
        yield row


def gaps_of(comparison: Comparison) -> dict[str, Cells]:
    """Return by how many points the shares of positive decisions differ between groups, over all clients, by method."""
    found: dict[str, list[float]] = {}
    for row in comparison.gap_rows():
        if row["client"] == ALL and row["score"] == "selection-rate":
            found.setdefault(row["method"], []).append(row["gap"])
    return {label: {"gap between groups": f"{statistics.fmean(gaps):.1f}"} for label, gaps in found.items()}


def shown(comparison: Comparison, method: str, measure: str) -> str:
    """Return the mean over the seeds of a measure."""
    return f"{comparison.spread(method, measure)[0]:.1f}"


def gain(found: Difference, *, brief: bool = False) -> str:
    """Return a difference with its interval; in bold where that is without 0, with * where Holm's correction agrees."""
    words = f"{found.mean:+.1f}".replace("-0.0", "+0.0")
    if math.isnan(found.low):  # a single seed, or the same difference with all
        return words
    words = words if brief else f"{words} ({found.low:+.1f} to {found.high:+.1f})"
    apart = found.low > 0.0 or found.high < 0.0
    return f"**{words}**{'*' if found.significant else ''}" if apart else words


def times(ratios: Iterable[float]) -> str:
    """Return the median of how many times as much it is."""
    return f"{statistics.median(ratios):.2g}"


def notes_of(comparison: Comparison, running: Running) -> list[str]:
    """Return what is to be said below a table: seeds, engines, what could not be run and what limits the numbers."""
    engine = (comparison.runs[comparison.baseline][0].engine or {}).get("engine")
    settings = ", ".join(f"{key}={value}" for key, value in running.settings.items())
    notes = [f"{running.seeds} seeds, computed by {engine}: {settings}.", f"{machine()}."]
    return notes + [f"{words}: {reason}" for words, reason in running.failed.items()]


if __name__ == "__main__":
    main()
