"""A run records its user's code: with changed code it is not continued, extended or compared."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fairbloom.own_code import digest_own_code
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid

from ...server.run_folder.test_flower import app
from ..helpers import captured, fairbloom

SOURCES = {
    "my_helper": "K = 1\n",
    "my_task": """
from fairbloom.tasks import find_task
def task(setup):
    known = find_task("digits")
    return known.load(setup.model_copy(update={"data_dir": ""}), known.check_parameters({}))
""",
    "my_model": "import torch\ndef net(outputs, inputs):\n"
    "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, outputs))\n",
    "my_methods": """
from fairbloom.strategies import FedAvg
class Mine(FedAvg):
    def weigh(self, cohort):
        import my_helper
        return super().weigh(cohort)
""",
    "my_rules": """
class Plain:
    def start(self, received, kept, sent):
        return None
    def correct(self, gradients, state, step):
        return gradients
    def finish(self, received, trained, state, steps):
        return trained, {}
""",
    "my_attacks": "def attack(sight):\n    return -sight.own\n",
}
"""Modules of a user's; the method imports the helper late."""

NAMED = (
    "--task",
    "my_task:task",
    "--model",
    "my_model:net",
    "--method",
    "my_methods:Mine",
    "--clients",
    "3",
)
SMALL = ("--rounds", "1", "--device", "cpu")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in SOURCES.items():
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    return tmp_path


def edit(module: str) -> None:
    Path(f"{module}.py").write_text(f"{SOURCES[module]}EDITED = True\n")


def restore(module: str) -> None:
    Path(f"{module}.py").write_text(SOURCES[module])


def test_a_run_is_not_taken_up_with_other_code(
    modules: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    more = {"client-rule": "my_rules:Plain", "attack": "my_attacks:attack", "attackers": "0.34"}
    words = (
        *NAMED,
        *SMALL,
        *(word for each in more.items() for word in ("--set", "=".join(each))),
        "--out",
        "a",
    )
    assert fairbloom("run", *words) == 0, capsys.readouterr().err
    for module in SOURCES:
        with subtests.test(module=module):
            edit(module)
            for longer in ((), ("--rounds", "2")):
                capsys.readouterr()
                assert f"{modules / 'a'} was begun ({module})" in " ".join(
                    captured(capsys, "run", *words, *longer, code=2).err.split()
                )
            restore(module)
    assert fairbloom("run", *words) == 0
    Path("my_other.py").write_text("")  # which none of them imports
    assert fairbloom("run", *words, "--rounds", "2") == 0


def test_a_comparison_has_no_rows_of_two_algorithms(
    modules: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    words = ("--task", "digits", "--clients", "3", *SMALL, "--jobs", "1", "--out", "c")
    methods = ("--methods", "fedavg,my_methods:Mine")
    assert fairbloom("compare", *words, *methods, "--seeds", "1") == 0, capsys.readouterr().err
    edit("my_helper")
    for seeds in ("1", "2"):
        with subtests.test(seeds=seeds):
            assert (
                "(my_helper)"
                in captured(capsys, "compare", *words, *methods, "--seeds", seeds, code=2).err
            )
    assert len([*Path("c", "runs").iterdir()]) == 2
    assert fairbloom("compare", *words, "--methods", "fedavg", "--seeds", "1") == 0


def test_own_strategies_of_apps_are_compared_too(modules: Path) -> None:
    def start(rounds: int) -> None:
        strategy = importlib.import_module("my_methods").Mine()
        arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        RunFolder("a", score="eval_acc", wait=False).start(
            strategy, InProcessGrid(app, {}, 3), arrays, rounds
        )

    start(1)
    edit("my_methods")
    with pytest.raises(
        RunFolderError, match=r"code has changed since the run in .* \(my_methods\)"
    ):
        start(2)
    restore("my_methods")
    start(2)


def test_the_code_is_what_is_imported_from_the_same_folder(modules: Path) -> None:
    """Packages around a module, relative and late imports, and nothing that is installed or not
    imported."""
    package = Path("own", "deep")
    package.mkdir(parents=True)
    for file, source in {
        "__init__": "",
        "a": "from . import b\nfrom ..top import x\nimport torch\nimport my_helper as h",
        "b": "def f():\n    from own.deep.c import *",
        "c": "if True:\n    import not_there",
        "unused": "",
    }.items():
        (package / f"{file}.py").write_text(source)
    Path("own", "top.py").write_text("x = 1")
    found = digest_own_code(
        ["own.deep.a:Task", "fedavg", "torch.optim:Adam", "fairbloom.strategies:FedAvg", "no:thing"]
    )
    assert set(found) == {
        "own.deep",
        "own.deep.a",
        "own.deep.b",
        "own.deep.c",
        "own.top",
        "my_helper",
    }


def test_a_library_in_any_folder_of_pip_is_no_code_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install --target`: Flower's own classes lie there, too."""
    (tmp_path / "their_library.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert digest_own_code(["their_library:X"])
    (tmp_path / "their_library-1.0.dist-info").mkdir()
    assert digest_own_code(["their_library:X"]) == {}
