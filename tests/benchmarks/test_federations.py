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
from benchmarks.methods import WORKLOADS
from benchmarks.tables import read_csv
from fairbloom.errors import FairbloomError
from tests.originals import is_there, needs


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
