"""Terms beyond plain SGD: other steps, other losses, personal models."""

import math
from typing import Any

import pytest
import torch
from flwr.app import Context, MessageType

from fairbloom.client.plan import epochs_in_time
from fairbloom.client.rules.propfair import propfair
from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings

from .helpers import ask, context, run_config


def trained(asked: dict[str, Any], where: Context | None = None) -> dict[str, bytes]:
    content = ask(MessageType.TRAIN, asked, where or context())
    return {name: array.data for name, array in content.array_records["arrays"].items()}


# Other steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({"client-momentum": 0.9}, {"momentum": 0.9}),
        ({"full-batch-step": True}, {"batch_size": 0}),
    ],
)
def test_what_the_server_tells_is_what_the_setting_would_do(
    asked: dict[str, Any], config: dict[str, Any]
) -> None:
    assert trained(asked) == trained({}, context(config=run_config(**config))) != trained({})
    several = context(config=run_config(local_epochs=5))
    assert trained({"full-batch-step": True}, several) == trained({"full-batch-step": True})


# Stragglers ---------------------------------------------------------------------------------------


def test_the_share_of_stragglers_is_that_of_the_setting() -> None:
    config = RunSettings.of(run_config(stragglers=0.3, local_epochs=10))
    epochs = [
        epochs_in_time(config, number, f"client-{k}") for number in range(50) for k in range(20)
    ]
    assert set(epochs) == set(range(1, 11))
    slow = sum(number < 10 for number in epochs) / len(epochs)
    # a tenth of the stragglers draws all ten epochs
    assert slow == pytest.approx(0.3 * 0.9, abs=0.05)
    assert epochs_in_time(config, 3, "client-1") == epochs_in_time(config, 3, "client-1")


def test_stragglers_that_are_dropped_say_so() -> None:
    config = RunSettings.of(run_config(stragglers=1.0, drop_stragglers=True))
    with pytest.raises(ReportableError, match="client-0 is a straggler in round 7"):
        epochs_in_time(config, 7, "client-0")


# PropFair -----------------------------------------------------------------------------------------


def test_propfair_is_minus_the_logarithm_of_the_utility(subtests: pytest.Subtests) -> None:
    """It goes on as its tangent where the utility is below ε."""
    for loss in (0.1, 1.0, 4.7, 4.8):
        with subtests.test(loss=loss):
            assert propfair(torch.tensor(loss), 5.0, 0.2).item() == pytest.approx(
                -math.log(5.0 - loss), rel=1e-5
            )
    for loss in (4.8, 4.9, 5.0, 50.0):
        with subtests.test(loss=loss):
            at = torch.tensor(loss, requires_grad=True)
            value = propfair(at, 5.0, 0.2)
            (slope,) = torch.autograd.grad(value, at)
            assert value.item() == pytest.approx(-math.log(0.2) + (loss - 4.8) / 0.2, rel=1e-4)
            assert slope.item() == pytest.approx(1 / 0.2, rel=1e-4)


# Personal models ----------------------------------------------------------------------------------


def test_an_untrained_personal_model_is_the_global_one() -> None:
    metrics = ask(MessageType.EVALUATE, {"personal-lambda": 1.0}, context()).metric_records[
        "metrics"
    ]
    assert metrics["loss-personal"] == metrics["loss"]
    assert metrics["accuracy-personal"] == metrics["accuracy"]


# What is reported as the loss ---------------------------------------------------------------------

ALL = {"measure": ["loss-before", "accuracy-before", "loss-after", "accuracy-after"]}
AFTERWARDS = {"measure": ["train-loss"]}


def reports(**settings: Any) -> dict[str, Any]:
    """Return all that client-1 reports in a round."""
    where = context(config=run_config(**{"batch_size": 10, **settings}))
    metrics = [ask(kind, words, where).metric_records["metrics"] for kind, words in MESSAGES]
    return {
        f"{place} {name}": value
        for place, each in enumerate(metrics)
        for name, value in each.items()
    }


MESSAGES = [(MessageType.TRAIN, ALL), (MessageType.EVALUATE, AFTERWARDS)]
LOSSES = ("0 loss-before", "0 loss-after", "1 train-loss")


@pytest.mark.parametrize("batch_size", [10, 0, 10**6])
def test_only_losses_of_training_data_are_totals_over_batches(batch_size: int) -> None:
    plain = reports(batch_size=batch_size)
    total = reports(batch_size=batch_size, reported_loss="batches")
    assert set(plain) == set(total)
    assert set(LOSSES) < set(plain)
    batches = plain["0 num-examples"] / 10 if batch_size == 10 else 1.0
    for name, value in plain.items():
        assert total[name] == pytest.approx(batches * value if name in LOSSES else value), name
