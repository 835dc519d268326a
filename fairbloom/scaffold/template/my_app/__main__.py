"""Run the app with all its clients in this process: python -m my_app [num-rounds=5]."""

import logging
import sys
import tomllib
from pathlib import Path

from flwr.app import Context, RecordDict

from fairbloom import load
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import flatten_tables
from fairbloom.simulation.grid import InProcessGrid
from my_app import client_app, server_app

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
config = flatten_tables(project["tool"]["flwr"]["app"]["config"])
for word in sys.argv[1:]:
    key, _, text = word.partition("=")
    try:
        kind = type(config[key])
        config[key] = {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        sys.exit(f"{word}: write it as KEY=VALUE, with one of {config}")
logging.getLogger("flwr").setLevel(logging.WARNING)
print(f"{config['num-rounds']} rounds with {config['clients']} clients", flush=True)
grid = InProcessGrid(client_app.app, config, config["clients"])
try:
    server_app.app(
        grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    )
except FairbloomError as error:
    sys.exit(f"error: {error}")
load(config["out"]).show()
