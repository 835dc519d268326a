"""Data, model, test function and handlers of the apps in this folder."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def received(model, message):
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def loader(context, first, last, **options):
    X, y = load_digits(return_X_y=True)
    own = slice(
        int(context.node_config["partition-id"]), None, int(context.node_config["num-partitions"])
    )
    data = TensorDataset(
        torch.tensor(X[own] / 16).float()[first:last], torch.tensor(y[own])[first:last]
    )
    return DataLoader(data, batch_size=16, **options)


@torch.no_grad()
def test_fn(model, loader):
    loss = right = 0
    for x, y in loader:
        output = model(x)
        loss += cross_entropy(output, y, reduction="sum").item()
        right += int((output.argmax(1) == y).sum())
    return loss / len(loader.dataset), right / len(loader.dataset)


def add_handlers(app, make_model):
    @app.train()
    def train(message, context):
        model = received(make_model(), message)
        data = loader(context, 50, None, shuffle=True)
        app.train_fn(model, data)
        metrics = MetricRecord({"num-examples": len(data.dataset)})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message, context):
        model = received(make_model(), message).eval()
        data = loader(context, 0, 50)
        loss, accuracy = test_fn(model, data)
        metrics = MetricRecord(
            {"num-examples": len(data.dataset), "eval_loss": loss, "eval_acc": accuracy}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
