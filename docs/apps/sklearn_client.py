"""A Flower client of scikit-learn that supports all methods which need a loss."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

app = ClientApp()


def examples(context):
    X, y = load_digits(return_X_y=True)
    i, parts = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return X[i::parts] / 16, y[i::parts]


def received(message):
    rate = message.content["config"].get("lr", 0.1)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, random_state=0)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = (
        message.content["arrays"][name].numpy().copy() for name in ("coef", "intercept")
    )
    return model


@app.query()
def query(message, context):
    client = ConfigRecord({"name": f"site-{context.node_config['partition-id']}"})
    return Message(RecordDict({"client": client}), reply_to=message)


@app.train()
def train(message, context):
    X, y = (each[:-50] for each in examples(context))
    model = received(message)
    before = log_loss(y, model.predict_proba(X), labels=model.classes_)
    model.partial_fit(X, y)
    arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
    metrics = MetricRecord({"num-examples": len(y), "loss-before": before})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    X, y = (each[-50:] for each in examples(context))
    model = received(message)
    loss = log_loss(y, model.predict_proba(X), labels=model.classes_)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": model.score(X, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
