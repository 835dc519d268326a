"""A device with a hospital's file, asked as a server asks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.guard.accepted_settings import accepted_settings
from fairbloom.server.settings import Settings
from fairbloom.tasks import load_task

PATIENTS = 260

SCHEMA = """
target = "target"
missing = "fill"

[fields.age]
type = "number"

[fields.sex]
type = "integer"
categories = [0, 1]

[fields.chol]
type = "number"

[fields.ca]
type = "number"

[fields.ward]
type = "string"
categories = ["hospice", "north", "south"]

[fields.target]
type = "integer"
categories = [0, 1]
"""

RUN: dict[str, Any] = {"task": "csv", "device": "cpu", "schema": SCHEMA}


def grouped(*groups: str) -> str:
    """Return the schema with groups."""
    return f"groups = {list(groups)}\n{SCHEMA}"


def write_hospital(folder: Path, skip: int = 0) -> None:
    """Write lund.csv: patients of whom some lack `ca`, and some wards have few; without the first
    `skip`."""
    random = np.random.default_rng(4)
    lines = ["age,sex,chol,ca,ward,target"]
    for place in range(PATIENTS):
        age = random.integers(30, 80)
        chol = random.integers(180, 300)
        sex = random.random()
        ill = random.random()
        ca = "" if place % 29 == 5 else place % 4
        ward = "hospice" if place % 40 == 3 else ("north", "south")[place % 2]
        lines.append(f"{age},{int(sex < 0.7)},{chol},{ca},{ward},{int(ill < 0.5)}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lund.csv").write_text("\n".join([lines[0], *lines[1 + skip :]]) + "\n")


class Device:
    """A deployed client with a state folder, asked in this process.

    Parameters
    ----------
    folder
        Where its data and its state are.
    node
        What else is in its node config: limit-rows, say.
    """

    def __init__(self, folder: Path, **node: Any) -> None:
        self.data = folder / "data"
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self._node = {"data-dir": str(self.data), "state-dir": str(self.state)} | {
            key.replace("_", "-"): value for key, value in node.items()
        }

    def ask(
        self, kind: str, settings: dict[str, Any], content: RecordDict, lives: float = 60.0
    ) -> RecordDict:
        """Return the content of the reply to one message, which lives for these seconds."""
        config = accepted_settings(Settings.of({**RUN, **settings}).run_config())
        context = Context(
            run_id=1, node_id=2, node_config=self._node, state=RecordDict(), run_config=config
        )
        return app(Message(content, dst_node_id=2, message_type=kind, ttl=lives), context).content

    def evaluate(self, *measure: str, lives: float = 60.0, **settings: Any) -> dict[str, float]:
        """Return its metrics of the initial model, without the number of its table."""
        message = _message(settings, measure)
        metrics = dict(self.ask(MessageType.EVALUATE, settings, message, lives)["metrics"])
        metrics.pop("rows-version", None)  # of an account's device
        return metrics

    def train(self, *measure: str, **settings: Any) -> dict[str, float]:
        """Return the numbers that it reports of a round's training."""
        return dict(self.ask(MessageType.TRAIN, settings, _message(settings, measure))["metrics"])


def _message(settings: dict[str, Any], measure: tuple[str, ...]) -> RecordDict:
    model = load_task(Settings.of({**RUN, **settings}).run_config()).model()
    config = ConfigRecord({"server-round": 1, "measure": list(measure)})
    return RecordDict({"config": config, "arrays": ArrayRecord(model.state_dict())})


def crash_at(monkeypatch: pytest.MonkeyPatch, moved: str | None) -> None:
    """Let the process end where a folder of this name is moved; None: nowhere."""
    rename = Path.rename

    def crash(path: Path, target: Path) -> Path:
        if path.name == moved:
            raise SystemExit("crash")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", crash)
