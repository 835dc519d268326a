"""FedProx's γ: how exactly a client solves its local problem (Definition 2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.client import training
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.protocol.terms import Terms
from fairbloom.strategies import FedProx
from tests.simulation.helpers import assert_same_model, run, table

from .quadratic import CURVATURES, MINIMA
from .test_rules import client, joined, split

Vector = np.ndarray[Any, np.dtype[np.float64]]

START = np.array([3.0, 1.0, -2.0])


def train(local: LocalClient, mu: float = 0.0, start: Vector = START) -> tuple[Vector, float]:
    terms = Terms(server_round=1, measure=("inexactness",), proximal_mu=mu)
    update = train_client(local, split(start), terms)
    return joined(update.arrays), float(update.metrics["inexactness"])


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("epochs", [1, 4])
def test_inexactness_of_a_quadratic_is_its_closed_form(mu: float, epochs: int) -> None:
    trained, inexactness = train(client("b", local_epochs=epochs), mu)
    curvature = np.array(CURVATURES["b"])

    def slope(x: Vector) -> float:
        return float(np.linalg.norm(curvature * (x - MINIMA["b"]) + mu * (x - START)))

    assert inexactness == pytest.approx(slope(trained) / slope(START), rel=1e-12)
    # Each step of gradient descent multiplies each coordinate of h's gradient by the same factor.
    first = curvature * (START - MINIMA["b"])
    last = (1.0 - 0.1 * (curvature + mu)) ** epochs * first
    assert inexactness == pytest.approx(np.linalg.norm(last) / np.linalg.norm(first), rel=1e-12)


def test_the_gradient_is_summed_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = train(client("b"))
    monkeypatch.setattr(training, "EVALUATION_BATCH", 2)
    _, in_batches = train(client("b"))
    assert in_batches == pytest.approx(whole, rel=1e-12)


def test_a_client_that_begins_at_its_minimum_reports_0() -> None:
    _, inexactness = train(client("a"), start=np.array(MINIMA["a"]))
    assert inexactness == 0.0


def test_fedprox_asks_for_inexactness_only_if_it_is_set() -> None:
    assert FedProx().needs == frozenset()
    assert FedProx(inexactness=True).needs == {"inexactness"}


def test_clients_csv_has_inexactness_of_the_same_run(tmp_path: Path) -> None:
    changes = {"method": "fedprox", "num_rounds": 3, "local_epochs": 3}
    without = run(tmp_path / "without", engine="loop", **changes)
    measured = run(tmp_path / "with", **changes, **{"fedprox.inexactness": True})
    assert_same_model(measured, without)
    rows = table(measured / "clients.csv")
    for row in rows:
        assert (row["inexactness"] != "") == (row["participated"] == "1")
    assert all(0.0 < float(row["inexactness"]) < 2.0 for row in rows if row["inexactness"])
    assert "inexactness" not in table(without / "clients.csv")[0]
