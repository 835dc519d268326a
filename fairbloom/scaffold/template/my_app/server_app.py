"""The server's side: the method that combines the clients' models, and the run folder."""

from statistics import fmean

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fairbloom import RunFolder
from fairbloom.rounds.round import Round
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
    RunFolder(config["out"]).start(
        strategy, grid, arrays, num_rounds=config["num-rounds"], on_round=show_round
    )


def show_round(finished: Round) -> None:
    """Print how the clients are served after a round."""
    served = [metrics["accuracy"] for metrics in finished.evaluations.values()]
    if served:
        mean = fmean(served)
        worst = min(served)
        print(f"round {finished.number}: accuracy {mean:.0%}, worst client {worst:.0%}", flush=True)
