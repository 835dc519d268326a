"""Cosines between updates: against the vectors themselves, and which updates are drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.rounds import vectors
from fairbloom.rounds.aggregation import COSINES, measure_cosines
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FedAvg, FedFV, Local
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of

from .helpers import taken_in
from .implementations import PLAIN


class Recording(LocalClients):
    """Clients whose updates a test sees."""

    def train(self, *arguments: Any, **named: Any) -> TrainReplies:
        trained = super().train(*arguments, **named)
        matrix = trained.updates.matrix[: len(trained.names)].astype(np.float64)
        self.updates = dict(zip(trained.names, matrix, strict=True))
        return trained


def flat(model: Model) -> FloatArray:
    return np.concatenate([array.ravel() for array in model.values()]).astype(np.float64)


def rounds_of(method: Method, count: int = 3) -> Sequence[tuple[Round, dict[str, FloatArray]]]:
    """Return each round and its updates."""
    config = {**PLAIN, "model": "mlp"}
    clients = Recording(method, RunSettings.of(config))
    first: Model = arrays_of(load_task(config).model().state_dict())
    found = []
    for finished in Rounds(method, clients, count).run(
        first, measure=lambda number: (), measure_after=()
    ):
        found.append((finished, clients.updates))
    return found


class Unmeasured(FedAvg):
    reports = ()  # type: ignore[assignment]


def expected(U: FloatArray) -> list[Any]:
    units = U / np.linalg.norm(U, axis=1, keepdims=True)
    found = [units[j] @ units[k] for j in range(len(U)) for k in range(j)]
    low, high = np.percentile(found, (25, 75))
    return [low, np.mean(found), high]


def measured(U: FloatArray, number: int = 1, method: Method | None = None) -> list[Any]:
    updates = taken_in(Layout({"w": np.zeros(U.shape[1])}), [{"w": -u} for u in U])
    updates.screen(gram=False)
    found = measure_cosines(method or FedAvg(seed=3), number, updates)
    return [found[name] for name in COSINES if name in found]


def test_cosines_are_those_of_all_pairs_of_updates() -> None:
    for finished, updates in rounds_of(FedAvg(fraction_train=0.6)):
        found = [finished.cosines[name] for name in COSINES]
        np.testing.assert_allclose(found, expected(np.stack([*updates.values()])), atol=1e-6)


@pytest.mark.parametrize("number", [1, 10])
def test_of_many_updates_thirty_are_drawn_by_the_seed(number: int) -> None:
    U = np.random.default_rng(0).normal(size=(45, 7))
    U[[4, 30]] = 0.0  # they have no direction
    moving = np.delete(U, [4, 30], axis=0)
    draw = generator(3, "cosines", number).choice(43, 30, replace=False, shuffle=False)
    np.testing.assert_allclose(measured(U, number), expected(moving[np.sort(draw)]))


@pytest.mark.parametrize(
    ("rows", "number", "method"),
    [
        (2, 11, FedAvg()),
        (1, 1, FedAvg()),
        (2, 1, FedFV()),
        (2, 1, Local()),
    ],
    ids=["round 11", "one update", "a method that does not report them", "local"],
)
def test_there_may_be_no_cosines(rows: int, number: int, method: Method) -> None:
    assert measured(np.eye(2)[:rows] * (not isinstance(method, Local)), number, method) == []


def test_updates_of_any_length_have_cosines() -> None:
    np.testing.assert_allclose(
        measured(np.array([[1e-120, 0.0], [1e120, 1e120], [0.0, 1.0]])),
        expected(np.array([[1.0, 0], [1, 1], [0, 1]])),
    )


def test_measuring_cosines_changes_no_bit() -> None:
    ends = []
    for method in (FedAvg(fraction_train=0.5), Unmeasured(fraction_train=0.5)):
        config = {**PLAIN, "model": "mlp"}
        clients = LocalClients(method, RunSettings.of(config))
        first = arrays_of(load_task(config).model().state_dict())
        rounds = Rounds(method, clients, 3).run(first, measure=lambda number: (), measure_after=())
        ends.append([(each.participants, flat(each.arrays).tobytes()) for each in rounds])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("numbers", [0, 10**9])
def test_rows_of_a_matrix_are_taken_as_they_are(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether few numbers are copied, or none."""
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", numbers)
    U = np.random.default_rng(0).normal(size=(45, 7))
    taken = vectors.Vectors((U,)).take([3, 8, 44])
    np.testing.assert_array_equal(
        np.concatenate([np.asarray(block) for block in taken.blocks]), U[[3, 8, 44]]
    )
    assert np.shares_memory(taken.blocks[0], U) == (not numbers)
