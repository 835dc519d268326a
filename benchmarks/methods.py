"""Tune every method on validation examples, and test it against a tuned FedAvg with fresh seeds.

For each workload, runs a search as `fairbloom search` does, in a folder below --out, and prints a
table of the chosen arms: the clients' mean score, the score of the worst-served tenth (the worst
client of up to ten), and the gains over FedAvg, with the 95 % interval of the paired difference.
Each method, FedAvg included, chooses from four learning rates of the clients and the values of its
own parameters that it declares, which its paper tunes.

The workload `own`, which has to be asked for, compares what clients may keep for themselves: heads,
norms, personal models.

Finished runs are not run again. Digits come with scikit-learn; FAIRBLOOM_DATA has the hospitals'
files.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fairbloom import Comparison, compare, search
from fairbloom.experiments.results.differences import Difference
from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import Value
from fairbloom.strategies import METHODS

from .tables import Row, parser_of, print_machine, print_table

BASELINE = "fedavg"

SEARCHED = [name for name, method in METHODS.items() if not method.needs & BETWEEN_GROUPS]
"""The methods of the tables: those that do not need groups."""

RATES: Sequence[Value] = (0.01, 0.03, 0.1, 0.3)
"""The clients' learning rates that each method tries."""

PLAIN: Mapping[str, Value] = {"model": "logistic", "evaluate-every": 0, "num-rounds": 50}

WORKLOADS: Mapping[str, Mapping[str, Value]] = {
    "digits": {
        **PLAIN,
        "task": "digits",
        "clients": 20,
        "partition": "iid",
        "digits.rotated-clients": 3,
    },
    "shards": {
        **PLAIN,
        "task": "digits",
        "clients": 20,
        "partition": "shards",
    },
    "hospitals": {
        **PLAIN,
        "task": "heart-disease",
        "batch-size": 10,
        "fraction": 1.0,
    },
}
"""The workloads of docs/measured.md: the settings that all runs of one share, by name."""

OWN = "own"
"""The name of the comparison of what clients may keep for themselves."""

OWN_SETTINGS: Mapping[str, Value] = {
    **WORKLOADS["shards"],
    "learning-rate": 0.3,  # the best of RATES for FedAvg
    "model": "benchmarks.networks:normed_cnn",  # logistic regression has no body and no norms
}

OWN_ARMS = (
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
)
"""What clients keep under FedAvg; a head under the best fair method of `shards` that allows it."""


def print_own(seeds: int, out: Path, jobs: int, *, as_csv: bool) -> None:
    """Compare what clients may keep for themselves, without a search, and print the table."""
    compared = compare(
        methods=OWN_ARMS, seeds=seeds, jobs=jobs, out=out / OWN, settings=OWN_SETTINGS
    )
    rows = [*rows_of(compared)]
    # A common model with initial heads or norms says nothing: only the personal models are shown.
    end = ", personal)"
    names = [str(row["method"]) for row in rows]
    left_out = {name.removesuffix(end) + ")" for name in names if name.endswith(end)}
    chosen = [row for row in rows if row["method"] not in left_out]
    print_table(OWN, chosen, as_csv=as_csv)


def main() -> None:
    """Run the missing runs, and print the tables."""
    parser = parser_of(__doc__, [*WORKLOADS, OWN])
    parser.set_defaults(workloads=[*WORKLOADS])
    parser.add_argument(
        "--seeds", type=int, default=5, help="seeds to choose by, and fresh seeds to test with"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    chosen = parser.parse_args()
    print_machine()
    if OWN in chosen.workloads:
        print_own(chosen.seeds, chosen.out, chosen.jobs, as_csv=chosen.csv)
    searched = [name for name in chosen.workloads if name != OWN]
    if not searched:
        return
    summary: dict[str, dict[str, object]] = {
        method: {"method": METHODS[method].__name__} for method in SEARCHED
    }
    for name in searched:
        found = search(
            methods=SEARCHED,
            grid={"learning-rate": RATES},
            baseline=BASELINE,
            seeds=chosen.seeds,
            jobs=chosen.jobs,
            out=chosen.out / name,
            settings=WORKLOADS[name],
        )
        if found.comparison is None:
            raise SystemExit(f"{name}: {found.sentences[0]}")
        print_table(name, rows_of(found.comparison), as_csv=chosen.csv)
        for label in found.found.best:
            summary[found.of(label).arm.method][name] = gain(found.difference(label))
    print_table(
        "Gain of the worst-served client, or tenth, over FedAvg",
        summary.values(),
        as_csv=chosen.csv,
    )


def rows_of(tested: Comparison) -> Iterator[Row]:
    """Yield a row of the table for FedAvg, then one for each other chosen arm."""
    worst = "worst client" if len(tested.values[tested.baseline][0]) <= 10 else "worst 10 %"
    gains = {measure: tested.differences(measure) for measure in ("mean", "worst_10")}
    for label in tested.methods:
        yield {
            "method": label,
            "mean": f"{tested.spread(label, 'mean')[0]:.1f}",
            "gain, mean": gain(gains["mean"].get(label)),
            worst: f"{tested.spread(label, 'worst_10')[0]:.1f}",
            f"gain, {worst}": gain(gains["worst_10"].get(label)),
        }


def gain(found: Difference | None) -> str:
    """Return a difference with its interval.

    It is bold if the interval excludes 0, with * if Holm's correction agrees.
    """
    if found is None:
        return ""
    words = f"{found.mean:+.1f}".replace("-0.0", "+0.0")
    if math.isnan(found.low):  # a single seed, or the same difference for all
        return words
    words = f"{words} ({found.low:+.1f} to {found.high:+.1f})"
    if found.low <= 0.0 <= found.high:
        return words
    return f"**{words}***" if found.significant else f"**{words}**"


if __name__ == "__main__":
    main()
