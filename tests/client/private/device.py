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
from fairbloom.client.private.opening import known_account, open_account
from fairbloom.deploy.fleet.app_process import reason_of
from fairbloom.protocol.error_codes import code_of
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

MARKER = "fairbloom-account.toml"
TRAIN = MessageType.TRAIN
EVALUATE = MessageType.EVALUATE


def write_table(path: Path, rows: int = 40, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    lines = [
        f"{age:.2f},{dose:.3f},{'ill' if age / 20 + dose + noise > 4.5 else 'well'}"
        for age, dose, noise in random.normal((50, 1, 0), (20, 0.5, 1), (rows, 3))
    ]
    path.write_text("\n".join(["age,dose,outcome", *lines, ""]))


class Device:
    """A device called site, with its data, its accounts and a context of Flower's."""

    def __init__(self, folder: Path, rows: int = 40, **limits: Any) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.state = folder / "state"
        self.state.mkdir()
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

    def open(self) -> Account:
        return open_account(self.node, self.limits, SCHEMA, test_share=0.25, seed=0)

    @property
    def account(self) -> Account:
        return known_account(self.node)

    @property
    def left(self) -> tuple[int, ...]:
        """The units and the test reports that are left."""
        return tuple(self.account.left().values())

    def context(self, **settings: Any) -> Context:
        chosen = {key.replace("_", "-"): value for key, value in settings.items()}
        config = Settings.of({"device": "cpu", **self.settings, **chosen}).run_config()
        config.pop("data-dir")
        return Context(1, 2, self.node, RecordDict(), config)

    def model(self) -> torch.nn.Module:
        return load_task(self.settings).model()

    def message(
        self,
        kind: str = TRAIN,
        terms: Mapping[str, Any] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> Message:
        arrays = ArrayRecord(dict(weights or self.model().state_dict()))
        content = RecordDict(
            {"arrays": arrays, "config": ConfigRecord({"server-round": 1, **(terms or {})})}
        )
        if kind == MessageType.QUERY:
            content = RecordDict()
        return Message(content, dst_node_id=2, message_type=kind, ttl=5.0)

    def ask(
        self,
        kind: str = TRAIN,
        terms: Mapping[str, Any] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        **settings: Any,
    ) -> Any:
        """Return the content of the reply, or the reason of an error as the server sees it."""
        return self.ask_in(self.context(**settings), kind, terms, weights)

    def ask_in(self, context: Context, *question: Any) -> Any:
        """Return the same in a context."""
        try:
            return app(self.message(*question), context).content
        except Exception as error:
            return reason_of(error)

    def code(self, kind: str, terms: Mapping[str, Any] | None = None) -> int:
        """Return the code of the error that replaces a reply; 0: there is a reply."""
        try:
            app(self.message(kind, terms), self.context())
        except Exception as error:
            return code_of(error)
        return 0


def opened(folder: Path, **limits: Any) -> Device:
    """Return a device with an account."""
    device = Device(folder, **limits)
    device.open()
    return device
