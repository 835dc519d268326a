"""A model that is one number, the functions that train and measure it, and apps made fair by
them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from fairbloom.client.fair import fair
from fairbloom.protocol.error_codes import ErrorCode

RATE = 0.1
EXAMPLES = torch.tensor([1.0, 2.0, 4.0, 7.0, 11.0], dtype=torch.float64)
BATCHES = [EXAMPLES[:2], EXAMPLES[2:4], EXAMPLES[4:]]
POINTS = TensorDataset(EXAMPLES)
LOADER = DataLoader(POINTS, batch_size=2)


class Point(nn.Module):
    """A model with a point as its only parameter; its loss is ½ mean (x − example)²."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, examples: Tensor) -> Tensor:
        return 0.5 * (self.x - examples).square().mean()


def train_point(model: nn.Module, loader: Any) -> float:
    return descend(model, loader, SGD(model.parameters(), lr=RATE))


def descend(model: nn.Module, loader: Any, optimizer: Optimizer) -> float:
    model.train()
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    return 3.0


def measure_point(model: nn.Module, loader: Any) -> tuple[float, float]:
    return sum(model(batch).item() for (batch,) in loader) / len(loader), 0.5


def loss_at(x: float) -> float:
    return float(0.5 * (x - EXAMPLES).square().mean())


def steps(mu: float = 0.0, beta: float = 0.0, x: float = 0.0, epochs: int = 1) -> float:
    """Return where gradient steps lead from x: of the loss with a pull to x, with momentum."""
    start = x
    velocity = 0.0
    for batch in BATCHES * epochs:
        velocity = beta * velocity + (x - float(batch.mean())) + mu * (x - start)
        x -= RATE * velocity
    return x


def context(config: dict[str, Any] | None = None, **node: Any) -> Context:
    return Context(
        run_id=1, node_id=77, node_config=node, state=RecordDict(), run_config=config or {}
    )


def app_of(
    train: Callable[..., Any] = train_point,
    test: Callable[..., Any] = measure_point,
    data: Sequence[Any] = (LOADER,),
    net: Callable[[], nn.Module] = Point,
    calls: int = 1,
    **how: Any,
) -> ClientApp:
    """Return an app with a train handler that calls the function with a model and these data."""
    app = fair(
        train, test, **{key: value for key, value in how.items() if not key.startswith("handler_")}
    )

    def received(message: Message) -> nn.Module:
        model = net()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model

    @app.train(mods=how.get("handler_mods"))
    def on_train(message: Message, context: Context) -> Message:
        model = received(message)
        returned = 0.0
        for _ in range(calls):
            returned = app.train_fn(model, *data)
        metrics = MetricRecord({"returned": float(returned), "num-examples": 5})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    @app.evaluate(mods=how.get("handler_evaluate_mods"))
    def on_evaluate(message: Message, context: Context) -> Message:
        loss, accuracy = measure_point(received(message), LOADER)
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def ask(
    app: ClientApp,
    asked: dict[str, Any] | None = None,
    kind: str = MessageType.TRAIN,
    where: Context | None = None,
    model: nn.Module | None = None,
) -> RecordDict:
    """Return what an app replies to a message with these terms."""
    return app(asking(asked or {}, kind, model), where or context()).content


def asking(
    asked: dict[str, Any], kind: str = MessageType.TRAIN, model: nn.Module | None = None
) -> Message:
    """Return a message with these terms."""
    config = ConfigRecord({"server-round": 1, **asked})
    content = RecordDict({"arrays": ArrayRecord((model or Point()).state_dict()), "config": config})
    return Message(content, dst_node_id=2, message_type=kind)


def unknown_to(app: ClientApp, asked: dict[str, Any], kind: str = MessageType.TRAIN) -> str:
    """Return the reason of an app that does not know a term: the error in place of its reply."""
    error = app(asking(asked, kind), context()).error
    assert error.code == ErrorCode.UNKNOWN_TERM
    return str(error.reason)


def trained(content: RecordDict) -> float:
    return float(content.array_records["arrays"]["x"].numpy()[0])


def measured(app: ClientApp, *names: str, **how: Any) -> list[Any]:
    metrics = ask(app, {"measure": list(names)}, **how).metric_records["metrics"]
    return [metrics[name] for name in names]
