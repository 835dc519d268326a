"""Leave a fifth of the clients of each federation out of training, and test the model on them.

For each workload with values of seeds in --tables and more than 20 clients, runs FedAvg and the
fair methods with a common model by the arms and seeds of these values, with held-out-clients = 0.2,
and writes `held-out.csv` there: the score of the worst-served tenth of the clients in training, and
the mean and the worst tenth of the others. The arms were chosen with all clients.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fairbloom import compare
from fairbloom.experiments.results.noise import estimates
from fairbloom.experiments.studies.search import VALIDATION_SHARE

from ..methods import MANY, WORKLOADS, Workload, parser_with_folders, replace_rows
from ..tables import Row, read_csv

TABLE = "held-out.csv"

SHARE = 0.2
"""Of the clients, not in training."""

FEWEST = 21
"""The fewest clients of a federation that can spare them."""

LEFT_OUT = {"scaffold", "feddyn", "ditto", "local"}
"""Methods of MANY that are not fair with a common model."""

METHODS = [method for method in MANY if method not in LEFT_OUT]


def hold_out(
    name: str, workload: Workload, chosen: list[dict[str, str]], out: Path, jobs: int
) -> Iterator[Row]:
    """Yield a row for each method and seed; `chosen` are the rows of the methods' arms."""
    seeds = sorted({int(row["seed"]) for row in chosen})
    arms = {
        row["arm"]: row["method"] + row["arm"].partition(" ")[2].replace(" ", "") for row in chosen
    }
    compared = compare(
        methods=[*arms.values()],
        baseline=next(iter(arms.values())),
        seeds=len(seeds),
        seed=seeds[0],
        jobs=jobs,
        out=out / name / "held-out",
        settings={
            **workload.settings_below(out),
            "validation-share": VALIDATION_SHARE,  # as in the search
            "held-out-clients": SHARE,
        },
    )
    for label, runs in compared.runs.items():
        for seed, run in zip(seeds, runs, strict=True):
            others = run.held_out()
            yield {
                "workload": name,
                "method": arms[label].partition("(")[0],
                "seed": seed,
                "worst_10": estimates(run.final(), compared.score)["worst_10"].value,
                "held_out_mean": fmean(others.values()),
                "held_out_worst_10": estimates(others, compared.score)["worst_10"].value,
            }


def main() -> None:
    """Run what is missing, and write the table."""
    chosen = parser_with_folders(__doc__, [*WORKLOADS], Path("docs/data/tuned")).parse_args()
    for about in read_csv(chosen.tables / "federations.csv"):
        name = about["workload"]
        if name in chosen.workloads and int(about["clients"]) >= FEWEST:
            seeds = read_csv(chosen.tables / f"{name}-seeds.csv")
            known = [row for method in METHODS for row in seeds if row["method"] == method]
            rows = [*hold_out(name, WORKLOADS[name], known, chosen.out, chosen.jobs)]
            replace_rows(chosen.tables / TABLE, name, rows)


if __name__ == "__main__":
    main()
