"""Small apps on the path, and the tasks of their runs."""

import json
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from fairbloom.deploy.device.accepted import RunDescription
from fairbloom.deploy.fleet.content import Content
from fairbloom.deploy.fleet.passing import Answer, PassedTask
from fairbloom.deploy.fleet.wire_pb2 import Head
from fairbloom.recorddict import deserialize, serialize

NODE = {"state-dir": "/own"}
RUN = RunDescription(1, "tried", "1.0.0", {"state-dir": "/of/the/run"})
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
    state_dir = str(context.run_config["state-dir"])
    metrics = MetricRecord({"calls": calls, "version": VERSION, "state-dir": len(state_dir)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def write_app(home: Path, files: Mapping[str, str]) -> None:
    (home / "app").mkdir(exist_ok=True)
    for name, text in files.items():
        (home / "app" / name).write_text(text)


def write_version(home: Path, version: int) -> None:
    """Write an app that returns this version, and behaves as the message asks."""
    write_app(home, {"tried_app.py": f"VERSION = {version}\n{APP}"})


def task_of(
    do: str, kind: str = "train", state: bytes = b"", run: RunDescription = RUN
) -> PassedTask:
    """Return the task that a client's worker gets for a message with this action."""
    content = serialize(RecordDict({"config": ConfigRecord({"do": do})}))
    head = Head(id="m", run=run.number, type=kind, seconds=60.0, round="1")
    described = {
        "distribution": run.distribution,
        "version": run.version,
        "settings": dict(run.settings),
    }
    return PassedTask(2, head.SerializeToString(), json.dumps(described), Content(content), state)


def content_of(answer: Answer) -> RecordDict:
    """Return the content of a reply, which must not be an error."""
    assert not answer.code, answer.reason
    return deserialize(b"".join(answer.pieces) or answer.content.map())
