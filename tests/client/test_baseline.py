"""What a client reaches alone: found once, from the first model that it receives, and kept.

FedProx's γ: how exactly a client solves its local problem (Definition 2).
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, MessageType
from torch.nn.functional import cross_entropy

from fairbloom.client.rules import baseline
from fairbloom.client.rules.baseline import has_settled
from fairbloom.client.states import folder_of
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.versions import Point, Versions
from fairbloom.tasks import load_task

from .helpers import ask, context, fresh, run_config

BASELINE = {"baseline-patience": 5, "baseline-tolerance": 1e-4, "baseline-epochs": 10}
# Full batches: the path of the losses is that of gradient descent.
FULL = run_config(batch_size=0, learning_rate=0.5)


def terms_with(**changes: Any) -> dict[str, Any]:
    other = {key.replace("_", "-"): value for key, value in changes.items()}
    return {"measure": ["loss-before", "loss-baseline"], **BASELINE, **other}


def reported(
    where: Context, model: torch.nn.Module | None = None, **changes: Any
) -> dict[str, Any]:
    return dict(
        ask(MessageType.TRAIN, terms_with(**changes), where, model).metric_records["metrics"]
    )


def moved(config: dict[str, Any], by: float) -> torch.nn.Module:
    """Return a model as a client may receive it in a later round."""
    _, model = fresh(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
    return model


# When it ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "settled"),
    [
        ([1.0], False),
        ([1.0, 0.9, 0.8], False),
        ([1.0, 1.0, 1.0], True),
        ([1.0, 0.95, 0.91], True),  # 9 % over two epochs
        ([1.0, 0.95, 0.89], False),
        ([1.0, 0.5, 0.7], False),  # the least one fell by half
        ([1.0, 0.5, 0.7, 0.49], True),  # and here by 2 %, though the last one is the least
        ([-1.0, -1.05, -1.2], False),
        ([-1.0, -1.05, -1.05], True),
        ([0.0, 0.0, 0.0], True),
        ([1.0, math.nan, math.nan], True),
    ],
)
def test_it_ends_when_the_least_loss_falls_too_little(losses: list[float], settled: bool) -> None:
    assert has_settled(losses, patience=2, tolerance=0.1) == settled


def gradient_descent(client: str, model: torch.nn.Module, rate: float) -> list[float]:
    """Return the losses of gradient descent on a client's whole training set, as the rule of the
    terms ends it."""
    examples = load_task(FULL).splits(client).train
    inputs, targets = examples[slice(0, len(examples))]
    found: list[float] = []
    for _ in range(201):
        loss = cross_entropy(model(inputs), targets)
        found.append(loss.item())
        if len(found) > 5 and min(found[:-5]) - min(found) < 1e-4 * min(found[:-5]):
            break
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    return found


def test_the_baseline_is_the_least_loss_of_plain_training() -> None:
    expected = gradient_descent("client-1", fresh(FULL)[1], 0.5)
    found = reported(context(1, FULL), baseline_epochs=200)
    assert found["loss-baseline"] == pytest.approx(min(expected), rel=1e-4)
    assert found["loss-baseline"] < 0.2 * found["loss-before"]


def test_the_loss_that_it_begins_with_is_one_of_them() -> None:
    """Steps that are far too long lead nowhere: the best model is the one that came."""
    found = reported(context(1, run_config(batch_size=0, learning_rate=1e6)))
    assert found["loss-baseline"] == found["loss-before"]


def test_a_client_draws_its_batches_from_a_stream_of_its_own() -> None:
    """So the round's training has the same bits as without a baseline, also with dropout."""
    config = run_config(
        model="tests.client.nets:Dropping", task="tests.nets:few", partition="dirichlet"
    )
    with_baseline = ask(MessageType.TRAIN, terms_with(), context(1, config))
    assert with_baseline["arrays"] == ask(MessageType.TRAIN, {}, context(1, config))["arrays"]


# Once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_round", [2, 3, 7])
def test_it_is_found_once_and_reported_in_every_later_round(
    monkeypatch: pytest.MonkeyPatch, server_round: int
) -> None:
    where = context(1)
    first = reported(where)
    monkeypatch.setattr(baseline, "train", None)  # training alone again would fail
    later = reported(
        where, moved(dict(where.run_config), 0.1 * server_round), server_round=server_round
    )
    assert later["loss-baseline"] == first["loss-baseline"]
    assert later["loss-before"] != first["loss-before"]


@pytest.mark.parametrize("server_round", [3, 6, 9])
def test_a_server_that_goes_back_has_another_baseline_made(
    tmp_path: Path, server_round: int
) -> None:
    config = run_config(state_dir=str(tmp_path))
    late = reported(context(1, config), moved(config, 0.5), server_round=5)
    early = reported(context(1, config), server_round=2)
    assert early["loss-baseline"] != late["loss-baseline"]
    found = reported(context(1, config), moved(config, 0.5), server_round=server_round)
    assert found["loss-baseline"] == early["loss-baseline"]
    folder = folder_of(RunSettings.of(config), "client-1")
    assert folder is not None
    assert Versions(folder).steps(json.dumps(["", "baseline"])) == [Point(2)]
