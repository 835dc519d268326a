"""Print for make lock what an image needs of pyproject.toml's dependencies; the rest serves simulation and figures."""

import re
import sys
import tomllib
from pathlib import Path

CLIENT = {"flwr", "torch", "numpy", "safetensors", "scikit-learn", "typer"}
SERVER = CLIENT | {"cvxopt", "prometheus-client", "pydantic", "rich", "tomli-w"}

wanted = {"client": CLIENT, "server": SERVER}[sys.argv[1]]
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
declared = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
by_name = {re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]: requirement for requirement in declared}
print(*(re.sub(r"\[.*?\]|\s", "", by_name[name]) for name in sorted(wanted)), sep="\n")
