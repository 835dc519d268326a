"""A small task, and messages as the server writes them."""

from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.app import app
from fairbloom.client.plan import global_work, work_of_client
from fairbloom.client.work import LocalWork
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Splits, Task, load_task

CLIENTS = 4


def work(**changes: Any) -> LocalWork:
    """Return work to be done once: it holds the generator that draws its batches."""
    plain: dict[str, Any] = {
        "epochs": 1,
        "batch_size": 10,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "pull": 0.0,
        "random": np.random.default_rng(5),
    }
    return LocalWork(**(plain | changes))


def work_of(
    config: dict[str, Any], client: str, asked: dict[str, Any] | None = None, server_round: int = 1
) -> LocalWork:
    """Return what a client makes of a run config and of what the server tells it."""
    settings = RunSettings.of(config)
    terms = Terms.of({"server-round": server_round, **(asked or {})})
    return work_of_client(global_work(settings, terms), settings, terms, client)


def run_config(**changes: Any) -> dict[str, Any]:
    chosen = {key.replace("_", "-"): value for key, value in changes.items()}
    return Settings.of({"clients": CLIENTS, "device": "cpu", **chosen}).run_config()


def context(partition: object = 1, config: dict[str, Any] | None = None, **node: Any) -> Context:
    return Context(
        run_id=1,
        node_id=2,
        node_config={"partition-id": partition, "num-partitions": CLIENTS, **node},  # type: ignore[dict-item]
        state=RecordDict(),
        run_config=config or run_config(),
    )


def fresh(config: dict[str, Any] | None = None) -> tuple[Task, nn.Module]:
    """Return the task of a run config and its initial model."""
    task = load_task(config or run_config())
    return task, task.model()


def ask(
    kind: str, asked: dict[str, Any], where: Context, model: nn.Module | None = None
) -> RecordDict:
    sent = ArrayRecord((model or fresh(dict(where.run_config))[1]).state_dict())
    content = RecordDict({"arrays": sent, "config": ConfigRecord({"server-round": 1, **asked})})
    if kind == MessageType.QUERY:
        content = RecordDict()
    return app(Message(content, dst_node_id=2, message_type=kind), where).content


def noise(examples: int, seed: int = 0) -> Examples:
    random = torch.Generator().manual_seed(seed)
    return Examples(
        torch.randn(examples, 1, 4, 4, generator=random),
        torch.randint(0, 3, (examples,), generator=random),
    )


def task_of(model: nn.Module) -> Task:
    """Return a task that has only a model and a loss."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def splits(client: str) -> Splits:
        raise AssertionError(f"the examples of {client} are not needed here")

    return Task((), lambda: model, loss, splits)
