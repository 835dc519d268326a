"""Apps made of a few files, which are on the path, and the tasks of runs that are of them."""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import run_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

from fairbloom.deploy.flower.device.messages import Answer, Task
from fairbloom.flower import serialize

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
[tool.flwr.app.config]
state-dir = "/of/the/run"
"""
NODE = {"state-dir": "/own"}
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


def bundle_of(home: Path, app: str, files: Mapping[str, str]) -> tuple[bytes, Run]:
    """Write an app into the folder that is on the path; return the bundle that Flower makes of it, and a run of it."""
    folder = home / "app"
    for name, text in {"pyproject.toml": PROJECT.format(app=app), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with warnings.catch_warnings(action="ignore"):
        content = build_fab_from_disk(folder)
    return content, run_of(content)


def run_of(content: bytes) -> Run:
    run = Run.create_empty(run_id=1)
    run.fab_id, run.fab_version, run.series_id = "test/tried", "1.0.0", 4
    run.fab_hash = hashlib.sha256(content).hexdigest()
    return run


def version_of(home: Path, version: int) -> tuple[bytes, Run]:
    """Write an app that says this version, and does what the message asks; return its bundle and a run of it."""
    return bundle_of(home, "tried_app:app", {"tried_app.py": f"VERSION = {version}\n{APP}"})


def message(do: str, kind: str = "train") -> Message:
    asked = Message(RecordDict({"config": ConfigRecord({"do": do})}), dst_node_id=2, message_type=kind)
    asked.metadata.__dict__["_run_id"] = 1
    asked.metadata.__dict__["_message_id"] = asked.object_id
    return asked


def task_of(bundle: tuple[bytes, Run], asked: Message, state: RecordDict | None = None) -> Task:
    """Return what a client's worker gets of a message."""
    content, run = bundle
    parts = {name: part.deflate() for name, part in get_all_nested_objects(asked).items()}
    state_before = b"" if state is None else serialize(state)
    return Task(2, run_to_proto(run).SerializeToString(), content, asked.object_id, parts, state_before)


def reply_of(answer: Answer) -> Any:
    """Return the reply that a client would send."""
    head = ProtoMessage.FromString(answer.head)
    reply: Any = inflate_object_from_contents(head.metadata.message_id, dict(answer.parts))
    assert reply.metadata.reply_to_message_id == head.metadata.reply_to_message_id
    return reply
