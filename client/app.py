"""The ClientApp: what one Fairbloom client does with the server's messages.

PyTorch and the data are imported and loaded late, once a process: a deployed SuperNode may start a new process for
every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    import torch

    from fairbloom.tasks import Examples, Task

Metrics = dict[str, int | float | list[int] | list[float]]

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is and how many training examples it has."""
    local = Local.of(context)
    about = ConfigRecord({"name": local.name, "num-examples": len(local.train)})
    return Message(RecordDict({"client": about}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the local training set; reply with it and the metrics that were asked for."""
    from .training import global_work, train

    local, told = Local.of(context), _told(message)
    work = global_work(context.run_config, told, local.key)
    local.receive(message)
    metrics: Metrics = {"num-examples": len(local.train)}
    available = {"learning-rate": work.learning_rate}
    if _asks(told, "-before"):
        available["loss-before"], available["accuracy-before"] = local.measure(local.train)
    snapshot = {}
    if not told.get("local-only", False):
        snapshot = train(local.model, local.task, local.train, work)
    if _asks(told, "-after"):
        available["loss-after"], available["accuracy-after"] = local.measure(local.train)
    metrics |= {name: available[name] for name in told.get("measure", []) if name in available}
    content = RecordDict({"arrays": ArrayRecord(local.model.state_dict()), "metrics": MetricRecord(metrics)})
    if snapshot:
        content["snapshot"] = ArrayRecord(snapshot)
    if "personal-lambda" in told:
        local.train_personal(message, context)
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the received model on the local test set, and on the training set where that is asked for."""
    local, told = Local.of(context), _told(message)
    local.receive(message)
    loss, accuracy = local.measure(local.test)
    metrics: Metrics = {"num-examples": len(local.test), "loss": loss, "accuracy": accuracy}
    if "train-loss" in told.get("measure", []):
        metrics["train-loss"] = local.measure(local.train)[0]
    if "personal-lambda" in told:
        local.receive_personal(context, before=told["server-round"] + 1)
        metrics["loss-personal"], metrics["accuracy-personal"] = local.measure(local.test)
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


@dataclass(frozen=True)
class Local:
    """What a client works with.

    Attributes
    ----------
    name
        What the server calls it: the node config's `name`, else the task's name of its partition.
    key
        The task's name of its partition, from which its random streams are drawn.
    task, train, test
        The task, and this client's two splits of it, on the device.
    model
        One model a process, overwritten by every message.
    """

    name: str
    key: str
    task: Task
    train: Examples
    test: Examples
    model: torch.nn.Module

    @classmethod
    def of(cls, context: Context) -> Local:
        """Return what the client of this context works with.

        Raises
        ------
        ValueError
            When the node config has no partition-id, or one that the task has no client for.
        """
        task, model = _loaded(tuple(sorted(context.run_config.items())))
        partition = context.node_config.get("partition-id")
        if not isinstance(partition, int) or not 0 <= partition < len(task.clients):
            raise ValueError(
                f"partition-id = {partition!r} in the node config: with clients = {len(task.clients)} it must be an "
                f"integer from 0 to {len(task.clients) - 1}"
            )
        key = task.clients[partition]
        name = str(context.node_config.get("name", key))
        return cls(name, key, task, task.train[key], task.test[key], model)

    def receive(self, message: Message) -> None:
        """Load the message's arrays into the model."""
        self.model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())

    def receive_personal(self, context: Context, before: int) -> None:
        """Load this client's personal model; where it has none yet, that is the received model."""
        from . import personal

        model = personal.load(context, self.key, before)
        if model is not None:
            self.model.load_state_dict(model)

    def train_personal(self, message: Message, context: Context) -> None:
        """Train the personal model, pulled to the received one, and keep it."""
        from . import personal
        from .training import personal_work, train

        told = _told(message)
        self.receive(message)
        anchor = [parameter.detach().clone() for parameter in self.model.parameters() if parameter.requires_grad]
        self.receive_personal(context, before=told["server-round"])
        work = personal_work(context.run_config, told, self.key)
        train(self.model, self.task, self.train, work, anchor)
        personal.save(context, self.key, told["server-round"], self.model.state_dict())

    def measure(self, examples: Examples) -> tuple[float, float]:
        """Return mean loss and accuracy of the model as it is now."""
        from .training import measure

        return measure(self.model, self.task, examples)


@lru_cache(maxsize=2)
def _loaded(run_config: tuple[tuple[str, Any], ...]) -> tuple[Task, torch.nn.Module]:
    """Return the task and a model on the device that the run config names."""
    from fairbloom.tasks import load_task

    from .device import choose

    config = dict(run_config)
    device = choose(config["device"])
    task = load_task(config).to(device)
    return task, task.model().to(device)


def _told(message: Message) -> Mapping[str, Any]:
    return dict(message.content.config_records["config"])


def _asks(told: Mapping[str, Any], ending: str) -> bool:
    return any(name.endswith(ending) for name in told.get("measure", []))
