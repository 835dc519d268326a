"""Describe the federations of `benchmarks.methods` by FedAvg: how alike their clients are.

For each workload with values of seeds in --tables, runs FedAvg at its learning rate with the same
seeds, and writes `federations.csv` there: the quartiles and the mean of the cosines between
clients' updates, the standard deviation of their scores, and the sizes of the clients.
"""

from collections.abc import Sequence
from pathlib import Path

from fairbloom import compare
from fairbloom.experiments.results.run import Run
from fairbloom.experiments.studies.search import VALIDATION_SHARE
from fairbloom.tasks import load_task

from ..methods import BASELINE, WORKLOADS, Workload, write_rows
from ..tables import Row, parser_of, read_csv

TABLE = "federations.csv"

DATA = {"shards": "digits", "acs-income-mlp": "acs-income"}
"""The data set of a workload, if it has another name."""


def describe(name: str, workload: Workload, chosen: Sequence[Row], out: Path, jobs: int) -> Row:
    """Return the row of a workload; `chosen` are FedAvg's rows, one a seed."""
    settings = workload.settings_below(out)
    compared = compare(
        methods=BASELINE + str(chosen[0]["arm"]).partition(" ")[2],
        seeds=len(chosen),
        seed=min(int(str(row["seed"])) for row in chosen),
        jobs=jobs,
        out=out / name / "described",
        settings={**settings, "validation-share": VALIDATION_SHARE},  # as in the search
    )
    if compared.federation is None:
        raise SystemExit(f"{name}: FedAvg measured no cosines")
    cosines = compared.federation.cosines
    sizes = sizes_of(compared.runs[compared.baseline][0])
    return {
        "workload": name,
        "data": DATA.get(name, name),
        "clients": len(sizes),
        "model": settings["model"],
        "score": compared.score.name,
        "rows": sum(sizes),
        "cosine_low": cosines.low,
        "cosine": cosines.mean,
        "cosine_high": cosines.high,
        "spread": compared.spread(compared.baseline, "std")[0],
        "smallest": min(sizes),
        "largest": max(sizes),
    }


def sizes_of(run: Run) -> list[int]:
    """Return the number of examples of each client of a run."""
    task = load_task(run.settings)
    splits = [task.splits(client) for client in task.clients]
    parts = [(each.train, each.test, each.validation) for each in splits]
    return [sum(len(part) for part in of_client if part is not None) for of_client in parts]


def main() -> None:
    """Run FedAvg where it is missing, and write the table."""
    parser = parser_of(__doc__, [*WORKLOADS])
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--tables", type=Path, default=Path("docs/data/tuned"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    chosen = parser.parse_args()
    rows = []
    for name in chosen.workloads:
        seeds = read_csv(chosen.tables / f"{name}-seeds.csv", optional=True)
        if found := [row for row in seeds if row["method"] == BASELINE]:
            rows.append(describe(name, WORKLOADS[name], found, chosen.out, chosen.jobs))
            write_rows(chosen.tables / TABLE, rows)


if __name__ == "__main__":
    main()
