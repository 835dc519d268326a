"""The client's replies, to the letter.

Terms beyond plain SGD: other steps, other losses, personal models.
"""

import copy
import math
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, MessageType
from torch.nn.functional import cross_entropy

from fairbloom.client.plan import epochs_in_time
from fairbloom.client.rules.propfair import propfair
from fairbloom.client.training import train, with_channels_last
from fairbloom.errors import ReportableError
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import WORK
from fairbloom.tasks import Setup, Task, find_task
from fairbloom.tasks.models import arrays_of, frozen_parameters

from .helpers import CLIENTS, ask, context, fresh, run_config, work_of

MEASURES = ("loss-before", "loss-after", "accuracy-before", "accuracy-after", "learning-rate")


def metrics_of(terms: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    return dict(ask(MessageType.TRAIN, terms, context(config=config)).metric_records["metrics"])


def test_a_query_is_answered_with_name_and_training_examples() -> None:
    task, _ = fresh()
    content = ask(MessageType.QUERY, {}, context(1))
    assert set(content) == {"client"}
    assert dict(content.config_records["client"]) == {
        "name": "client-1",
        "num-examples": len(task.splits("client-1").train),
        "honours": list(WORK),
    }


def test_a_client_is_called_what_its_node_config_says() -> None:
    """And another name changes no number."""
    content = ask(MessageType.QUERY, {}, context(1, name="clinic-north"))
    assert content.config_records["client"]["name"] == "clinic-north"
    plain = ask(MessageType.TRAIN, {}, context(1))
    assert plain["arrays"] == ask(MessageType.TRAIN, {}, context(1, name="clinic-north"))["arrays"]


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_a_train_reply_has_the_arrays_that_came_in_trained(model: str) -> None:
    config = run_config(model=model, local_epochs=2, momentum=0.9)
    task, expected = fresh(config)
    received = ArrayRecord(expected.state_dict())
    # which adds in another order
    expected = with_channels_last(expected, task.splits(task.clients[0]).train)
    train(
        expected,
        task,
        task.splits("client-1").train,
        work_of(config, "client-1", server_round=3),
    )
    content = ask(MessageType.TRAIN, {"server-round": 3}, context(1, config))
    assert set(content) == {"arrays", "metrics"}
    arrays = content.array_records["arrays"]
    assert list(arrays) == list(received)
    for key, array in arrays.items():
        assert (array.dtype, array.shape) == (received[key].dtype, received[key].shape)
        assert torch.equal(torch.from_numpy(array.numpy().copy()), expected.state_dict()[key])


@pytest.mark.parametrize(
    "asked", [[], ["loss-before"], ["accuracy-after", "learning-rate"], list(MEASURES)]
)
def test_a_train_reply_has_the_metrics_asked_for_and_the_count(asked: list[str]) -> None:
    """Those that the client knows; a message without the list asks for nothing."""
    metrics = metrics_of({"measure": [*asked, "blood-pressure"]})
    assert set(metrics) == {"num-examples", *asked}
    assert isinstance(metrics["num-examples"], int)
    assert set(metrics_of({})) == {"num-examples"}


@pytest.mark.parametrize("terms", [{}, {"proximal-mu": 2.0}])
def test_losses_are_the_plain_loss_over_the_whole_training_set(terms: dict[str, float]) -> None:
    task, model = fresh()
    inputs, targets = task.splits("client-1").train[:]
    content = ask(MessageType.TRAIN, {**terms, "measure": list(MEASURES)}, context(1), model)
    metrics: dict[str, Any] = dict(content.metric_records["metrics"])
    returned = copy.deepcopy(model)
    returned.load_state_dict(content.array_records["arrays"].to_torch_state_dict())
    for ending, measured in (("before", model), ("after", returned)):
        outputs = measured(inputs)
        loss = cross_entropy(outputs.double(), targets).item()
        accuracy = (outputs.argmax(dim=1) == targets).double().mean().item()
        assert metrics[f"loss-{ending}"] == pytest.approx(loss, rel=1e-6)
        assert metrics[f"accuracy-{ending}"] == accuracy
    assert metrics["loss-after"] < metrics["loss-before"]


def test_a_reply_depends_on_the_message_alone() -> None:
    """And its model does not depend on the metrics that are asked for."""
    first = ask(MessageType.TRAIN, {"measure": list(MEASURES)}, context(1))
    ask(MessageType.TRAIN, {"server-round": 2}, context(2))
    assert first == ask(MessageType.TRAIN, {"measure": list(MEASURES)}, context(1))
    assert first["arrays"] == ask(MessageType.TRAIN, {}, context(1))["arrays"]


def test_an_evaluation_is_on_the_own_test_split() -> None:
    task, model = fresh()
    inputs, targets = task.splits("client-2").test[:]
    content = ask(MessageType.EVALUATE, {}, context(2), model)
    assert set(content) == {"metrics"}
    outputs = model(inputs)
    assert dict(content.metric_records["metrics"]) == {
        "num-examples": len(targets),
        "loss": pytest.approx(cross_entropy(outputs.double(), targets).item(), rel=1e-6),
        "accuracy": (outputs.argmax(dim=1) == targets).double().mean().item(),
    }


@pytest.mark.parametrize("partition", [None, -1, CLIENTS, "1", 1.0])
def test_an_unknown_partition_id_is_refused_with_the_range(partition: Any) -> None:
    with pytest.raises(
        ValueError,
        match=rf"partition-id = .* clients = {CLIENTS} .* from 0 to {CLIENTS - 1}",
    ):
        ask(MessageType.QUERY, {}, context(partition))


loaded: list[Setup] = []


def own_task(setup: Setup) -> Task:
    """The digits, by a function that notes each time it is called."""
    loaded.append(setup)
    return find_task("digits").load(setup.model_copy(update={"model": "logistic"}), {})


def test_only_another_run_loads_an_own_task_again() -> None:
    config = run_config(task=f"{__name__}:own_task")
    ask(MessageType.QUERY, {}, context(1, config))
    loaded.clear()
    for run_id in (11, 11, 12, 12):
        where = context(1, config)
        where.run_id = run_id
        ask(MessageType.QUERY, {}, where)
    assert len(loaded) == 2


def test_replies_leave_frozen_parameters_out_where_asked() -> None:
    config = run_config(model="tests.client.nets:Frozen")
    _, model = fresh(config)
    frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
    assert frozen
    assert set(ask(MessageType.TRAIN, {}, context(1, config))["arrays"]) == set(model.state_dict())
    digest = digest_arrays(
        arrays_of({name: model.state_dict()[name] for name in frozen_parameters(model)})
    )
    named = ask(MessageType.TRAIN, {"frozen": digest}, context(1, config))
    assert set(named["arrays"]) == set(model.state_dict()) - frozen
    assert named["client"]["frozen"] == digest


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
    assert trained(
        {"full-batch-step": True}, context(config=run_config(local_epochs=5))
    ) == trained({"full-batch-step": True})


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


@pytest.mark.parametrize("loss", [0.1, 1.0, 4.7, 4.8])
def test_propfair_is_minus_the_logarithm_of_the_utility(loss: float) -> None:
    assert propfair(torch.tensor(loss), 5.0, 0.2).item() == pytest.approx(
        -math.log(5.0 - loss), rel=1e-5
    )


@pytest.mark.parametrize("loss", [4.8, 4.9, 5.0, 50.0])
def test_propfair_goes_on_as_its_tangent_below_epsilon(loss: float) -> None:
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
