"""What the README shows runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.+?)```", README, re.DOTALL) for line in block.splitlines()]


def run(arguments: list[str | Path], folder: Path) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_server_app_trains_foreign_clients(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(PYTHON[0] + FOREIGN)
    assert len(re.findall(r"^[123] \{'client|^[123] \{", run([sys.executable, "example.py"], tmp_path), re.M)) == 3


def test_the_new_method_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(PYTHON[1])
    assert run([sys.executable, "example.py"], tmp_path).count("loss-before") == 3


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("fairbloom")])
def test_the_command_runs(command: str, tmp_path: Path) -> None:
    executable, *arguments = shlex.split(command.replace("--rounds 50", "--rounds 2"))
    assert run([Path(sys.executable).parent / executable, *arguments], tmp_path)


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_the_linked_file_exists(link: str) -> None:
    assert (ROOT / link).exists()


FOREIGN = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.app import RecordDict
from fairbloom.simulation.grid import InProcessGrid

client_app = ClientApp()

@client_app.train()
def train(message, context):
    arrays = {k: v * 0.9 for k, v in message.content["arrays"].to_torch_state_dict().items()}
    metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

@client_app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"eval_loss": 1.0, "num-examples": 5})}), reply_to=message)

grid = InProcessGrid(client_app, {}, 4)
app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
"""
