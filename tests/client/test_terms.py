"""What a method may ask of the clients beside plain SGD: other steps, other losses, personal models."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, MessageType, RecordDict

from fairbloom.client.plan import StragglerError, epochs_in_time
from fairbloom.client.rules.propfair import PropFairLoss, propfair
from fairbloom.client.training import batches
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms

from .helpers import ask, context, fresh, run_config, work_of


def trained(told: dict[str, Any], where: Context | None = None) -> dict[str, bytes]:
    """Return the weights of the model that the client replies."""
    content = ask(MessageType.TRAIN, told, where or context())
    return {name: array.data for name, array in content.array_records["arrays"].items()}


def personal(where: Context, told: dict[str, Any]) -> dict[str, Any]:
    content = ask(MessageType.EVALUATE, told, where)
    return dict(content.metric_records["metrics"])


# Other steps --------------------------------------------------------------------------------------------------------


def test_what_the_server_tells_is_what_the_setting_would_do() -> None:
    told: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"client-momentum": 0.9}, {"momentum": 0.9}),
        ({"full-batch-step": True}, {"batch_size": 0}),
    ]
    for asked, config in told:
        assert trained(asked) == trained({}, context(config=run_config(**config))) != trained({})
    several = context(config=run_config(local_epochs=5))
    assert trained({"full-batch-step": True}, several) == trained({"full-batch-step": True})


def test_local_steps_take_the_place_of_epochs() -> None:
    for steps in (1, 7, 100):
        work = work_of(run_config(batch_size=10), "client-0", {"local-steps": steps})
        assert len(list(batches(53, work))) == steps


def test_a_snapshot_is_the_model_after_that_step() -> None:
    told = {"local-steps": 9, "snapshot-step": 4}
    content = ask(MessageType.TRAIN, told, context())
    snapshot = {name: array.data for name, array in content.array_records["snapshot"].items()}
    assert snapshot == trained({"local-steps": 4})
    assert trained(told) == trained({"local-steps": 9}) != snapshot


def test_a_client_that_trains_only_its_own_returns_the_received() -> None:
    _, model = fresh()
    weights = trained({"local-only": True})
    assert all(weights[name].endswith(tensor.numpy().tobytes()) for name, tensor in model.state_dict().items())


# Stragglers ---------------------------------------------------------------------------------------------------------


def test_the_share_of_stragglers_is_that_of_the_setting() -> None:
    config = RunSettings.of(run_config(stragglers=0.3, local_epochs=10))
    epochs = [epochs_in_time(config, number, f"client-{k}") for number in range(50) for k in range(20)]
    assert set(epochs) == set(range(1, 11))
    slow = sum(number < 10 for number in epochs) / len(epochs)
    assert slow == pytest.approx(0.3 * 0.9, abs=0.05)  # a tenth of the stragglers draws all ten epochs
    assert epochs_in_time(config, 3, "client-1") == epochs_in_time(config, 3, "client-1")


def test_stragglers_that_are_dropped_say_so() -> None:
    config = RunSettings.of(run_config(stragglers=1.0, drop_stragglers=True))
    with pytest.raises(StragglerError, match="client-0 is a straggler in round 7"):
        epochs_in_time(config, 7, "client-0")


def test_a_time_budget_that_is_over_at_once_leaves_one_step() -> None:
    assert trained({}, context(config=run_config(time_budget=1e-9))) == trained({"local-steps": 1})


# PropFair -----------------------------------------------------------------------------------------------------------


def test_propfair_is_minus_the_logarithm_of_the_utility() -> None:
    """It goes on as its tangent where the utility is below ε."""
    for loss in (0.1, 1.0, 4.7, 4.8):
        assert propfair(torch.tensor(loss), 5.0, 0.2).item() == pytest.approx(-math.log(5.0 - loss), rel=1e-5)
    for loss in (4.8, 4.9, 5.0, 50.0):
        at = torch.tensor(loss, requires_grad=True)
        value = propfair(at, 5.0, 0.2)
        (slope,) = torch.autograd.grad(value, at)
        assert value.item() == pytest.approx(-math.log(0.2) + (loss - 4.8) / 0.2, rel=1e-4)
        assert slope.item() == pytest.approx(1 / 0.2, rel=1e-4)


def test_a_transform_changes_the_training_not_the_reported_loss() -> None:
    told = {"loss-transform": "propfair", "propfair-baseline": 5.0, "propfair-epsilon": 0.2}
    assert trained(told) != trained({})
    reported = [
        ask(MessageType.TRAIN, {**more, "measure": ["loss-before"]}, context()).metric_records["metrics"]["loss-before"]
        for more in ({}, told)
    ]
    assert reported[0] == reported[1]


def test_an_unknown_transform_is_refused() -> None:
    with pytest.raises(ValueError, match="loss-transform = 'cubed' is unknown"):
        PropFairLoss(Terms(server_round=1, loss_transform="cubed"))


# Personal models ----------------------------------------------------------------------------------------------------

STRENGTHS = (0.0, 0.1, 1.0)


def test_a_personal_model_changes_nothing_in_the_reply() -> None:
    for strength in STRENGTHS:
        assert trained({"personal-lambda": strength}) == trained({})


def test_an_untrained_personal_model_is_the_global_one() -> None:
    metrics = personal(context(), {"personal-lambda": 1.0})
    assert metrics["loss-personal"] == metrics["loss"]
    assert metrics["accuracy-personal"] == metrics["accuracy"]


def test_a_stronger_pull_brings_the_personal_model_nearer() -> None:
    distances = []
    for strength in STRENGTHS:
        where, told = context(), {"personal-lambda": strength, "personal-epochs": 3}
        trained(told, where)
        metrics = personal(where, told)
        distances.append(metrics["loss"] - metrics["loss-personal"])
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] > 0.0


def test_personal_models_go_on_over_rounds_for_each_client() -> None:
    told: dict[str, Any] = {"personal-lambda": 0.0}
    one, other = context(0), context(1)
    losses = []
    for number in (1, 2, 3):
        trained({**told, "server-round": number}, one)
        losses.append(personal(one, {**told, "server-round": number})["loss-personal"])
    assert losses == sorted(losses, reverse=True)
    assert personal(other, told)["loss-personal"] == personal(other, told)["loss"]


def test_a_personal_model_outlives_the_process_in_a_state_folder(tmp_path: Path) -> None:
    config = run_config(state_dir=str(tmp_path))
    told, where = {"personal-lambda": 0.1}, context(config=config)
    trained(told, where)
    restarted = context(config=run_config(state_dir=str(tmp_path), log_format="json", out="elsewhere"))
    assert restarted.state == RecordDict()
    assert personal(restarted, told) == personal(where, told)


def test_a_repeated_round_starts_from_the_same_personal_model(tmp_path: Path) -> None:
    config, told = run_config(state_dir=str(tmp_path)), {"personal-lambda": 0.1}
    where = context(config=config)
    for number in (1, 2):
        trained({**told, "server-round": number}, where)
    once = personal(where, {**told, "server-round": 2})
    for again in (where, context(config=config)):
        trained({**told, "server-round": 2}, again)
        assert personal(again, {**told, "server-round": 2}) == once
