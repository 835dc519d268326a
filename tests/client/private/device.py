"""A device with a table, a schema that states all it needs, and messages to its app."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.private.account import Account
from fairbloom.client.private.opening import open_account
from fairbloom.deploy.fleet.app_process import reason_of
from fairbloom.server.settings import Settings
from fairbloom.tasks import load_task

SCHEMA = """
target = "outcome"
[fields.age]
type = "number"
center = 50.0
scale = 20.0
[fields.dose]
type = "number"
center = 1.0
scale = 0.5
[fields.outcome]
type = "string"
categories = ["well", "ill"]
"""

TRAIN = MessageType.TRAIN
EVALUATE = MessageType.EVALUATE


def write_table(path: Path, rows: int = 40, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    lines = ["age,dose,outcome"]
    for _ in range(rows):
        age = random.normal(50, 20)
        dose = random.normal(1, 0.5)
        ill = age / 20 + dose + random.normal() > 4.5
        lines.append(f"{age:.2f},{dose:.3f},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n")


class Device:
    """A device called site, with its data, its accounts and a context of Flower's."""

    def __init__(self, folder: Path, rows: int = 40, **limits: Any) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        write_table(self.data / "site.csv", rows)
        self.limits = {"epsilon": 3.0, "ledger": str(folder / "accounts"), **limits}
        self.own: dict[str, Any] = {}
        self.settings: dict[str, Any] = {"task": "csv", "schema": SCHEMA, "batch-size": 0}

    @property
    def node(self) -> dict[str, Any]:
        return {
            "partition-id": 0,
            "name": "site",
            "data-dir": str(self.data),
            "limit-privacy": json.dumps(self.limits),
            **self.own,
        }

    def open(self, seed: int = 0, test_share: float = 0.25) -> Account:
        return open_account(self.node, self.limits, SCHEMA, test_share=test_share, seed=seed)

    def context(self, **settings: Any) -> Context:
        chosen = {key.replace("_", "-"): value for key, value in settings.items()}
        config = Settings.of({"device": "cpu", **self.settings, **chosen}).run_config()
        config.pop("data-dir")
        return Context(1, 2, self.node, RecordDict(), config)

    def model(self) -> torch.nn.Module:
        return load_task({**self.settings, "data-dir": str(self.data)}).model()

    def message(
        self,
        kind: str = TRAIN,
        terms: Mapping[str, Any] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> Message:
        arrays = ArrayRecord(dict(weights or self.model().state_dict()))
        config = ConfigRecord({"server-round": 1, **(terms or {})})
        content = RecordDict({"arrays": arrays, "config": config})
        if kind == MessageType.QUERY:
            content = RecordDict()
        return Message(content, dst_node_id=2, message_type=kind, ttl=5.0)

    def ask(self, kind: str = TRAIN, terms: Mapping[str, Any] | None = None, **set_: Any) -> Any:
        """Return the content of the reply, or the reason of an error as the server sees it."""
        weights = set_.pop("weights", None)
        return self.ask_in(self.context(**set_), kind, terms, weights)

    def ask_in(self, context: Context, *question: Any) -> Any:
        """Return the same in a context."""
        try:
            return app(self.message(*question), context).content
        except Exception as error:
            return reason_of(error)
