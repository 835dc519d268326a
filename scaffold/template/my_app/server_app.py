"""The server's side: the method that combines the clients' models, and the run folder."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fairbloom import RunFolder
from fairbloom.strategies import from_config
from my_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one model for all clients; started again, the run goes on where it was."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    arrays = ArrayRecord(Net().state_dict())

    # the method and the seed are those of the run config
    strategy = from_config(config, min_available_nodes=config["clients"])
    RunFolder(config["out"]).start(strategy, grid, arrays, num_rounds=config["num-rounds"])
