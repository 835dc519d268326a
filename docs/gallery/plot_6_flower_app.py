"""
A Flower app made fair
======================

A ClientApp of PyTorch, as in Flower's quickstart. ``fair`` in place of ``ClientApp()``, and
``app.train_fn`` in place of the training function, answer what methods ask.
"""

import logging

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from fairbloom import RunFolder, Score, load
from fairbloom.client.fair import fair
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, QFedAvg

x, y = load_digits(return_X_y=True)
x = torch.tensor(x / 16).float()
x[::6] = x[::6].reshape(-1, 8, 8).rot90(1, (1, 2)).flatten(1)  # a camera mounted sideways
data = TensorDataset(x, torch.tensor(y))


def load_data(context, rows):
    first = int(context.node_config["partition-id"])
    return DataLoader(Subset(data, rows[first::6]), batch_size=16, shuffle=True)


def train_fn(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def test_fn(model, loader):
    outputs, targets = zip(*((model(x), y) for x, y in loader), strict=True)
    output, target = torch.cat(outputs), torch.cat(targets)
    right = output.argmax(1) == target
    return cross_entropy(output, target).item(), right.float().mean().item()


app = fair(train_fn, test_fn)


def received(message):
    model = torch.nn.Linear(64, 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message, context):
    model = received(message)
    loader = load_data(context, range(300, len(data)))
    app.train_fn(model, loader)
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(loader.dataset)}),
    }
    return Message(RecordDict(reply), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    loss, accuracy = test_fn(received(message), load_data(context, range(300)))
    metrics = MetricRecord({"num-examples": 50, "eval_loss": loss, "eval_acc": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


# %%
# On the server, a strategy and its run folder. ``InProcessGrid`` runs the clients in this process.

logging.getLogger("flwr").setLevel(logging.WARNING)
torch.set_num_threads(1)
torch.manual_seed(0)
initial = ArrayRecord(torch.nn.Linear(64, 10).state_dict())
for name, strategy in {"fedavg": FedAvg(), "qfedavg": QFedAvg(q=5)}.items():
    RunFolder(f"runs/app-{name}", score=Score("eval_acc", percent=True)).start(
        strategy, InProcessGrid(app, {}, clients=6), initial, 10
    )
    print(name, load(f"runs/app-{name}").final())

# %%
load("runs/app-qfedavg").chart()
