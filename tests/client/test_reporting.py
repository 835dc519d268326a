"""What clients report as the loss of their training examples: its mean or a total, and what some make of it."""

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
    where = context(config=run_config(**settings))
    metrics = [ask(kind, words, where).metric_records["metrics"] for kind, words in MESSAGES]
    return {f"{place} {name}": value for place, each in enumerate(metrics) for name, value in each.items()}


MESSAGES = [(MessageType.TRAIN, ALL), (MessageType.EVALUATE, AFTERWARDS)]
LOSSES = ("0 loss-before", "0 loss-after", "1 train-loss")


def loss_as(settings: dict[str, Any], mean: float, examples: int, client: str = "client-1") -> float:
    config = RunSettings.of(run_config(**settings))
    return apply_reporting({"loss": mean, "accuracy": 0.5}, examples, client, config)["loss"]


@given(
    mean=st.floats(0, 1e6), examples=st.integers(1, 10**6), factor=st.floats(0.01, 100.0), bias=st.floats(-100.0, 100.0)
)
def test_a_client_that_is_not_named_reports_the_mean_to_the_bit(
    mean: float, examples: int, factor: float, bias: float
) -> None:
    config = {
        "reported-loss": "mean",
        "batch-size": 10,
        "misreporting-clients": "a, b",
        "reported-loss-factor": factor,
        "reported-loss-bias": bias,
    }
    settings = RunSettings.of(config)
    assert apply_reporting({"loss": mean, "r2": 0.5}, examples, "c", settings) == {"loss": mean, "r2": 0.5}
    for name in "ab":
        assert apply_reporting({"loss": mean}, examples, name, settings)["loss"] == mean * factor + bias
    unchanged = RunSettings.of(config | {"reported-loss-factor": 1.0, "reported-loss-bias": 0.0})
    assert apply_reporting({"loss": mean}, examples, "a", unchanged)["loss"] == mean


@pytest.mark.parametrize(
    ("kind", "batch_size", "examples", "expected"),
    [
        ("mean", 10, 413, 0.5),
        ("total", 10, 413, 206.5),
        ("total", 0, 413, 206.5),
        ("batches", 10, 413, 41.3 * 0.5),
        ("batches", 10, 10, 0.5),
        ("batches", 10, 3, 0.5),
        ("batches", 0, 413, 0.5),
    ],
)
def test_a_total_is_over_examples_or_over_batches(kind: str, batch_size: int, examples: int, expected: float) -> None:
    settings = {"reported_loss": kind, "batch_size": batch_size}
    assert loss_as(settings, 0.5, examples) == pytest.approx(expected, rel=1e-12)


def test_a_misreporting_client_changes_what_is_reported() -> None:
    settings: dict[str, Any] = {"misreporting_clients": "client-1", "reported_loss_bias": 3.0}
    assert loss_as(settings | {"reported_loss": "total"}, 0.5, 10) == 5.0 + 3.0
    assert loss_as(settings | {"reported_loss_factor": 2.0}, 0.5, 10) == 2.0 * 0.5 + 3.0
    assert loss_as(settings | {"reported_loss_factor": 2.0}, 0.5, 10, "client-2") == 0.5


def test_only_losses_of_training_data_are_reported_otherwise() -> None:
    plain = told()
    lying = told(misreporting_clients="client-1", reported_loss_factor=2.0, reported_loss_bias=1.0)
    total = told(reported_loss="total")
    assert set(plain) == set(lying) == set(total)
    assert set(LOSSES) < set(plain)
    for name, value in plain.items():
        assert lying[name] == (2.0 * value + 1.0 if name in LOSSES else value), name
        assert total[name] == (plain["0 num-examples"] * value if name in LOSSES else value), name
    assert told(misreporting_clients="client-2", reported_loss_factor=2.0) == plain


def test_the_trained_model_is_that_of_the_plain_loss() -> None:
    lying = run_config(misreporting_clients="client-1", reported_loss_factor=5.0, reported_loss="total")
    assert trained(ALL, context(config=lying)) == trained(ALL)


def test_a_deployed_client_is_named_by_what_it_calls_itself() -> None:
    config = run_config(misreporting_clients="site-b", reported_loss_bias=1.0)
    losses = [
        ask(MessageType.TRAIN, ALL, context(config=config, name=name)).metric_records["metrics"]["loss-before"]
        for name in ("site-a", "site-b")
    ]
    assert losses[1] == losses[0] + 1.0
