"""Commands of operators and clients, with an answering machine in place of Flower's, and what they have left."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairbloom.deploy import pki
from fairbloom.deploy.flower.operator import commands as flower_commands
from fairbloom.deploy.flower.operator.control_api import Nodes
from fairbloom.deploy.operator.federation import CONNECTION, Federation
from tests.deploy.flower import ROOT

MACHINE = """#!{python} -SE
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
if words[0] == "run":
    settings = words.index("--run-config") + 1
    words[settings] = Path(words[settings]).read_text()
here = Path({folder!r})
with (here / "asked.jsonl").open("a") as asked:
    asked.write(json.dumps(words) + "\\n")
home = Path(os.environ["FLWR_HOME"])
assert (home / "config.toml").exists()
assert (home / "credentials.yaml").exists()
answers = json.loads((here / "answers.json").read_text())
asked_for = words[1] if words[0] == "supernode" else words[0]
answer = answers.get(asked_for, {{"success": True}})
if words[:2] == ["supernode", "register"]:
    (here / "registered.pub").write_bytes(Path(words[2]).read_bytes())
if words[0] == "log":
    print(answer["text"], end="", flush=True)
    time.sleep(answer.get("seconds", 0))
else:
    if isinstance(answer, list):
        (here / "answers.json").write_text(json.dumps(answers | {{asked_for: answer[1:] or answer}}))
        answer = answer[0]
    print("some words first", file=sys.stderr)
    print(json.dumps(answer))
"""


class AnsweringApi:
    """Stands where the control API is: what it is asked goes to the machine, in the words of Flower's commands."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def register(self, name: str, public_key: bytes) -> str:
        with tempfile.NamedTemporaryFile(suffix=".pub") as public:
            public.write(public_key)
            public.flush()
            return str(self._ask("supernode", "register", public.name, CONNECTION, "--name", name)["node-id"])

    def unregister(self, node_id: str) -> None:
        self._ask("supernode", "unregister", node_id, CONNECTION)

    def nodes(self) -> Nodes:
        found = self._ask("supernode", "list", CONNECTION)["nodes"]
        return {node["node-id"]: {"offline-at": "", **node} for node in found}

    def runs(self, run_id: str = "") -> list[dict[str, Any]]:
        found = self._ask("list", CONNECTION, *(["--run-id", run_id] if run_id else []))["runs"]
        return [{"status-details": "", **run} for run in found]

    def _ask(self, *words: str) -> dict[str, Any]:
        return flower_commands.flwr_json(self.federation, *words)


@contextlib.contextmanager
def answering(federation: Federation) -> Iterator[AnsweringApi]:
    yield AnsweringApi(federation)


class Machine:
    """Answers as Flower's command does, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "flwr"
        self.path.write_text(MACHINE.format(python=sys.executable, folder=str(folder)))
        self.path.chmod(0o755)
        self.answers(register={"success": True, "node-id": "77"})

    def answers(self, **answers: Any) -> None:
        (self.folder / "answers.json").write_text(json.dumps(answers))

    @property
    def asked(self) -> list[list[str]]:
        file = self.folder / "asked.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def request_of(folder: Path, name: str, pair: pki.KeyPair | None = None) -> Path:
    """Write what a device asks with; return the file."""
    file = folder / f"{name}.request"
    keys = pair or pki.make_node_key()
    file.write_text(f"{keys.public.decode()} {name}\n")
    return file


def client_command(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairbloom.deploy", "client", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
