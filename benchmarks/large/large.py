"""An app that sends a model of many floats to and fro, and writes how long each round took.

It also writes its memory in MB before it makes the model.
"""

import json
import math
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fairbloom.protocol.bfloat16 import narrow
from fairbloom.protocol.codec import ENDING
from fairbloom.server.polling import PollingGrid
from fairbloom.strategies import FedAvg, Round

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Add one to every number, or reply this update in bfloat16 if the message asks for it."""
    received = message.content.array_records["arrays"]
    metrics = MetricRecord({"num-examples": 1})
    if "wire-dtype" not in message.content.config_records["config"]:
        arrays = {name: Array(array.numpy() + 1) for name, array in received.items()}
    else:
        metrics["update-bits"] = 16
        update = narrow(np.full(received[f"weights{ENDING}"].shape, -1.0, np.float32))
        arrays = {f"weights{ENDING}": Array(update)}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    content["client"] = ConfigRecord({"honours": ["wire-dtype"]})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and write how long each took."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    idle = pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    seconds: list[float] = []
    started = time.perf_counter()

    def on_round(finished: Round) -> None:
        nonlocal started
        if finished.refused or finished.missing:
            raise RuntimeError(f"{finished.refused} {finished.missing}")
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        Path(str(context.run_config["out"])).write_text(
            json.dumps({"idle": idle, "seconds": seconds})
        )

    floats = int(context.run_config["floats"])
    rounds = int(context.run_config["num-rounds"])
    model = ArrayRecord({"weights": Array(np.zeros(floats, np.float32))})
    wire_dtype = str(context.run_config["wire-dtype"])
    FedAvg(fraction_evaluate=0.0, update_limit=math.inf, wire_dtype=wire_dtype).start(
        PollingGrid(grid), model, rounds, on_round=on_round
    )
