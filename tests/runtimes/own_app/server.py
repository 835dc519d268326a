"""A ServerApp that trains with a strategy of Fairbloom and writes the result."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from tasks.first import model

from deploy import places
from fairbloom.strategies import FedFV

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; write the model, and the files that the modules come from."""
    rounds = int(context.run_config["num-rounds"])
    result = FedFV(alpha=0.1, tau=1, fraction_evaluate=0.0).start(grid, model(), rounds)
    Path(str(context.run_config["out"])).write_text(
        json.dumps({"weight": result.arrays["weight"].numpy().tolist(), "places": places()})
    )
