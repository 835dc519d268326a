"""The numbers of comparison.csv and differences.csv, recomputed from the runs' clients.csv."""

import math
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fairbloom.experiments import api
from fairbloom.experiments.results.compared_scores import ComparedScores
from fairbloom.protocol.scores import ACCURACY, Score
from tests.simulation.helpers import table

from ..made_up import make_comparison

METHODS = {"FedAvg": "fedavg", "FedFV": "fedfv", "TERM": "term"}
SEEDS = range(4)
CLIENTS = [f"client-{k}" for k in range(23)]
ROUNDS = 3
# test by training examples: the seeds split the rows of the same clients' files, a fifth for the
# test
SHARE = 0.25

RECOMPUTED = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "var": lambda x: x.var(),
    "worst": lambda x: x[0],
    "best": lambda x: x[-1],
    "worst_5": lambda x: x[:2].mean(),  # two of 23 clients
    "worst_10": lambda x: x[:3].mean(),
    "worst_20": lambda x: x[:5].mean(),
    "worst_30": lambda x: x[:7].mean(),
    "best_5": lambda x: x[-2:].mean(),
    "best_10": lambda x: x[-3:].mean(),
    "best_20": lambda x: x[-5:].mean(),
    "best_30": lambda x: x[-7:].mean(),
    "gap": lambda x: abs(x[-1] - x[0]),
    "jain": lambda x: x.sum() ** 2 / (len(x) * (x**2).sum()),
    "gini": lambda x: np.abs(x[:, None] - x).sum() / (2 * len(x) ** 2 * x.mean()),
    "entropy": lambda x: stats.entropy(x),
    "cosine": lambda x: x.sum() / math.sqrt(len(x) * (x**2).sum()),
}
"""Measures of the scores of clients, the worst served first."""


@pytest.mark.parametrize(
    "score", [ACCURACY, Score("mae", higher_is_better=False)], ids=lambda score: score.name
)
def test_numbers_of_a_comparison_are_those_of_its_runs(score: Score, tmp_path: Path) -> None:
    make_comparison(
        tmp_path, list(METHODS.values()), SEEDS, CLIENTS, ROUNDS, score=score, dealt=False
    )
    found = api.load(tmp_path)
    sign = 1.0 if score.higher_is_better else -1.0
    served = {}
    for method, name in METHODS.items():
        for seed in SEEDS:
            (folder,) = (tmp_path / "runs").glob(f"{name}*seed{seed}")
            rows = [row for row in table(folder / "clients.csv") if row["round"] == str(ROUNDS)]
            served[method, seed] = {row["client"]: float(row[score.column()]) for row in rows}

    def measured(method: str, seed: int, measure: str) -> float:
        if measure.startswith("client:"):
            return served[method, seed][measure.removeprefix("client:")]
        return float(
            RECOMPUTED[measure](sign * np.sort(sign * np.array([*served[method, seed].values()])))
        )

    for row in found.rows():
        assert {key: row[key] for key in RECOMPUTED} == pytest.approx(
            {key: measured(row["method"], row["seed"], key) for key in RECOMPUTED}
        )

    good_low = {"std", "var", "gap", "gini"}
    good_high = {"jain", "entropy", "cosine"}
    rows = found.difference_rows()
    against = [row for row in rows if row["measure"].startswith(("suffering", "well_performing"))]
    assert len(against) == 4 * (len(METHODS) - 1)  # computed again in test_papers_measures
    rows = [row for row in rows if row not in against]
    assert {row["measure"] for row in rows} == {
        *RECOMPUTED,
        *(f"client:{client}" for client in CLIENTS),
    }
    raw = {}
    for row in rows:
        method = row["method"]
        measure = row["measure"]
        way = -1.0 if measure in good_low else 1.0 if measure in good_high else sign
        x = way * np.array(
            [measured(method, s, measure) - measured("FedAvg", s, measure) for s in SEEDS]
        )
        error = x.std(ddof=1) * math.sqrt(1 / len(x) + SHARE)
        reach = stats.t.ppf(0.975, len(x) - 1) * error
        expected = [
            fmean(x),
            error,
            x.mean() - reach,
            x.mean() + reach,
            (x > 0).sum(),
            (x < 0).sum(),
            len(x),
        ]
        names = ("mean", "error", "low", "high", "better", "worse", "seeds")
        assert [row[name] for name in names] == pytest.approx(expected), (method, measure)
        if measure in ("worst_10", "mean"):
            raw[method, measure] = 2 * stats.t.sf(abs(x.mean()) / error, len(x) - 1)
        else:
            assert row["p_value"] is None
    # by Holm: the smallest of four counts four times, the next three times, and none is smaller
    largest = 0.0
    for place, (key, p) in enumerate(sorted(raw.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(raw) - place) * p))
        (row,) = (row for row in rows if (row["method"], row["measure"]) == key)
        assert row["p_value"] == pytest.approx(largest)


def test_correlations_have_the_same_bits_in_each_process() -> None:
    """The order of a set of names is another in each process."""
    draws = np.random.default_rng(0)
    names = [f"client-{k:02}" for k in range(30)]
    values = [dict(zip(names, each, strict=True)) for each in draws.random((9, 30))]
    contributions = [dict(zip(names, each, strict=True)) for each in draws.random((9, 30))]
    compared: Any = SimpleNamespace(
        values={"FedFV": values}, contributions={"FedFV": contributions}, seeds=[], score=ACCURACY
    )
    assert ComparedScores.contribution_correlations(compared, "FedFV") == [
        np.corrcoef(np.array([(gave[name], got[name]) for name in names]).T)[0, 1]
        for got, gave in zip(values, contributions, strict=True)
    ]
