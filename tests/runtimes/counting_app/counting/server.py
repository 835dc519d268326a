"""FedAvg over clients that count."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fairbloom import RunFolder
from fairbloom.strategies import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    RunFolder(config["out"], score="eval_acc").start(
        FedAvg(min_available_nodes=2),
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
        num_rounds=config["num-server-rounds"],
    )
