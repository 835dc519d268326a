"""A reader of a page who does what it says, from top to bottom, in the folder in which she stands.

`python -m tests.docs.reader README.md` follows these rules:

- A block of Python runs as a cell of a notebook does: what one defines, the next ones know. A
  ServerApp that it makes is run, with the page's ClientApp, or else with clients that reply what
  they are asked for.
- A block whose first line is a comment with the name of a file, `# my_methods.py`, is that file, or
  goes on in it. It is written, and imported where it is Python.
- A block of the shell runs line by line, `fairbloom` in this process. Of what would install or
  build something, it is seen only whether there are such extras and targets.
- A block of text is what the command or the cell above it has printed, or the end of it. "…" stands
  for anything; without it, numbers may be a tenth off. A text that begins with "error" belongs to a
  command that fails.
"""

import importlib
import io
import math
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from packaging.requirements import Requirement

from fairbloom.cli import main as cli
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.simulation.grid import InProcessGrid
from tests.commands import fork_workers

from .pages import ROOT, Block, blocks

CLIENTS = 4
# Commands that start what goes on for longer, or on other machines.
NEEDS_MORE = re.compile(r"(docker|flwr|fairbloom (server|client|deploy))\b")
NUMBER = re.compile(r"(?<![\w.])[-+−±]?\d+(?:\.\d+)?")


class WrongPageError(Exception):
    """A page shows what does not work, or what nobody can run."""


class Reader:
    """Does what blocks say, one after the other."""

    def __init__(self) -> None:
        # What the cells have defined.
        self.names: dict[str, Any] = {"__name__": "__main__"}
        # What the page's files hold.
        self.files: dict[Path, str] = {}
        self.printed = ""
        # What the last command or cell has printed, and where a command failed whose error must be
        # shown next.
        self.failed = ""
        self.server_app: ServerApp | None = None
        self.client_app: ClientApp | None = None

    def follow(self, page: str) -> None:
        for block in blocks(page):
            if block.elsewhere:
                continue
            if block.language not in DOES:
                raise WrongPageError(
                    f"{block.place}: nobody runs a block whose language is {block.language!r}"
                )
            if not (block.language == "text" and block.text.startswith("error")):
                self.check_failed()
            DOES[block.language](self, block)
        self.check_failed()

    def check_failed(self) -> None:
        """Raise WrongPageError when the last command has failed."""
        if self.failed:
            raise WrongPageError(f"{self.failed}\n{self.printed}")

    def python(self, block: Block) -> None:
        """Run a cell, or write a file and import it."""
        if block.file:
            names = vars(imported(self.written(block)))
        else:
            code = "\n" * (block.line - 1) + block.text  # so that a traceback has the page's lines
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, block.page, "exec"), self.names)  # noqa: S102 (our own page)
            self.printed = printed.getvalue()
            names = self.names
        self.try_apps(names.values())

    def shell(self, block: Block) -> None:
        for command in block.commands:
            self.check_failed()
            if NEEDS_MORE.match(command):
                raise WrongPageError(
                    f"{block.place}: name the test that runs {command}, in ELSEWHERE"
                )
            words = shlex.split(command, comments=True)
            code, self.printed = PROGRAMS.get(words[0], in_shell)(command, words)
            self.failed = f"{block.place}: {command} ended with {code}" if code else ""

    def toml(self, block: Block) -> None:
        """Write a file, and read it as it will be."""
        if not block.file:
            raise WrongPageError(
                f"{block.place}: say in the first line which file this is, as in # client.toml"
            )
        read = tomllib.loads(block.text)
        file = self.written(block)
        for dependency in read.get("project", {}).get("dependencies", []):
            Requirement(dependency)
        if file.name in ("client.toml", "owner.toml"):
            check_client(file)

    def text(self, block: Block) -> None:
        """Compare with what was printed."""
        if not is_shown(block.text, self.printed):
            raise WrongPageError(
                f"{block.place} shows\n{block.text}\nand printed was\n{self.printed}"
            )
        self.failed = ""

    def written(self, block: Block) -> Path:
        """Write the file that a block is, or goes on in."""
        file = Path(block.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.files[file] = (
            f"{self.files[file]}\n\n{block.text}" if file in self.files else block.text
        )
        file.write_text(self.files[file])
        return file

    def try_apps(self, values: Iterable[Any]) -> None:
        """Run a ServerApp that is new among these values, with the newest ClientApp."""
        values = list(values)
        self.client_app = next(
            (each for each in values if isinstance(each, ClientApp)), self.client_app
        )
        new = [
            each for each in values if isinstance(each, ServerApp) and each is not self.server_app
        ]
        for self.server_app in new:
            self.server_app(
                InProcessGrid(self.client_app or simple_clients(), {}, CLIENTS),
                Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}),
            )


DOES: dict[str, Callable[[Reader, Block], None]] = {
    "python": Reader.python,
    "sh": Reader.shell,
    "toml": Reader.toml,
    "text": Reader.text,
}


# Programs -----------------------------------------------------------------------------------------


def check_client(file: Path) -> None:
    """Read a client's settings, of the operator or of the device's owner, beside those of a real
    bundle."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = enroll(
            Federation.init(Path(folder, "federation"), ["localhost"], 9092), "site-a"
        ).absolute()
        needed = {key: str(bundle / key) for key in ("key", "certificate")}
        if file.name == "client.toml":
            ClientSettings.of({**needed, "ca": str(bundle / "ca.crt")}, file)
        else:
            shutil.copy(file, bundle)
            ClientSettings.of({}, bundle / "client.toml")


def fairbloom(command: str, words: list[str]) -> tuple[int, str]:
    """Run our own command; return its exit code and what it has printed."""
    sys.argv = words
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def python(command: str, words: list[str]) -> tuple[int, str]:
    """Run a script, or a module after -m, with its words; return exit code and output."""
    with redirect_stdout(io.StringIO()) as printed:
        try:
            if words[1] == "-m":
                sys.argv = words[2:]
                runpy.run_module(words[2], run_name="__main__")
            else:
                sys.argv = words[1:]
                runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def pip(command: str, words: list[str]) -> tuple[int, str]:
    """Look whether Fairbloom has the extras that would be installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = re.findall(r"fairbloom\[([\w,-]+)\]", command)
    lacking = {each for group in wanted for each in group.split(",")} - set(extras)
    return (1, f"there is no extra {', '.join(lacking)}") if lacking else (0, "")


def make(command: str, words: list[str]) -> tuple[int, str]:
    """Look whether the Makefile has the targets."""
    return in_shell(shlex.join([*words, "--dry-run", "--directory", str(ROOT)]), words)


def cd(command: str, words: list[str]) -> tuple[int, str]:
    os.chdir(words[1])
    return 0, ""


def in_shell(command: str, words: list[str]) -> tuple[int, str]:
    """Run any other command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


PROGRAMS = {"fairbloom": fairbloom, "python": python, "pip": pip, "make": make, "cd": cd}


# Helpers ------------------------------------------------------------------------------------------


def is_shown(shown: str, printed: str) -> bool:
    """Return whether `printed` ends with what is shown; spaces and line ends count as one space."""
    words = [NUMBER.sub("#", " ".join(text.split())) for text in (shown, printed)]
    pattern = ".*?".join(re.escape(part) for part in re.split(r"\s*…\s*", words[0]))
    if not re.search(rf"(?<!\S){pattern}$", words[1]):
        return False
    ours, theirs = (
        [float(each.replace("−", "-").lstrip("±")) for each in NUMBER.findall(t)]
        for t in (shown, printed)
    )
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    return "…" in shown or all(math.isclose(*pair, rel_tol=0.1, abs_tol=0.1) for pair in pairs)


def imported(file: Path) -> ModuleType:
    """Return the module that a file is, as a fresh process imports it."""
    name = ".".join(file.with_suffix("").parts)
    importlib.invalidate_caches()
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def simple_clients() -> ClientApp:
    """Return clients that know of Fairbloom only the list `measure` in a message's config, and
    answer 1 to it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content["arrays"]
        assert isinstance(model, ArrayRecord)
        arrays = ArrayRecord(
            {name: values * 0.9 for name, values in model.to_torch_state_dict().items()}
        )
        metrics = MetricRecord(
            {"loss": 1.0, "num-examples": 10}
            | dict.fromkeys(message.content["config"].get("measure", []), 1.0)
        )
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"loss": 1.0, "accuracy": 0.5, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def run_script(file: str) -> None:
    """Run a file as `python file` does, in this process and its folder."""
    sys.path.insert(0, str(Path.cwd()))
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        runpy.run_path(file, run_name="__main__")


def follow(page: str) -> None:
    """Do all that a page says, in this process and its folder."""
    # a file that goes on within the same second would be taken for the one before
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path.cwd()))
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        Reader().follow(page)


if __name__ == "__main__":
    follow(sys.argv[1])
