"""The tables of real federations: which ones are accepted, and what is drawn from them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import fairbloom
from benchmarks.federations import prepare
from benchmarks.federations.alone import compare_states
from benchmarks.federations.describe import COLUMNS, Described, describe
from benchmarks.methods import WORKLOADS, Workload
from benchmarks.tables import read_csv
from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator
from fairbloom.rounds.arrays import FloatArray
from tests.commands import fork_workers
from tests.originals import is_there, needs
from tests.strategies.helpers import cohort_of


def write_state(path: Path, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {name: random.integers(1, 4, rows) for name in prepare.COLUMNS}
    pandas.DataFrame(columns | {"PINCP": random.random(rows) < 0.5}).to_parquet(path)


def test_a_tenth_of_each_states_rows_is_drawn_with_a_schema(tmp_path: Path) -> None:
    states = [tmp_path / "AK.parquet", tmp_path / "WY.parquet"]
    for seed, path in enumerate(states):
        write_state(path, 200 + 100 * seed, seed)
    sample, schema = tmp_path / "sample", tmp_path / "schema.toml"
    prepare.draw(states, sample, schema)
    clients = fairbloom.check_data(sample, settings={"schema": str(schema)})["clients"]
    rows = clients["train"] + clients["test"]
    assert dict(zip(clients["client"], rows, strict=True)) == {"AK": 20, "WY": 30}
    drawn = {path.name: path.read_bytes() for path in sample.iterdir()}
    prepare.draw(states, sample, schema)
    assert {path.name: path.read_bytes() for path in sample.iterdir()} == drawn


@pytest.mark.parametrize("text", [None, "district,use\n"])
def test_other_tables_than_those_measured_are_refused(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "federations"
    folder.mkdir()
    monkeypatch.setenv("FAIRBLOOM_DATA", str(tmp_path))
    if text is not None:
        folder.joinpath("contraception.csv").write_text(text)
    with pytest.raises(FairbloomError, match="contraception: the tables below FAIRBLOOM_DATA"):
        prepare.data_of("contraception", tmp_path)


@pytest.mark.parametrize("table", sorted({each.table for each in WORKLOADS.values()} - {""}))
def test_the_tables_at_hand_fit_their_schemas(table: str, tmp_path: Path) -> None:
    if not is_there("federations/chem97.csv"):
        pytest.skip("FAIRBLOOM_DATA names no folder with federations/chem97.csv")
    data, schema = prepare.data_of(table, tmp_path)
    checked = fairbloom.check_data(
        data, settings={"schema": str(schema), "csv.smallest-client": 10}
    )
    assert checked["faults"].empty


@pytest.mark.slow
@needs("federations/acs-income-published.csv")
def test_a_states_own_model_is_as_good_as_scikit_learns() -> None:
    rows = [*compare_states(Path(os.environ["FAIRBLOOM_DATA"], "federations"))]
    assert len(rows) == 47
    assert len([row for row in rows if abs(row["Local"] - row["scikit-learn"]) > allowed(row)]) <= 2


def allowed(row: Mapping[str, Any]) -> float:
    """Return 0.5 points or two test rows, the larger."""
    return max(0.5, 200.0 / row["test rows"])


def test_a_missing_table_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    missing = tmp_path / "acs-income-published.csv"
    assert read_csv(missing, optional=True) == []
    with pytest.raises(FileNotFoundError, match=r"acs-income-published\.csv"):
        read_csv(missing)


def of_pairs(U: FloatArray) -> list[float]:
    """Return lower quartile, mean and upper quartile of the cosines of all pairs of rows."""
    units = U / np.linalg.norm(U, axis=1, keepdims=True)
    found = [units[j] @ units[k] for j in range(len(U)) for k in range(j)]
    low, high = np.percentile(found, (25, 75))
    return [low, float(np.mean(found)), high]


def measured(U: FloatArray, number: int) -> list[float]:
    found = Described(seed=3).own_metrics(cohort_of(U, round=number), np.ones(len(U)))
    return [found[name] for name in COLUMNS if name in found]


def test_updates_are_described_by_cosines_of_thirty_of_them() -> None:
    U = np.random.default_rng(0).normal(size=(45, 7))
    U[[4, 30]] = 0.0  # they have no direction
    moving = np.delete(U, [4, 30], axis=0)
    drawn = np.sort(generator(3, "cosines", 10).choice(43, 30, replace=False, shuffle=False))
    np.testing.assert_allclose(measured(U, 10), of_pairs(moving[drawn]))
    np.testing.assert_allclose(measured(moving[:30], 1), of_pairs(moving[:30]))
    assert measured(U, 11) == measured(moving[:1], 1) == []


def test_a_workload_is_described_by_the_rounds_of_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    chosen = [{"arm": "FedAvg (learning-rate=0.1)", "seed": seed} for seed in (0, 1)]
    settings = {"clients": 4, "num-rounds": 11, "model": "logistic", "device": "cpu"}
    workload = Workload(settings)
    row = describe("digits", workload, chosen, tmp_path, 1)
    assert -1.0 <= row["cosine_low"] <= row["cosine"] <= row["cosine_high"] <= 1.0
    tables = (tmp_path / "digits").rglob("rounds.csv")
    columns = [[line["cosine"] != "" for line in read_csv(table)] for table in tables]
    assert columns == [[True] * 10 + [False]] * 2
