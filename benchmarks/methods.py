"""Tune every method on validation examples, and test it against a tuned FedAvg with fresh seeds.

For each workload, searches FedAvg's learning rate and then, at this rate, at most four arms of each
method, in folders below --out. Into --tables it writes the chosen arms: the clients' mean score,
the score of the worst-served tenth (the worst client of up to ten), the gains over FedAvg with the
95 % interval of the paired difference, and the values of each seed.

`own` compares, without a search, what clients may keep for themselves: heads, norms, personal
models. `shakespeare` is one seed of four methods.

Finished runs are not run again. FAIRBLOOM_DATA has the files of all workloads but the digits.
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fairbloom import Comparison, Search, compare, search
from fairbloom.experiments.results.compared_scores import personal_label
from fairbloom.experiments.results.differences import Difference
from fairbloom.experiments.results.group_scores import ALL
from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import Value
from fairbloom.strategies import METHODS

from .federations.prepare import ACS, FLIGHTS, data_of
from .tables import Row, parser_of, print_machine, print_table, read_csv, write_csv

BASELINE = "fedavg"

SEARCHED = [name for name, method in METHODS.items() if not method.needs & BETWEEN_GROUPS]
"""The methods of the tables: those that do not need groups."""

FOR_GROUPS = ("fairfed", "fcfl")
"""Methods that are fair to groups."""

SOME = (
    BASELINE,
    "feddyn",
    "qfedavg",
    "term",
    "propfair",
    "fedpw",
    "fedmgdaplus",
    "fedfv",
    "fedlf",
    "ditto",
    "local",
)
"""The methods of the workload that takes longest: one or two of each family."""

MANY = (*SOME, "scaffold", "afl", "gifair", "aaggff")
"""The methods of the other large workloads, and of those that came later."""

RATES: Sequence[Value] = (0.01, 0.03, 0.1, 0.3)
"""The clients' learning rates that FedAvg tries."""

TRIED: Mapping[str, Mapping[str, Sequence[Value]]] = {
    "fedavgn": {"server_lr": (2.0, 0.5), "decay": (0.0,)},
    "qfedavg": {"q": (0.1, 1.0), "lipschitz": (0.1, 1.0)},
    "qfedsgd": {"q": (0.1, 1.0), "lipschitz": (0.1, 1.0)},
    "term": {"tilt": (0.1, 0.5, 1.0, 5.0)},
    "deltafl": {"theta": (0.2, 0.4, 0.6, 0.8)},
    "vred": {"beta": (0.05, 0.5)},
    "semivred": {"beta": (0.05, 0.5)},
    "fedmgda": {"epsilon": (0.05, 1.0)},
    "fedmgdaplus": {"server_lr": (2.0, 0.5), "decay": (0.0,)},
    "mgdaprox": {"mu": (0.2,), "server_lr": (2.0, 0.5), "decay": (0.0,)},
    "fedfv": {"alpha": (0.1, 0.5), "tau": (1, 10)},
    "fcfl": {"budget": (0.05, 0.1), "stage1_rounds": (10,)},
}
"""Of methods that declare more than four arms, the values that are tried here.

Server steps fall as the clients' rates do, so that the first and the last arm are the ends.
"""

OWN_RATE = {"fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "vred", "semivred"}
"""Methods of papers that tune the rate of each method: they try a third of FedAvg's rate, too."""


@dataclass(frozen=True)
class Workload:
    """What the runs of a search share, and how many there are.

    Attributes
    ----------
    settings
        The settings of all runs.
    table
        The federation's table, "" if the task has data of its own.
    methods
        The methods that are searched.
    most_arms
        The largest number of arms of a method; of more, the first and the last are tried.
    seeds, tests
        The number of seeds to choose by, and of fresh ones to test with.
    """

    settings: Mapping[str, Value]
    table: str = ""
    methods: Sequence[str] = tuple(SEARCHED)
    most_arms: int = 4
    seeds: int = 3
    tests: int = 10

    def settings_below(self, out: Path) -> dict[str, Value]:
        """Return all settings; samples of tables are below `out`."""
        if not self.table:
            return {**self.settings}
        data, schema = data_of(self.table, out)
        return {**self.settings, "data-dir": str(data), "schema": str(schema)}


PLAIN: Mapping[str, Value] = {"model": "logistic", "evaluate-every": 0, "num-rounds": 50}

TABLE: Mapping[str, Value] = {**PLAIN, "task": "csv", "csv.smallest-client": 10}

LARGE_TABLE: Mapping[str, Value] = {**TABLE, "num-rounds": 20}

LATER = (
    "exam",
    "gcsemv",
    "scotssec",
    "guimmun",
    "guprenat",
    "bdf",
    "radon",
    "wvs",
    "gssvocab",
    "males",
)
"""Tables that came later; with the flights, they are the second part of the page."""

WORKLOADS: Mapping[str, Workload] = {
    "digits": Workload(
        {
            **PLAIN,
            "task": "digits",
            "clients": 20,
            "partition": "iid",
            "digits.rotated-clients": 3,
        }
    ),
    "shards": Workload({**PLAIN, "task": "digits", "clients": 20, "partition": "shards"}),
    "hospitals": Workload({**PLAIN, "task": "heart-disease", "batch-size": 10, "fraction": 1.0}),
    "contraception": Workload(TABLE, "contraception"),
    "star": Workload(TABLE, "star"),
    "hsb82": Workload(TABLE, "hsb82"),
    "chem97": Workload(TABLE, "chem97"),
    "acs-income": Workload(LARGE_TABLE, ACS, methods=(*MANY, *FOR_GROUPS), most_arms=2),
    "acs-income-mlp": Workload({**LARGE_TABLE, "model": "mlp"}, ACS, methods=MANY, most_arms=2),
    "insteval": Workload(
        {**TABLE, "num-rounds": 30, "evaluate-every": 10},
        "insteval",
        methods=MANY,
        most_arms=2,
    ),
    "fashion-mnist": Workload(
        {
            **PLAIN,
            "task": "fashion-mnist",
            "num-rounds": 30,
            "model": "cnn",
            "clients": 100,
            "fraction": 0.1,
            "partition": "dirichlet",
            "dirichlet-alpha": 0.3,
        },
        methods=SOME,
        most_arms=2,
        tests=3,
    ),
    **{name: Workload(TABLE, name, methods=MANY) for name in LATER},
    **{name: Workload(LARGE_TABLE, name, methods=MANY, most_arms=2) for name in FLIGHTS},
}
"""The workloads of docs/which-method.md, by name."""


@dataclass(frozen=True)
class Arms:
    """A comparison of given arms, without a search."""

    settings: Mapping[str, Value]
    arms: Sequence[str]
    seeds: int


GIVEN: Mapping[str, Arms] = {
    # What clients keep under FedAvg; a head under the best fair method of `shards` that allows it.
    "own": Arms(
        {
            **WORKLOADS["shards"].settings,
            "learning-rate": 0.3,  # the best of RATES for FedAvg
            # logistic regression has no body and no norms
            "model": "benchmarks.networks:normed_cnn",
        },
        (
            BASELINE,
            "fedavg(fine-tune-epochs=1)",
            "fedavg(personal-parameters=head)",
            "fedavg(personal-parameters=head,personal-steps=head-first)",
            "fedavg(personal-parameters=body)",
            "fedavg(personal-parameters=norm)",
            "fedlf",
            "fedlf(personal-parameters=head)",
            "ditto(lam=0.1)",
            "local",
        ),
        seeds=10,
    ),
    # One seed and one rate show that it runs, and how long: they compare nothing.
    "shakespeare": Arms(
        {
            "task": "benchmarks.federations.speakers:speakers",
            "model": "lstm",
            "num-rounds": 60,
            "fraction": 0.1,
            "batch-size": 10,
            "learning-rate": 0.8,  # of LEAF and q-FFL
            "evaluate-every": 0,
        },
        (BASELINE, "qfedavg(q=0.001)", "fedfv(alpha=0.1,tau=1)", "fedmgdaplus"),
        seeds=1,
    ),
}
"""The comparisons of given arms, by name."""


def compare_given(given: Arms, out: Path, jobs: int) -> list[Row]:
    """Compare given arms, and return the rows of the table, without gains if there is one seed."""
    compared = compare(
        methods=given.arms, seeds=given.seeds, jobs=jobs, out=out, settings=given.settings
    )
    rows = [*rows_of(compared)]
    # A common model with initial heads or norms says nothing: only the personal models are shown.
    end = ", personal)"
    names = [str(row["method"]) for row in rows]
    left_out = {name.removesuffix(end) + ")" for name in names if name.endswith(end)}
    rows = [row for row in rows if row["method"] not in left_out]
    if given.seeds == 1:
        return [{key: row[key] for key in row if not key.startswith("gain")} for row in rows]
    return rows


def main() -> None:
    """Run the missing runs, and write the tables."""
    parser = parser_with_folders(__doc__, [*WORKLOADS, *GIVEN], Path("runs/methods/tables"))
    chosen = parser.parse_args()
    print_machine()
    for name in chosen.workloads:
        out = chosen.out / name
        if name in GIVEN:
            rows = compare_given(GIVEN[name], out, chosen.jobs)
        else:
            found = search_workload(WORKLOADS[name], out, chosen.jobs)
            if found.comparison is None:
                raise SystemExit(f"{name}: {found.sentences[0]}")
            rows = [*rows_of(found.comparison)]
            write_rows(chosen.tables / f"{name}-seeds.csv", [*seeds_of(found)])
            if WORKLOADS[name].table == ACS:
                write_rows(chosen.tables / f"{name}-gaps.csv", gaps_of(found.comparison))
        print_table(name, rows, as_csv=chosen.csv)
        write_rows(chosen.tables / f"{name}.csv", rows)


def parser_with_folders(
    doc: str | None, workloads: Sequence[str], tables: Path
) -> argparse.ArgumentParser:
    """Return a parser of workloads, of where runs and tables are, and of the runs at a time."""
    parser = parser_of(doc, workloads)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--tables", type=Path, default=tables)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    return parser


def search_workload(workload: Workload, out: Path, jobs: int) -> Search:
    """Search FedAvg's learning rate, then the arms of all methods at that rate."""
    settings = workload.settings_below(out.parent)
    rates = search(
        methods=BASELINE,
        grid={"learning-rate": RATES},
        baseline=f"{BASELINE}(learning-rate={RATES[0]})",
        seeds=workload.seeds,
        test_seeds=1,
        jobs=jobs,
        out=out / "rates",
        settings=settings,
    )
    rate = float(rates.of(rates.best).arm.settings["learning-rate"])
    return search(
        methods=[text for method in workload.methods for text in arms_of(workload, method, rate)],
        baseline=f"{BASELINE}(learning-rate={rate})",
        seeds=workload.seeds,
        test_seeds=workload.tests,
        jobs=jobs,
        out=out / "methods",
        settings=settings,
    )


def arms_of(workload: Workload, method: str, rate: float) -> list[str]:
    """Return the texts of a method's arms at FedAvg's learning rate."""
    rates = (rate, float(f"{rate / 3.0:.2g}")) if method in OWN_RATE else (rate,)
    axes = {**TRIED.get(method, METHODS[method].tries), "learning-rate": rates}
    points = [
        ",".join(f"{name}={value}" for name, value in zip(axes, point, strict=True))
        for point in itertools.product(*axes.values())
    ]
    if len(points) > workload.most_arms:
        points = [points[0], points[-1]]
    return [f"{method}({point})" for point in points]


def seeds_of(found: Search) -> Iterator[Row]:
    """Yield a row for each chosen arm and fresh seed, with the scores of the models it is for."""
    if found.comparison is None:
        return
    rows = {(row["method"], row["seed"]): row for row in found.comparison.rows()}
    for label in found.study.found.best:
        for seed in found.study.found.fresh:
            row = rows.get((personal_label(label), seed)) or rows[label, seed]
            yield {
                "method": found.of(label).arm.method,
                "arm": label,
                "seed": seed,
                "mean": row["mean"],
                "worst_10": row["worst_10"],
            }


def gaps_of(tested: Comparison) -> list[Row]:
    """Return a row for each row of `rows_of`: mean gaps of scores between the groups of all."""
    gaps: dict[str, dict[str, list[float]]] = {}
    for row in tested.gap_rows():
        if row["client"] == ALL and row["gap"] is not None:
            heading = f"{row['grouping']}, {row['score']}"
            gaps.setdefault(row["method"], {}).setdefault(heading, []).append(row["gap"])
    return [
        {"method": label} | {name: f"{fmean(values):.1f}" for name, values in gaps[label].items()}
        for label in tested.shown
    ]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a table as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        write_csv(file, rows)


def replace_rows(path: Path, workload: str, rows: Sequence[Row]) -> None:
    """Write a workload's rows into a table of several, in place of its former ones."""
    kept = [row for row in read_csv(path, optional=True) if row["workload"] != workload]
    order = [*WORKLOADS]
    write_rows(path, sorted([*kept, *rows], key=lambda row: order.index(str(row["workload"]))))


def rows_of(tested: Comparison) -> Iterator[Row]:
    """Yield a row of the table for FedAvg, then one for each other model that may differ."""
    worst = "worst client" if len(tested.values[tested.baseline][0]) <= 10 else "worst 10 %"
    digits = 1 if tested.score.percent else 2  # errors have the target's unit
    gains = {measure: tested.differences(measure) for measure in ("mean", "worst_10")}
    for label in tested.shown:
        yield {
            "method": label,
            "mean": f"{tested.estimate(label, 'mean').value:.{digits}f}",
            "gain, mean": gain(gains["mean"].get(label), digits),
            worst: f"{tested.estimate(label, 'worst_10').value:.{digits}f}",
            f"gain, {worst}": gain(gains["worst_10"].get(label), digits),
        }


def gain(found: Difference | None, digits: int) -> str:
    """Return a difference with its interval, rounded to `digits` decimal places.

    It is bold if the interval excludes 0, with * if Holm's correction agrees.
    """
    if found is None:
        return ""
    mean, low, high = (f"{x:+.{digits}f}" for x in (found.mean, found.low, found.high))
    words = mean.replace("-0.0", "+0.0") if float(mean) == 0.0 else mean
    if math.isnan(found.low):  # a single seed, or the same difference for all
        return words
    words = f"{words} ({low} to {high})"
    if found.low <= 0.0 <= found.high:
        return words
    return f"**{words}***" if found.significant else f"**{words}**"


if __name__ == "__main__":
    main()
