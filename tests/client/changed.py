"""The app in quickstart/, with the lines changed that docs/flower.md says, and the same data as a
task of our own."""

import importlib
import itertools
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import cross_entropy

from fairbloom.simulation.grid import InProcessGrid
from fairbloom.tasks import Examples, Setup, Splits, Task
from tests.docs.pages import blocks

QUICKSTART = Path(__file__).parent / "quickstart"

FILES = ("client_app.py", "server_app.py")

CONFIG = {"fraction-evaluate": 1.0, "local-epochs": 1, "learning-rate": 0.1, "batch-size": 32}


def changes() -> dict[str, list[tuple[str, str]]]:
    """Return the changes that docs/flower.md shows in each file: lines as they are, and what stands
    in their place."""
    diffs = [block.text for block in blocks("docs/flower.md") if block.language == "diff"]
    return {name: changes_of(diff) for name, diff in zip(FILES, diffs[:2], strict=True)}


def changes_of(diff: str) -> list[tuple[str, str]]:
    found = []
    for kept, lines in itertools.groupby(
        diff.splitlines(keepends=True), key=lambda line: line[0] not in "+-"
    ):
        if not kept:
            changed = list(lines)
            found.append(
                tuple("".join(line[1:] for line in changed if line[0] == sign) for sign in "-+")
            )
    return [(before, after) for before, after in found]


def change(folder: Path) -> None:
    """Copy the app to a folder and change its lines, as a user would."""
    shutil.copytree(QUICKSTART, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, pairs in changes().items():
        path = folder / "mydigits" / name
        for before, after in pairs:
            edit(path, before, after)


def let_the_config_choose(folder: Path) -> None:
    """Change the changed app in a folder so that its run config names the method."""
    inside = [each for each in blocks("docs/flower.md") if each.section.startswith("The method")]
    diff, keys = (each.text for each in inside)
    for before, after in changes_of(diff):
        edit(folder / "mydigits" / "server_app.py", before, after)
    edit(folder / "pyproject.toml", "batch-size = 32\n", f"batch-size = 32\n{keys}")


def edit(file: Path, before: str, after: str) -> None:
    """Replace the one place of a file that says `before`."""
    source = file.read_text()
    assert source.count(before) == 1, before
    file.write_text(source.replace(before, after))


def aim(folder: Path, out: Path) -> None:
    """Let the changed app in a folder start from the same model each time, and name a whole path
    for its files."""
    server = folder / "mydigits" / "server_app.py"
    edit(server, "runs/a", str(out))
    edit(server, '"final_model.pt"', f'"{out}.pt"')
    edit(server, "Net().state_dict()", "seeded().state_dict()")
    server.write_text(
        server.read_text()
        + "\n\ndef seeded() -> Net:\n    torch.manual_seed(0)\n    return Net()\n"
    )


def run_in_process(folder: Path, config: dict[str, Any], clients: int) -> None:
    """Run the app in a folder on clients in this process."""
    with imported(folder) as (client, _):
        importlib.import_module("mydigits.server_app").app(
            InProcessGrid(client.app, config, clients),
            Context(run_id=1, node_id=77, node_config={}, state=RecordDict(), run_config=config),
        )


@contextmanager
def imported(folder: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    """Import the app in a folder; yield its client_app and its task, and forget them afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield (
            importlib.import_module("mydigits.client_app"),
            importlib.import_module("mydigits.task"),
        )
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "mydigits"]:
            del sys.modules[name]


def task(setup: Setup) -> Task:
    """Return the data of the app as a task; the app must have been imported."""
    theirs: Any = sys.modules["mydigits.task"]
    names = tuple(f"client-{i}" for i in range(setup.clients))

    def splits(client: str) -> Splits:
        loaders = theirs.load_data(names.index(client), len(names), 1)
        examples = ((each.dataset.images, each.dataset.labels) for each in loaders)
        return Splits(
            *(Examples(images, labels, torch.arange(len(labels))) for images, labels in examples)
        )

    return Task(names, theirs.Net, partial(cross_entropy, reduction="none"), splits)
