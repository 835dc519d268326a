"""What clients report as the loss of their training examples: its mean or a total."""

from typing import Any

import pytest
from flwr.app import MessageType

from fairbloom.client.reporting import apply_reporting
from fairbloom.protocol.settings import RunSettings

from .helpers import ask, context, run_config

ALL = {"measure": ["loss-before", "accuracy-before", "loss-after", "accuracy-after"]}
AFTERWARDS = {"measure": ["train-loss"]}


def told(**settings: Any) -> dict[str, Any]:
    """Return all that client-1 tells of a round."""
    where = context(config=run_config(**{"batch_size": 10, **settings}))
    metrics = [ask(kind, words, where).metric_records["metrics"] for kind, words in MESSAGES]
    return {f"{place} {name}": value for place, each in enumerate(metrics) for name, value in each.items()}


MESSAGES = [(MessageType.TRAIN, ALL), (MessageType.EVALUATE, AFTERWARDS)]
LOSSES = ("0 loss-before", "0 loss-after", "1 train-loss")


def test_a_total_is_over_batches() -> None:
    for kind, batch_size, examples, expected in (
        ("mean", 10, 413, 0.5),
        ("batches", 10, 413, 41.3 * 0.5),
        *(("batches", 10, 3, 0.5), ("batches", 0, 413, 0.5)),
    ):
        settings = RunSettings.of({"reported-loss": kind, "batch-size": batch_size})
        found = apply_reporting({"loss": 0.5, "accuracy": 0.5}, examples, settings)
        assert found == {"loss": pytest.approx(expected, rel=1e-12), "accuracy": 0.5}


def test_only_losses_of_training_data_are_reported_otherwise() -> None:
    plain, total = told(), told(reported_loss="batches")
    assert set(plain) == set(total)
    assert set(LOSSES) < set(plain)
    for name, value in plain.items():
        assert total[name] == pytest.approx(plain["0 num-examples"] / 10 * value if name in LOSSES else value), name
