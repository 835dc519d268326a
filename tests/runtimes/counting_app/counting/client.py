"""Clients that count in `context.state` how often they have trained."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.fair import fair


def train(message, context):
    times = 1
    if "counts" in context.state:
        times += context.state["counts"]["train"]
    context.state["counts"] = MetricRecord({"train": times})
    weights = message.content["arrays"]["w"].numpy() + np.float32(times)
    metrics = MetricRecord({"num-examples": 10, "times": times})
    return Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}),
        reply_to=message,
    )


def evaluate(message, context):
    return Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 2, "eval_acc": 0.5})}),
        reply_to=message,
    )


app = fair(lambda model, loader: None, lambda model, loader: (0.0, 0.0))
plain = ClientApp()
for each in (app, plain):
    each.train()(train)
    each.evaluate()(evaluate)
