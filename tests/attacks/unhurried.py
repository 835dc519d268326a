"""A ClientApp that works as ours does, but waits before each training.

It leaves processors idle during an endless run.
"""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from benchmarks.deployment import Deployment
from fairbloom.client import app as ours
from tests.checkout import ROOT

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return ours.query(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(0.3)
    return ours.train(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return ours.evaluate(message, context)


def start_unhurried_client(there: Deployment, name: str) -> None:
    """Start a client that runs this app, and wait until it is connected."""
    before = there.environment
    there.environment = {**before, "PYTHONPATH": str(ROOT)}
    there.start_client(name, "--app", "tests.attacks.unhurried:app")
    there.environment = before
    there.wait_for_clients(name)
