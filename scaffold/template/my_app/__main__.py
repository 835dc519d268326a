"""Run the app in this process, with all its clients: python -m my_app, or python -m my_app num-rounds=5."""

import sys
import tomllib
from pathlib import Path

from flwr.app import Context, RecordDict

from fairbloom.simulation.grid import InProcessGrid
from my_app import client_app, server_app

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
config = project["tool"]["flwr"]["app"]["config"]
for key, text in (word.split("=", 1) for word in sys.argv[1:]):
    config[key] = type(config[key])(text)
grid = InProcessGrid(client_app.app, config, config["clients"])
server_app.app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
