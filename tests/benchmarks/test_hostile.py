"""The hostile client of benchmarks.hostile lies as its table says, and nobody else does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hostile import (
    FEDERATIONS,
    FILE,
    HOSTILE,
    METHODS,
    PLAIN,
    REPLIES,
    REPORTS,
    SEEDS,
    attacked,
    cell_of,
    final_of,
)
from benchmarks.tables import read_csv
from fairbloom.experiments.results.run import load
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.checkout import ROOT

ROUND: dict[str, Any] = {**PLAIN, "clients": 3, "num-rounds": 1, "method": "fedavg", "seed": 1}


def model_after(attack: str, out: Path) -> np.ndarray[Any, Any]:
    arrays = attacked(ROUND, attack, out).arrays()
    return np.concatenate([array.ravel() for array in arrays.values()])


def test_without_a_lie_a_run_is_an_ordinary_one(tmp_path: Path) -> None:
    expected = load(simulate(Settings.of({**ROUND, "out": str(tmp_path / "a")}))).arrays()
    for name, array in attacked(ROUND, "nobody", tmp_path / "b").arrays().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5)


def test_one_client_changes_its_update(tmp_path: Path) -> None:
    """What FedAvg loses without its update, u, half of it reversed loses half as much again."""
    honest, none, half = (
        model_after(attack, tmp_path / str(place))
        for place, attack in enumerate(("nobody", "what it received", "minus half its update"))
    )
    assert np.abs(honest - none).max() > 1e-3
    np.testing.assert_allclose(half - none, -0.5 * (honest - none), atol=1e-6)


def test_lies_are_as_the_columns_say() -> None:
    received = np.array([3.0, 4.0], np.float32)
    trained = np.array([2.0, 4.0], np.float32)
    replies = {name: lie(received, trained) for name, lie in REPLIES.items()}
    np.testing.assert_array_equal(replies["nobody"], trained)
    np.testing.assert_array_equal(replies["minus half its update"], [3.5, 4.0])
    np.testing.assert_array_equal(replies["what it received"], received)
    np.testing.assert_array_equal(replies["twice the model"], [6.0, 8.0])
    assert np.linalg.norm(replies["noise"] - received) == pytest.approx(5.0)
    other = REPLIES["noise"](received + 1.0, trained) - (received + 1.0)
    assert not np.allclose(other / np.linalg.norm(other), (replies["noise"] - received) / 5.0)


def test_the_attackers_score_is_in_no_cell() -> None:
    final = final_of(ROUND, "loss + 1")
    assert {*final} == {"client-0", "client-2"}
    assert HOSTILE == "client-1"
    mean, _, worst = cell_of(ROUND, "nobody", seeds=1).partition(" / ")
    assert float(worst) <= float(mean)
    assert " \N{PLUS-MINUS SIGN} " in cell_of(ROUND, "nobody", seeds=2)


def test_the_page_has_the_table_of_all_methods_and_attacks() -> None:
    rows = read_csv(ROOT / FILE)
    assert [*rows[0]] == ["clients", "method", *REPLIES, *REPORTS]
    assert [(row["clients"], row["method"]) for row in rows] == [
        (federation, method) for federation in FEDERATIONS for method in METHODS
    ]
    page = (ROOT / "docs" / "nodes-trust.md").read_text()
    assert f":file: {FILE.relative_to('docs')}" in page
    assert {3: "three seeds"}[SEEDS] in page
