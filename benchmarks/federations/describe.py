"""Describe the federations of `benchmarks.methods` by FedAvg: how alike their clients are.

For each workload with values of seeds in --tables, runs FedAvg at its learning rate with the same
seeds, and writes `federations.csv` there: the quartiles and the mean of the cosines between
clients' updates, the mean and the standard deviation of their scores on validation examples, and
the sizes of the clients. Nothing of it is measured on test examples, since it may predict them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

from fairbloom import compare
from fairbloom.experiments.results.run import Run
from fairbloom.experiments.studies.search import VALIDATION_SHARE
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.compatibility import GRAM
from fairbloom.rounds.sampling import sample
from fairbloom.strategies import FedAvg
from fairbloom.tasks import load_task

from ..methods import BASELINE, WORKLOADS, Workload, parser_with_folders, replace_rows
from ..tables import Row, read_csv
from .prepare import FLIGHTS

TABLE = "federations.csv"

COLUMNS = ("cosine_low", "cosine", "cosine_high")
"""The columns of rounds.csv with quartiles and mean of the cosines, and of TABLE."""

MEASURED_ROUNDS = 10
"""The first rounds, in which cosines are measured."""

MEASURED_UPDATES = 30
"""The most updates of a round of which cosines are measured."""

DATA = {
    "shards": "digits",
    "acs-income-mlp": "acs-income",
    **dict.fromkeys(FLIGHTS, "flights"),
}
"""The data set of a workload, if it has another name."""


class Described(FedAvg):
    """FedAvg, which reports the quartiles and the mean of the cosines between updates.

    Of many updates, some are drawn by the seed; updates without a direction have no part.
    """

    requires = frozenset({GRAM})
    reports = COLUMNS

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the cosines of one of the first rounds, {} without two updates."""
        found = super().own_metrics(cohort, coefficients)
        moving = np.flatnonzero(np.diag(cohort.gram)).tolist()
        drawn = sample(moving, MEASURED_UPDATES, self.seed, "cosines", cohort.round)
        if len(drawn) < 2 or cohort.round > MEASURED_ROUNDS:
            return found
        gram = cohort.gram[np.ix_(drawn, drawn)]
        norms = np.sqrt(np.diag(gram))
        pairs = (gram / np.outer(norms, norms))[np.triu_indices(len(drawn), 1)].clip(-1.0, 1.0)
        low, high = np.quantile(pairs, (0.25, 0.75))
        return {**found, **dict(zip(COLUMNS, (low, pairs.mean(), high), strict=True))}


def describe(name: str, workload: Workload, chosen: Sequence[Row], out: Path, jobs: int) -> Row:
    """Return the row of a workload; `chosen` are FedAvg's rows, one a seed."""
    settings = workload.settings_below(out)
    compared = compare(
        methods=f"{__name__}:Described{str(chosen[0]['arm']).partition(' ')[2]}",
        seeds=len(chosen),
        seed=min(int(str(row["seed"])) for row in chosen),
        jobs=jobs,
        out=out / name / "described",
        settings={**settings, "validation-share": VALIDATION_SHARE},  # as in the search
    )
    runs = compared.runs[compared.baseline]
    scores = [[*run.final(split="validation").values()] for run in runs]
    sizes = sizes_of(runs[0])
    return {
        "workload": name,
        "data": DATA.get(name, name),
        "clients": len(sizes),
        "model": settings["model"],
        "score": compared.score.name,
        "rows": sum(sizes),
        **mean_cosines(runs),
        "validation": fmean(map(fmean, scores)),
        "spread": fmean(map(pstdev, scores)),
        "smallest": min(sizes),
        "largest": max(sizes),
    }


def mean_cosines(runs: Sequence[Run]) -> dict[str, float]:
    """Return COLUMNS: quartiles and mean of the cosines between clients' updates.

    They are means over the rounds of all seeds.
    """
    rows = [row for run in runs for row in run.rounds[[*COLUMNS]].dropna().to_numpy().tolist()]
    means = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
    return dict(zip(COLUMNS, means, strict=True))


def sizes_of(run: Run) -> list[int]:
    """Return the number of examples of each client of a run."""
    task = load_task(run.settings)
    splits = [task.splits(client) for client in task.clients]
    parts = [(each.train, each.test, each.validation) for each in splits]
    return [sum(len(part) for part in of_client if part is not None) for of_client in parts]


def main() -> None:
    """Run FedAvg where it is missing, and write the table."""
    chosen = parser_with_folders(__doc__, [*WORKLOADS], Path("docs/data/tuned")).parse_args()
    for name in chosen.workloads:
        seeds = read_csv(chosen.tables / f"{name}-seeds.csv", optional=True)
        if found := [row for row in seeds if row["method"] == BASELINE]:
            row = describe(name, WORKLOADS[name], found, chosen.out, chosen.jobs)
            replace_rows(chosen.tables / TABLE, name, [row])


if __name__ == "__main__":
    main()
