from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import Ditto, FairStrategy, FedAvg, Local
from tests.rounds.helpers import KINDS

from .helpers import (
    ARGUMENTS,
    BUFFERS,
    MemoryGrid,
    cohort_of,
    edgy_updates,
    initial_model,
    losses_and_counts,
    make,
    quadratics,
    record,
    told,
    unpack,
)


def models(strategy: FairStrategy, grid: MemoryGrid | None = None) -> list[bytes]:
    """The bits of the global model after each of four rounds."""
    after: list[bytes] = []

    def on_round(finished: Any) -> None:
        after.append(b"".join(array.tobytes() for array in unpack(finished.arrays).values()))

    grid = grid or MemoryGrid(quadratics(6))
    strategy.start(grid, record(initial_model()), num_rounds=4, on_round=on_round)
    return after


# Reductions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"fraction_train": 0.5, "seed": 3, "weighting": "uniform", "buffers": BUFFERS}]
)
def test_the_global_model_is_fedavgs_to_the_bit_for_each_lam(options: dict[str, Any]) -> None:
    fedavg = models(FedAvg(**options))
    for lam, epochs in [(0.0, 1), (0.1, 3), (1e6, 1), (1e30, 2)]:
        assert models(Ditto(lam=lam, personal_epochs=epochs, **options)) == fedavg


@given(U=edgy_updates(), lam=st.floats(0.0, 1e30))
def test_the_server_averages_as_fedavg_does(U: FloatArray, lam: float) -> None:
    F, n = losses_and_counts(len(U))
    cohort = cohort_of(U, losses=F, counts=n, weighting="examples")
    np.testing.assert_array_equal(Ditto(lam=lam).weigh(cohort), FedAvg().weigh(cohort))


# What the clients are told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 1e-30, 0.1, 1e30])
def test_pull_and_epochs_are_told_also_for_a_pull_of_zero(lam: float) -> None:
    assert told(Ditto(lam=lam), 1) == {"personal-lambda": lam, "personal-epochs": 1}
    config = told(Ditto(lam=lam, personal_epochs=3, proximal_mu=0.5), 1)
    assert config == {"personal-lambda": lam, "personal-epochs": 3, "proximal-mu": 0.5}
    assert type(config["personal-epochs"]) is int


@pytest.mark.parametrize("strategy", [Ditto(lam=0.0), Ditto(lam=2.0), Local(), FedAvg(personal_lambda=2.0)])
def test_evaluation_is_told_that_there_is_a_personal_model(strategy: FairStrategy) -> None:
    grid = MemoryGrid(quadratics(3))
    models(strategy, grid)
    pull = strategy.personal_lambda
    for _, message in grid.sent_to(MessageType.EVALUATE):
        assert message.content.config_records["config"]["personal-lambda"] == pull
    grid = MemoryGrid(quadratics(3))
    models(FedAvg(), grid)
    assert all(
        "personal-lambda" not in message.content.config_records["config"]
        for _, message in grid.sent_to(MessageType.EVALUATE)
    )


def test_the_common_option_is_dittos_pull_with_one_epoch() -> None:
    assert told(FedAvg(personal_lambda=0.5), 1) == told(Ditto(lam=0.5), 1)
    assert told(FedAvg(personal_lambda=0.0), 1) == {}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "ditto"])
def test_a_personal_model_leaves_the_global_model_alone(name: str) -> None:
    assert models(make(name, ARGUMENTS[name][0], personal_lambda=0.5, buffers=BUFFERS)) == models(
        make(name, ARGUMENTS[name][0], buffers=BUFFERS)
    )


# Local --------------------------------------------------------------------------------------------------------------


def test_the_global_model_of_local_never_moves() -> None:
    initial = b"".join(array.tobytes() for array in unpack(record(initial_model())).values())
    assert models(Local(buffers=BUFFERS)) == [initial] * 4
    assert models(Local()) == [initial] * 4


@given(U=edgy_updates())
def test_local_weighs_nothing(U: FloatArray) -> None:
    c = Local().weigh(cohort_of(U))
    assert c.tolist() == [0.0] * len(U)


def test_local_clients_do_nothing_for_the_global_model() -> None:
    assert told(Local(), 1) == {"personal-lambda": 0.0, "personal-epochs": 1, "local-only": True}
    for strategy in (Ditto(lam=0.0), FedAvg(personal_lambda=1.0)):
        assert "local-only" not in told(strategy, 1)


# Parameters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, None, "1"])
def test_parameters_outside_their_range_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"lam = .*allowed is float at least 0"):
        Ditto(lam=value)
    with pytest.raises(ValueError, match=r"personal_epochs = .*allowed is int at least 1"):
        Ditto(lam=1.0, personal_epochs=value)


@pytest.mark.parametrize("method", [lambda **o: Ditto(lam=0.1, **o), Local])
def test_the_pull_is_given_by_the_method_alone(method: Any) -> None:
    with pytest.raises(ValueError, match=r"sets personal_lambda by its own parameter, got 0\.5"):
        method(personal_lambda=0.5)
