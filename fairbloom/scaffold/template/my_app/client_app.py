"""The client's side: it trains the model that it receives, and tests it, on its data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fairbloom.client.fair import fair
from my_app.task import Net, load_data
from my_app.task import test as test_fn
from my_app.task import train as train_fn

# in place of app = ClientApp(): it answers what methods ask of a client
app = fair(train_fn, test_fn)
train_fn = app.train_fn


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the client's training data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    batches, _ = load_data(
        int(context.node_config["partition-id"]), int(context.run_config["batch-size"])
    )
    epochs, lr = int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"])
    train_loss = train_fn(model, batches, epochs, lr, device)

    metrics = {"train-loss": train_loss, "num-examples": len(batches.dataset)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the client's test data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    _, batches = load_data(
        int(context.node_config["partition-id"]), int(context.run_config["batch-size"])
    )
    loss, accuracy = test_fn(model, batches, device)

    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(batches.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
