"""What clients report as the loss of their training examples: its mean or a total."""

from typing import Any

import pytest
from flwr.app import MessageType
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.client.reporting import apply_reporting
from fairbloom.protocol.settings import RunSettings

from .helpers import ask, context, run_config
from .test_terms import trained

ALL = {"measure": ["loss-before", "accuracy-before", "loss-after", "accuracy-after"]}
AFTERWARDS = {"measure": ["train-loss"]}


def told(**settings: Any) -> dict[str, Any]:
    """Return all that client-1 tells of a round."""
    where = context(config=run_config(**{"batch_size": 10, **settings}))
    metrics = [ask(kind, words, where).metric_records["metrics"] for kind, words in MESSAGES]
    return {f"{place} {name}": value for place, each in enumerate(metrics) for name, value in each.items()}


MESSAGES = [(MessageType.TRAIN, ALL), (MessageType.EVALUATE, AFTERWARDS)]
LOSSES = ("0 loss-before", "0 loss-after", "1 train-loss")


def loss_as(settings: dict[str, Any], mean: float, examples: int) -> float:
    config = RunSettings.of(run_config(**settings))
    return apply_reporting({"loss": mean, "accuracy": 0.5}, examples, config)["loss"]


@given(mean=st.floats(0, 1e6), examples=st.integers(1, 10**6))
def test_a_client_reports_the_mean_to_the_bit(mean: float, examples: int) -> None:
    settings = RunSettings.of({"reported-loss": "mean", "batch-size": 10})
    assert apply_reporting({"loss": mean, "r2": 0.5}, examples, settings) == {"loss": mean, "r2": 0.5}


@pytest.mark.parametrize(
    ("kind", "batch_size", "examples", "expected"),
    [
        ("mean", 10, 413, 0.5),
        ("batches", 10, 413, 41.3 * 0.5),
        ("batches", 10, 10, 0.5),
        ("batches", 10, 3, 0.5),
        ("batches", 0, 413, 0.5),
    ],
)
def test_a_total_is_over_batches(kind: str, batch_size: int, examples: int, expected: float) -> None:
    settings = {"reported_loss": kind, "batch_size": batch_size}
    assert loss_as(settings, 0.5, examples) == pytest.approx(expected, rel=1e-12)


def test_only_losses_of_training_data_are_reported_otherwise() -> None:
    plain, total = told(), told(reported_loss="batches")
    assert set(plain) == set(total)
    assert set(LOSSES) < set(plain)
    for name, value in plain.items():
        assert total[name] == pytest.approx(plain["0 num-examples"] / 10 * value if name in LOSSES else value), name


def test_the_trained_model_is_that_of_the_plain_loss() -> None:
    assert trained(ALL, context(config=run_config(reported_loss="batches"))) == trained(ALL)
