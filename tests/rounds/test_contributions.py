"""How far updates point along the step: against the vectors themselves, and its properties.

Cosines between updates: against the vectors themselves, and which updates are drawn.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.rounds import arrays, vectors
from fairbloom.rounds.aggregation import COSINES, measure_contributions, measure_cosines
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.rounds.vectors import Vectors, subtract_sum
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FedAvg, FedFV, FedLF, FedMGDAPlus, Local, QFedAvg
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


def rounds_of(method: Method, count: int = 3) -> Sequence[tuple[Round, dict[str, FloatArray], Any]]:
    """Return each round, its updates, and the distance of the model by its step."""
    config = {**PLAIN, "model": "mlp"}
    clients = Recording(method, RunSettings.of(config))
    before: Model = arrays_of(load_task(config).model().state_dict())
    found = []
    for finished in Rounds(method, clients, count).run(
        before, measure=lambda number: (), measure_after=()
    ):
        found.append((finished, clients.updates, flat(before) - flat(finished.arrays)))
        before = finished.arrays
    return found


def check(finished: Round, updates: dict[str, FloatArray], d: FloatArray, rtol: float) -> None:
    assert finished.contributions.keys() == updates.keys()
    for name, u in updates.items():
        found = finished.contributions[name]
        norms = np.linalg.norm(u) * np.linalg.norm(d)
        np.testing.assert_allclose(found.cosine, u @ d / norms, rtol=rtol, atol=rtol)
        rest = u @ (d - finished.coefficients[name] * u)
        np.testing.assert_allclose(found.along_others, rest, rtol=rtol, atol=rtol * norms)


# By the vectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(fraction_train=0.6),
        QFedAvg(fraction_train=0.6),
        FedMGDAPlus(fraction_train=0.6),
        FedAvg(fraction_train=0.6, server_optimizer="adam", server_optimizer_lr=0.01),
        FedAvg(defence="krum"),
    ],
    ids=["fedavg", "qfedavg", "fedmgdaplus", "adam", "krum"],
)
def test_contributions_are_those_of_the_weighted_updates(method: Method) -> None:
    for finished, updates, _ in rounds_of(method):
        d = np.sum([finished.coefficients[name] * u for name, u in updates.items()], axis=0)
        check(finished, updates, d, rtol=1e-5)


@pytest.mark.parametrize("method", [FedFV(tau=2), FedLF()], ids=["fedfv", "fedlf"])
def test_kept_rows_and_arrays_count_in_the_step(method: Method) -> None:
    """The model's rounding to float32 is in the difference that this compares with."""
    for finished, updates, difference in rounds_of(method):
        d = difference
        for name, u in updates.items():
            assert finished.contributions[name].cosine == pytest.approx(
                u @ d / np.linalg.norm(u) / np.linalg.norm(d), abs=2e-4
            )


@pytest.mark.parametrize(
    "method",
    [FedAvg(defence="trimmed-mean"), Local()],
    ids=["trimmed-mean", "local"],
)
def test_a_step_that_is_no_weighted_sum_has_none(method: Method) -> None:
    for finished, _, _ in rounds_of(method, 1):
        assert finished.coefficients
        assert not finished.contributions


# Properties ---------------------------------------------------------------------------------------


def contributions_of(U: FloatArray, c: FloatArray, dtype: Any = np.float64) -> list[Any]:
    step = subtract_sum(c, Vectors((U.astype(dtype),)), into=np.zeros(U.shape[1], dtype))
    names = [f"client-{k}" for k in range(len(U))]
    found = measure_contributions(names, np.linalg.norm(U, axis=1), c, step)
    return [found.get(name) for name in names]


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 6),
    chunk=st.sampled_from([3, 64, 8192]),
    few=st.booleans(),
)
def test_cosines_are_between_minus_one_and_one(seed: int, m: int, chunk: int, few: bool) -> None:
    """In chunks of any size, and whether products are in float32 or float64."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(m, 50)).astype(np.float32).astype(np.float64)
    c = rng.normal(size=m)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        patch.setattr(vectors, "EXACT_NUMBERS", 10**9 if few else 0)
        found = contributions_of(U, c, np.float32)
    d = c @ U
    for u, weight, each in zip(U, c, found, strict=True):
        assert -1.0 <= each.cosine <= 1.0
        norms = np.linalg.norm(u) * np.linalg.norm(d)
        np.testing.assert_allclose(each.cosine, u @ d / norms, atol=1e-5)
        scale = norms + abs(weight) * (u @ u)
        np.testing.assert_allclose(each.along_others, u @ (d - weight * u), atol=1e-5 * scale)


@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(1e-3, 1e3))
def test_a_longer_step_has_the_same_cosines(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(4, 30))
    c = rng.random(4)
    assert [
        (one, other)
        for one, other in zip(contributions_of(U, c), contributions_of(U, factor * c), strict=True)
        if one.cosine != pytest.approx(other.cosine, abs=1e-12)
    ] == []


def test_a_client_alone_goes_its_own_way() -> None:
    (alone,) = contributions_of(np.array([[3.0, 4.0]]), np.array([0.5]))
    assert alone == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))


def test_an_update_of_zero_has_none() -> None:
    moving, still = contributions_of(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([0.5, 0.5]))
    assert (moving.cosine, still) == (1.0, None)


def test_numbers_beyond_the_range_have_none() -> None:
    with np.errstate(over="ignore"):
        assert contributions_of(np.full((2, 3), 1e200), np.ones(2)) == [None, None]


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
    for finished, updates, _ in rounds_of(FedAvg(fraction_train=0.6)):
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
