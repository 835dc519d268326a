"""A newcomer's faults end in one sentence with a remedy, before anything is trained."""

import sys
from pathlib import Path

import pytest

from fairbloom.experiments.study import Study

from .helpers import SMALL, fairbloom

TASK = """
from fairbloom.tasks import find_task
def task(setup):
    known = find_task("digits")
    changed = {"model": "logistic", "data_dir": "", "validation_share": 0.0}
    return known.load(setup.model_copy(update=changed), known.check_parameters({}))
"""

METHODS = """
from fairbloom.strategies import FedAvg
class Right(FedAvg):
    pass
class Other(FedAvg):
    seed = 3
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in {"unvalidated": TASK, "misdeclared": METHODS}.items():
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(source)
    return tmp_path


def read_messages(capsys: pytest.CaptureFixture[str]) -> str:
    words = capsys.readouterr().err.strip()
    assert words.startswith("error: ")
    assert "\n" not in words
    return words


@pytest.mark.parametrize(
    "command", [("predict", "cmp", "new.csv", "--out", "p.csv"), ("export", "cmp")]
)
def test_predicting_with_a_comparison_names_one_of_its_runs(
    modules: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    runs = Path("cmp", "runs", "fedavg-seed0")
    runs.mkdir(parents=True)
    (runs / "config.toml").write_text("")
    Study("compare", [], []).write(Path("cmp"))
    assert fairbloom(*command) == 2
    words = read_messages(capsys)
    assert f"{runs.parent}: {runs.name}" in words
    assert "load_" not in words


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--set", "validation-share=0.2"),
        ("search", "--grid", "learning-rate=0.1,0.2", "--jobs", "1"),
    ],
)
def test_a_task_without_validation_examples_is_refused_at_once(
    modules: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert fairbloom(*command, "--task", "unvalidated:task", *SMALL, "--out", "out") == 2
    words = read_messages(capsys)
    assert [
        each
        for each in (
            "validation-share = 0.2",
            "unvalidated:task",
            "Splits(train, test, validation)",
        )
        if each not in words
    ] == []
    assert not [*Path().glob("out/**/rounds.csv")]


@pytest.mark.parametrize(
    "command",
    [
        ("check", "misdeclared:Right"),
        ("run", "--method", "misdeclared:Right", *SMALL),
    ],
)
def test_a_wrong_declaration_of_any_class_is_one_sentence(
    modules: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    sys.modules.pop("misdeclared", None)
    assert fairbloom(*command) == 2
    words = read_messages(capsys)
    assert [
        each for each in ("misdeclared:Right", "Other.seed = 3", "option") if each not in words
    ] == []
