"""A run folder may come from others: reading it runs no code that its settings name."""

import shutil
import sys
from pathlib import Path

import pytest

import fairbloom as library
from fairbloom.errors import FairbloomError
from fairbloom.experiments.study import Study
from fairbloom.imports import imported, only_trusted_imports

from .commands import fairbloom
from .experiments.helpers import fairbloom as run_here
from .prediction.hospitals import write_hospital, write_hospitals
from .tables.helpers import inferred

EVIL = """
from pathlib import Path

import torch

Path(__file__).with_name("ran").touch()


def net(inputs, outputs):
    return torch.nn.Linear(inputs, outputs)


class Task:
    pass
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of the model `own:net`, and a new site's rows."""
    folder = tmp_path_factory.mktemp("finished")
    write_hospitals(folder / "data")
    (folder / "own.py").write_text(EVIL)
    text = inferred(folder / "data")
    for name, center, scale in (("age", 60.0, 10.0), ("bp", 130.0, 15.0)):
        text = text.replace(
            f"[fields.{name}]\n", f"[fields.{name}]\ncenter = {center}\nscale = {scale}\n"
        )
    (folder / "schema.toml").write_text(text)
    words = (
        "--data-dir",
        "data",
        "--schema",
        "schema.toml",
        "--model",
        "own:net",
        "--rounds",
        "1",
        "--out",
        "run",
    )
    done = fairbloom(folder, "run", "--task", "csv", *words)
    assert done.returncode == 0, done.stderr
    small = ("--task", "digits", "--rounds", "1", "--seeds", "2", "--jobs", "1")
    done = fairbloom(folder, "compare", *small, "--methods", "fedavg,afl", "--out", "two")
    assert done.returncode == 0, done.stderr
    write_hospital(folder / "new.csv", 30, 9)
    (folder / "ran").unlink()
    return folder


@pytest.fixture
def foreign(finished: Path, tmp_path: Path) -> Path:
    """The same folder, with a file `evil.py`."""
    shutil.copytree(finished, tmp_path / "foreign")
    (tmp_path / "foreign/evil.py").write_text(EVIL)
    return tmp_path / "foreign"


def change_settings(folder: Path, **settings: str) -> None:
    """Change settings of all runs in a folder, as an attacker might."""
    for config in folder.rglob("config.toml"):
        lines = [line.partition(" = ") for line in config.read_text().splitlines()]
        assert {key for key, _, _ in lines} >= settings.keys()
        changed = [
            f'{key} = "{settings[key]}"' if key in settings else key + sign + old
            for key, sign, old in lines
        ]
        config.write_text("\n".join(changed) + "\n")


READING = (
    ("show", "run"),
    ("show", "run", "--json"),
    ("report", "run"),
    ("show", "two"),
    ("report", "two"),
)
PREDICTING = (
    ("predict", "run", "new.csv", "--out", "out.csv"),
    ("evaluate", "run", "--data-dir", "new.csv"),
)


@pytest.mark.parametrize("words", [*READING, ("data", "run")], ids=" ".join)
def test_reading_a_run_imports_nothing_it_names(
    foreign: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Neither does reading its data, which hospitals do not have."""
    change_settings(foreign, task="evil:Task", model="evil:net", method="evil:Task")
    monkeypatch.chdir(foreign)
    assert run_here(*words) == (2 if words[0] == "data" else 0)
    assert not (foreign / "ran").exists()


@pytest.mark.parametrize("words", PREDICTING, ids=" ".join)
@pytest.mark.parametrize("setting", ["task", "model"])
def test_predicting_refuses_untrusted_modules(
    foreign: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    words: tuple[str, ...],
) -> None:
    change_settings(foreign, **{setting: "evil:net"})
    monkeypatch.chdir(foreign)
    assert run_here(*words) == 2
    said = capsys.readouterr().err
    assert f"{setting} = 'evil:net'" in said
    assert "say --trust" in said
    assert not (foreign / "ran").exists()


@pytest.mark.parametrize("words", PREDICTING)
def test_a_trusted_module_is_imported(foreign: Path, words: tuple[str, ...]) -> None:
    done = fairbloom(foreign, *words, "--trust")
    assert done.returncode == 0, done.stderr


def test_predictor_in_python_takes_trusted_modules(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    run = library.load("run")
    with pytest.raises(FairbloomError, match="trust=True"):
        run.predictor()
    try:
        assert run.predictor(trust=True).predict_file(Path("new.csv"), Path("out.csv")) == 30
        assert run.predictor().model == "last"  # a module that is already imported needs no trust
    finally:
        sys.modules.pop("own", None)


RECIPE = """
title = "A table"
what = "What it shows."
source = "Somebody, Somewhere 2020, Table 1"
measures = ["mean"]

[[rows]]
label = "A"
settings = { method = "evil:Task" }
"""


def test_report_of_a_foreign_reproduction_runs_no_code(foreign: Path) -> None:
    (foreign / "evil.toml").write_text(RECIPE)
    Study("reproduce", [], [0], recipe=str(foreign / "evil.toml"), quick=True).write(
        foreign / "again"
    )
    done = fairbloom(foreign, "report", "again")
    assert done.returncode == 2
    assert "say --trust" in done.stderr
    assert not (foreign / "ran").exists()


def test_only_imported_modules_need_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    with only_trusted_imports(False):
        for name in (
            "evil:net",
            "os:system",
            "subprocess:run",
            "builtins:exec",
            "sys:exit",
            "evil.os:system",
        ):
            with pytest.raises(FairbloomError, match="--trust"):
                imported("task", name)
        assert imported("task", "fairbloom.strategies:FedFV")
        assert imported("task", "torch:nn")
    assert not (tmp_path / "ran").exists()
