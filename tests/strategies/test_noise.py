"""Flower's noise is for a model that one reply moves by twice the clipping norm over the clients."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fairbloom.errors import FairbloomError
from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import FairStrategy, FedAvg
from fairbloom.strategies.registry import METHODS
from tests.federation import (
    ARGUMENTS,
    MemoryGrid,
    flat,
    initial_model,
    make,
    quadratics,
    record,
    unpack,
)

FIRST = record({**initial_model(), "scale": np.full(1, 0.5, np.float32)})
CLIP = 0.01
CLIENTS = 4
NOISE = 1e-12

Wrap = Callable[..., Strategy]


def fixed(strategy: FairStrategy, noise: float) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, CLIP, CLIENTS)


def adaptive(strategy: FairStrategy, noise: float) -> Strategy:
    return DifferentialPrivacyServerSideAdaptiveClipping(
        strategy, noise, CLIENTS, initial_clipping_norm=CLIP, clipped_count_stddev=1e-12
    )


def opposed(message: Message, reply: Message) -> list[Message]:
    """Return a reply with the opposite update, other losses and more examples."""
    sent = message.content.array_records["arrays"]
    arrays = reply.content.array_records["arrays"]
    for name, array in arrays.items():
        opposite = np.asarray(2.0 * sent[name].numpy() - array.numpy())
        arrays[name] = Array(opposite.astype(array.numpy().dtype))
    for metrics in reply.content.metric_records.values():
        for name in ("loss-before", "loss-after", "num-examples"):
            if name in metrics:
                metrics[name] = type(metrics[name])(5 * metrics[name])
    return [reply]


def model_of(strategy: Strategy, *, replaced: bool = False) -> FloatArray:
    """Return the model after a round, in which the first client's reply may be `replaced`."""
    grid = MemoryGrid(quadratics(CLIENTS), faults={("site-0", 1): opposed} if replaced else {})
    return flat(unpack(strategy.start(grid, FIRST, num_rounds=1).arrays))


@pytest.mark.parametrize("wrap", [fixed, adaptive])
@pytest.mark.parametrize("name", METHODS)
def test_one_reply_moves_a_private_model_no_further(name: str, wrap: Wrap) -> None:
    options: dict[str, Any] = {"weighting": "uniform"} if METHODS[name].default_weighting else {}
    made = lambda: wrap(make(name, ARGUMENTS.get(name, ({},))[0], **options), NOISE)  # noqa: E731
    if name not in ("fedavg", "fedprox", "propfair", "ditto"):
        with pytest.raises(FairbloomError, match=f"{METHODS[name].__name__}.* LocalDpMod"):
            model_of(made())
        return
    moved = np.linalg.norm(model_of(made()) - model_of(made(), replaced=True))
    assert 0.1 * CLIP / CLIENTS < moved <= 2.0 * CLIP / CLIENTS * (1 + 1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"server_optimizer": "adam", "server_optimizer_lr": 0.1},
        {"server_optimizer": "avgm"},
        {"frozen": ("a",)},
        {"personal_parameters": "a"},
        {"control_variates": True},
    ],
)
def test_options_that_the_noise_does_not_cover_are_refused(options: dict[str, Any]) -> None:
    (option, *_) = options
    with pytest.raises(FairbloomError, match=option.partition("_")[0]):
        fixed(FedAvg(**options), NOISE).start(MemoryGrid(quadratics(CLIENTS)), FIRST, num_rounds=1)


def test_an_array_that_flower_does_not_clip_is_refused() -> None:
    scalar = record(initial_model())
    fixed(FedAvg(), 0.0).start(MemoryGrid(quadratics(CLIENTS)), scalar, num_rounds=1)
    with pytest.raises(FairbloomError, match="without dimensions"):
        fixed(FedAvg(), NOISE).start(MemoryGrid(quadratics(CLIENTS)), scalar, num_rounds=1)


class Own(FedAvg):
    """A user's subclass with a hook of its own."""

    def configure_train(self, *arguments: Any) -> Any:
        """Call that of its base."""
        return super().configure_train(*arguments)

    def weigh(self, cohort: Any) -> FloatArray:
        """Return the weight of the first client alone."""
        return np.eye(1, cohort.size)[0]


def test_a_users_method_in_two_wrappers_is_refused() -> None:
    grid = MemoryGrid(quadratics(CLIENTS))
    with pytest.raises(FairbloomError, match="Own has weights that depend"):
        fixed(fixed(Own(), 0.0), NOISE).start(grid, FIRST, num_rounds=1)
    assert not grid.sent_to("train")
    fixed(Own(), 0.0).start(grid, FIRST, num_rounds=1)  # without noise, it only clips


@pytest.mark.parametrize(("weighting", "warnings"), [("uniform", 0), ("examples", 1)])
def test_unequal_counts_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, weighting: str, warnings: int
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    fixed(FedAvg(weighting=weighting), NOISE).start(
        MemoryGrid(quadratics(CLIENTS)), FIRST, num_rounds=3
    )
    assert caplog.text.count("weighting='uniform'") == warnings
