"""Bundles made of a few files, and the messages of runs that bring them."""

import hashlib
import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    from flwr.cli.build import build_fab_from_disk

PROJECT = """
[project]
name = "tried"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "{app}"
clientapp = "{app}"
"""
APP = """
import os
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
calls = 0

@app.train()
def train(message, context):
    global calls
    calls += 1
    context.state["seen"] = MetricRecord({"calls": calls})
    wanted = message.content["config"]["do"]
    if wanted == "mend":
        from fairbloom.errors import FairbloomError
        raise FairbloomError("shares = 3: lower it")
    if wanted == "raise":
        raise ValueError("a reason")
    if wanted == "crash":
        os.kill(os.getpid(), 11)
    if wanted == "exit":
        raise SystemExit(5)
    metrics = MetricRecord({"calls": calls, "version": VERSION, "state-dir": len(str(context.run_config["state-dir"]))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""
numbers = itertools.count()


def bundle_of(home: Path, app: str, files: Mapping[str, str]) -> tuple[Any, Any]:
    """Return the bundle that Flower makes of these files, and a run of it."""
    folder = home / f"app-{next(numbers)}"
    for name, text in {"pyproject.toml": PROJECT.format(app=app), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with warnings.catch_warnings(action="ignore"):
        content = build_fab_from_disk(folder)
    run = Run.create_empty(run_id=1)
    run.fab_id, run.fab_version = "test/tried", "1.0.0"
    return Fab(hashlib.sha256(content).hexdigest(), content, {}), run


def message(do: str) -> Message:
    asked = Message(RecordDict({"config": ConfigRecord({"do": do})}), dst_node_id=2, message_type="train")
    asked.metadata.__dict__["_message_id"] = "one"
    return asked


def context() -> Context:
    return Context(1, 2, {"state-dir": "/own"}, RecordDict(), {"state-dir": "/of/the/run"})


def version_of(home: Path, version: int) -> tuple[Any, Any]:
    """Return a bundle whose app says this version, and does what the message asks; and a run of it."""
    return bundle_of(home, "tried_app:app", {"tried_app.py": f"VERSION = {version}\n{APP}"})


def node_state(fab: Any, run: Any) -> tuple[InMemoryNodeState, InMemoryObjectStore]:
    """Return what a node knows once a run's bundle has come, and where it keeps the parts of messages."""
    run.fab_hash, run.series_id = fab.hash_str, 4
    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(2)
    state.store_run(run)
    state.store_fab(fab)
    state.set_run_series_context(run.series_id, context())
    return state, store
