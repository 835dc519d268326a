"""A ClientApp that trains as ours does, until a file orders an attack.

It then sends that attack once as its reply, and removes the file. The owner of a device can run any
app, by the key `app` of owner.toml.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client import app as honest
from fairbloom.server.settings import default_config
from tests.attacks.hostile import infinite, with_arrays, with_metrics

# The environment variable with the path of the file that names the attack.
ORDER = "SOAK_ATTACK"

app = ClientApp()
app.query()(honest.query)
app.evaluate()(honest.evaluate)


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = honest.train(message, context)
    order = Path(os.environ[ORDER])
    if order.exists():
        attack = order.read_text()
        order.unlink()
        reply.content = ATTACKS[attack](reply.content)
    return reply


def enormous(content: RecordDict) -> RecordDict:
    arrays = content.array_records["arrays"].items()
    return with_arrays(
        content, {name: Array(np.full_like(array.numpy(), 1e30)) for name, array in arrays}
    )


# Replies that are refused by name. Without a limit on norms, weights of 1e30 would be accepted.
ATTACKS: Mapping[str, Callable[[RecordDict], RecordDict]] = {
    "infinite weights": infinite,
    "a loss of 1e300": lambda content: with_metrics(content, loss_before=1e300),
    "2^60 examples": lambda content: with_metrics(content, num_examples=1 << 60),
    **({"weights of 1e30": enormous} if "update-limit" in default_config() else {}),
}
