"""The measures in which papers make their claims, against independent computations."""

import csv
import itertools
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from fairbloom import compare
from fairbloom.experiments.recipe import load_recipe
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.server.fairness import against_baseline
from fairbloom.strategies.simplex import measure_conflicts


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return a comparison of two methods on digits with two seeds."""
    folder = tmp_path_factory.mktemp("measures") / "compared"
    settings = {"num-rounds": 3, "clients": 6, "partition": "shards"}
    return compare(
        methods=["fedavg", "fedmgdaplus"],
        task="digits",
        seeds=2,
        settings=settings,
        out=folder,
        progress=False,
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_improved_is_the_mean_over_rounds(compared: Comparison) -> None:
    rows = rows_of(compared.folder / "comparison.csv")
    for row, run in zip(rows, itertools.chain(*compared.runs.values()), strict=True):
        rounds = rows_of(run.folder / "rounds.csv")
        cells = [float(each["percent_of_participants_improved"]) for each in rounds]
        assert float(row["improved"]) == pytest.approx(statistics.fmean(cells))


def test_shares_of_suffering_clients_are_counted_by_hand(compared: Comparison) -> None:
    clients = rows_of(compared.folder / "clients.csv")
    column = "test_accuracy" if "test_accuracy" in clients[0] else "accuracy"
    scores = {(r["method"], r["seed"], r["client"]): float(r[column]) for r in clients}
    base, other = compared.methods
    shares = []
    changes = []
    for seed in ("0", "1"):
        names = {client for method, of, client in scores if (method, of) == (base, seed)}
        mean = statistics.fmean(scores[base, seed, name] for name in names)
        low = [name for name in names if scores[base, seed, name] < mean]
        gains = [scores[other, seed, name] - scores[base, seed, name] for name in low]
        shares.append(100 * sum(gain > 0 for gain in gains) / len(gains))
        changes.append(statistics.fmean(gains))
    found = {row["measure"]: row for row in rows_of(compared.folder / "differences.csv")}
    assert float(found["suffering_share"]["mean"]) == pytest.approx(statistics.fmean(shares))
    assert float(found["suffering_change"]["mean"]) == pytest.approx(statistics.fmean(changes))
    assert found["suffering_share"]["better"] == ""


def test_methods_with_inner_products_record_conflicts(compared: Comparison) -> None:
    fedavg, fedmgda = (of_seeds[0].rounds for of_seeds in compared.runs.values())
    assert "conflicts" not in fedavg
    assert fedmgda["conflicts"].between(0.0, 1.0).all()
    assert fedmgda["stationarity"].between(0.0, 1.0).all()


@pytest.mark.parametrize("lower", [False, True])
def test_changes_against_a_baseline_by_hand(lower: bool) -> None:
    sign = -1.0 if lower else 1.0
    base = {"a": sign * 10.0, "b": sign * 20.0, "c": sign * 60.0}
    after = {"a": sign * 15.0, "b": sign * 19.0, "c": sign * 50.0}
    found = against_baseline(after, base, lower_is_better=lower)
    assert found == pytest.approx(
        {
            "suffering_share": 50.0,
            "suffering_change": 2.0,
            "well_performing_share": 100.0,
            "well_performing_change": -10.0,
            "mean_change": -2.0,
        }
    )


def test_equally_served_clients_do_not_suffer() -> None:
    found = against_baseline({"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 0.1})
    assert np.isnan(found["suffering_share"])
    assert found["well_performing_change"] == pytest.approx(0.9)


def test_conflicts_and_stationarity_by_a_general_solver() -> None:
    rng = np.random.default_rng(3)
    for m in (2, 3, 6):
        updates = rng.normal(size=(m, 8))
        found = measure_conflicts(updates @ updates.T)
        pairs = [a @ b < 0 for a, b in itertools.combinations(updates, 2)]
        assert found["conflicts"] == pytest.approx(np.mean(pairs))
        solved = minimize(
            lambda x, updates=updates: float(np.sum((x @ updates) ** 2)),
            np.full(m, 1 / m),
            bounds=[(0, 1)] * m,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            tol=1e-14,
        )
        mean_norm = np.linalg.norm(updates, axis=1).mean()
        assert found["stationarity"] == pytest.approx(np.sqrt(solved.fun) / mean_norm, abs=1e-5)


def test_opposite_updates_are_stationary() -> None:
    assert measure_conflicts(np.array([[1.0, -1.0], [-1.0, 1.0]])) == {
        "conflicts": 1.0,
        "stationarity": pytest.approx(0.0, abs=1e-6),
    }


def test_a_single_update_has_no_conflicts() -> None:
    assert measure_conflicts(np.ones((1, 1))) == {}


def test_table_2_compares_with_the_first_row() -> None:
    recipe = load_recipe("semivred-table2")
    assert recipe.rows[0].label == "FedAvg"
    row = next(row for row in recipe.rows if row.label == "Semi-VRed")
    means = [number.mean for number in recipe.published(row).values()]
    assert means == [65.40, 1.47, 53.17, -0.42, 0.64]
