"""A client in NumPy, which also honours FedProx's proximal term."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def examples(context):
    generator = np.random.default_rng(context.node_config["partition-id"])
    X = generator.normal(size=(60, 3))
    return X, X @ [1.0, -2.0, 0.5] + generator.normal(size=60)


@app.query()
def query(message, context):
    client = {"name": f"site-{context.node_config['partition-id']}", "honours": ["proximal-mu"]}
    return Message(RecordDict({"client": ConfigRecord(client)}), reply_to=message)


@app.train()
def train(message, context):
    X, y = (each[:50] for each in examples(context))
    w = message.content["arrays"]["w"].numpy()
    mu = message.content["config"].get("proximal-mu", 0.0)
    x = w.copy()
    before = np.mean((X @ w - y) ** 2)
    for _ in range(10):
        x -= 0.05 * (2 * X.T @ (X @ x - y) / len(y) + mu * (x - w))
    metrics = MetricRecord({"num-examples": len(y), "loss-before": float(before)})
    return Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(x)}), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message, context):
    X, y = (each[50:] for each in examples(context))
    errors = X @ message.content["arrays"]["w"].numpy() - y
    metrics = {
        "num-examples": len(y),
        "loss": float(np.mean(errors**2)),
        "mae": float(np.mean(abs(errors))),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
