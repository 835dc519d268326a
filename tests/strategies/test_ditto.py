from typing import Any

from fairbloom.strategies import Ditto, FairStrategy, FedAvg
from tests.rounds.helpers import KINDS

from .helpers import (
    ARGUMENTS,
    BUFFERS,
    MemoryGrid,
    initial_model,
    make,
    quadratics,
    record,
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


def test_the_global_model_is_fedavgs_to_the_bit_for_each_lam() -> None:
    options: dict[str, Any] = {"fraction_train": 0.5, "seed": 3, "weighting": "uniform", "buffers": BUFFERS}
    fedavg = models(FedAvg(**options))
    for lam, epochs in [(0.0, 1), (0.1, 3), (1e30, 2)]:
        assert models(Ditto(lam=lam, personal_epochs=epochs, **options)) == fedavg


# What the clients are told ------------------------------------------------------------------------------------------


def test_a_personal_model_leaves_the_global_model_alone() -> None:
    for name in KINDS:
        if name != "ditto":
            personal, plain = ({"personal_lambda": 0.5}, {})
            one, other = (make(name, ARGUMENTS[name][0], buffers=BUFFERS, **extra) for extra in (personal, plain))
            assert models(one) == models(other), name
