"""How far updates point along the step: against the vectors themselves, and its properties."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds import arrays, vectors
from fairbloom.rounds.aggregation import measure_contributions
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.rounds.vectors import Vectors, subtract_sum
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import FedAvg, FedFV, FedLF, FedMGDAPlus, Local, QFedAvg
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of

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
            cosine = u @ d / np.linalg.norm(u) / np.linalg.norm(d)
            assert finished.contributions[name].cosine == pytest.approx(cosine, abs=2e-4)


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
    for one, other in zip(contributions_of(U, c), contributions_of(U, factor * c), strict=True):
        assert one.cosine == pytest.approx(other.cosine, abs=1e-12)


def test_a_client_alone_goes_its_own_way() -> None:
    (alone,) = contributions_of(np.array([[3.0, 4.0]]), np.array([0.5]))
    assert alone == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))


def test_an_update_of_zero_has_none() -> None:
    moving, still = contributions_of(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([0.5, 0.5]))
    assert (moving.cosine, still) == (1.0, None)


def test_numbers_beyond_the_range_have_none() -> None:
    with np.errstate(over="ignore"):
        assert contributions_of(np.full((2, 3), 1e200), np.ones(2)) == [None, None]
