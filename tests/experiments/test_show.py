"""`fairbloom show`: runs of any state and damaged ones, as text and as JSON."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.simulation.helpers import table

from .helpers import SMALL, as_json, captured, fairbloom, refusal

COMPARED = (
    "--methods",
    "fedavg,qfedavg(q=1)",
    "--seeds",
    1,
    "--clients",
    5,
    "--rounds",
    2,
    "--jobs",
    1,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a comparison."""
    folder = tmp_path_factory.mktemp("made")
    assert (
        fairbloom(
            "run",
            *SMALL,
            "--method",
            "fedfv",
            "--set",
            "fedfv.tau=2",
            "--out",
            folder / "runs" / "a",
        )
        == 0
    )
    assert fairbloom("compare", *COMPARED, "--out", folder / "runs" / "cmp") == 0
    return folder


@pytest.fixture
def there(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A copy of that folder, which is the current one."""
    shutil.copytree(made / "runs", here / "runs")
    capsys.readouterr()
    return here


# show ---------------------------------------------------------------------------------------------


def test_a_run_as_json_has_its_measures_settings_and_clients(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = as_json(capsys, "show", "runs/a")
    last = [row for row in table(there / "runs" / "a" / "clients.csv") if row["round"] == "3"]
    assert shown["clients"]["accuracy"] == {
        r["client"]: float(r["test_accuracy_of_global_model"]) for r in last
    }
    assert (shown["state"], shown["rounds"], shown["of_rounds"]) == ("finished", 3, 3)
    assert shown["settings"]["fedfv.tau"] == 2
    assert shown["refused"] == shown["missing"] == shown["offline"] == []


def test_the_engine_that_computed_a_run_is_told_with_the_reason(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, "show", "runs/a")["engine"] == json.loads(
        (there / "runs" / "a" / "engine.json").read_text()
    )
    file = there / "runs" / "a" / "engine.json"
    file.write_text(json.dumps({"engine": "loop", "reason": "it was asked for [by me]"}))
    assert "engine loop\n" in captured(capsys, "show", "runs/a").out
    file.unlink()  # as in a run with clients on other machines
    assert ", engine " not in captured(capsys, "show", "runs/a").out
    assert as_json(capsys, "show", "runs/a")["engine"] is None
    file.write_text("{")
    assert "engine.json cannot be read" in captured(capsys, "show", "runs/a", code=2).err


@pytest.mark.usefixtures("there")
def test_a_comparison_is_shown_as_when_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    compared = captured(capsys, "compare", *COMPARED, "--out", "runs/cmp").out
    assert captured(capsys, "show", "runs/cmp").out == compared
    shown = as_json(capsys, "show", "runs/cmp")
    assert [row["method"] for row in shown["methods"]] == ["FedAvg", "QFedAvg (q=1)"]
    assert len(shown["clients"]) == 2 * 5
    assert shown["verdict"]["headline"] in compared
    assert as_json(capsys, "show", "runs/cmp", "--score", "loss")["score"]["name"] == "loss"
    by_measure = {row["measure"]: row for row in shown["differences"]}
    assert by_measure["worst_10"]["method"] == "QFedAvg (q=1)"
    assert by_measure["worst_10"]["low"] is None  # of a single seed


def test_a_comparison_that_is_under_way_says_how_far_it_is(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (there / "runs" / "cmp" / "runs" / "fedavg-seed0" / "model.safetensors").unlink()
    said = "cmp has 1 of 2 runs: the command that began it continues it"
    assert said in captured(capsys, "show", "runs/cmp").out
    assert said in refusal(capsys, "show", "runs/cmp", "--figure", "figure.svg")


@pytest.mark.parametrize(
    ("run", "name", "magic"),
    [
        ("runs/a", "drawn.png", b"\x89PNG"),
        ("runs/a", "drawn.SVG", b"<svg "),
        ("runs/cmp", "drawn.v2.pdf", b"%PDF-"),
    ],
)
def test_a_figure_is_called_as_asked_and_nothing_else_is_written(
    there: Path, capsys: pytest.CaptureFixture[str], run: str, name: str, magic: bytes
) -> None:
    before = sorted(there.rglob("*"))
    assert captured(capsys, "show", run, "--figure", name).out.endswith(f"figure: {name}\n")
    assert (there / name).read_bytes().startswith(magic)
    (there / name).unlink()
    assert sorted(there.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-where",), "no-where: name the folder of a run or a study"),
        (("runs/cmp", "--score", "los"), "score = 'los': did you mean loss?"),
        (("runs/a", "--figure", "drawn.jpg"), "end the name in .pdf, .svg, .png"),
    ],
)
@pytest.mark.usefixtures("there")
def test_a_folder_that_is_not_there_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, "show", *words)


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "compare", "seeds": [], "baseline": "x"}'])
def test_a_damaged_comparison_is_refused_in_a_line(
    there: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (there / "runs" / "cmp" / "study.json").write_text(content)
    assert "study.json cannot be read" in refusal(capsys, "show", "runs/cmp")


# Progress and damage ------------------------------------------------------------------------------


def test_interrupted_and_running_are_told_apart(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = there / "runs" / "a"
    (run / "model.safetensors").unlink()
    assert as_json(capsys, "show", "runs/a")["state"] == "interrupted"
    (run / ".lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert as_json(capsys, "show", "runs/a")["state"] == "running"
    # beyond any process's number
    (run / ".lock").write_text("process 4194305 on " + socket.gethostname())
    assert as_json(capsys, "show", "runs/a")["state"] == "interrupted"


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn settings": (lambda run: (run / "config.toml").write_text("task = "), "is not valid TOML"),
    "a table of words": (
        lambda run: (run / "rounds.csv").write_text("round\nmany\n"),
        "rounds.csv cannot be read",
    ),
    "no rounds": (lambda run: (run / "rounds.csv").unlink(), "rounds.csv cannot be read"),
    "no scores": (lambda run: (run / "scores.json").write_text("{"), "scores.json cannot be read"),
}


def test_a_damaged_run_is_refused_with_its_fault(
    there: Path,
    made: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    run = there / "runs" / "a"
    for finished, (name, (damage, words)) in product((True, False), FAULTS.items()):
        with subtests.test(finished=finished, name=name):
            shutil.rmtree(run)
            shutil.copytree(made / "runs" / "a", run)
            if not finished:
                (run / "model.safetensors").unlink()
            damage(run)
            if name == "no rounds" and not finished:  # it is begun anew when the run goes on
                assert as_json(capsys, "show", "runs/a")["state"] == "interrupted"
                continue
            assert words in refusal(capsys, "show", "runs/a")


# The runs of a folder -----------------------------------------------------------------------------


def test_the_runs_of_a_folder_are_listed(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of studies too; a damaged one is named, and hides no other."""
    (there / "runs" / "a" / "config.toml").write_text("nonsense")
    listed = {run["name"]: run for run in as_json(capsys, "show", "runs")}
    assert [*listed] == [
        "a",
        "cmp/runs/fedavg-seed0",
        "cmp/runs/qfedavg-q=1-seed0",
    ]
    assert "config.toml" in listed["a"]["fault"]
    fedavg = listed["cmp/runs/fedavg-seed0"]
    mean = table(there / "runs/cmp/runs/fedavg-seed0/rounds.csv")[-1][
        "test_accuracy_of_global_model_mean"
    ]
    assert fedavg == {
        "name": "cmp/runs/fedavg-seed0",
        "method": "FedAvg",
        "rounds_done": 2,
        "num_rounds": 2,
        "mean": f"accuracy {float(mean):.1f} %",
        "fault": "",
    }
    shown = captured(capsys, "show", "runs").out
    assert "QFedAvg (q=1)" in shown
    assert "2 of 2" in shown


def test_an_unfinished_comparison_lists_its_runs(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chart of it is refused, as before."""
    cmp = there / "runs" / "cmp"
    assert "runs" not in {*captured(capsys, "show", cmp).out.splitlines()[0].split()}
    (cmp / "runs" / "qfedavg-q=1-seed0" / "model.safetensors").unlink()
    assert [run["name"] for run in as_json(capsys, "show", cmp)] == [
        "runs/fedavg-seed0",
        "runs/qfedavg-q=1-seed0",
    ]
    assert "the command that began it continues it" in refusal(
        capsys, "show", cmp, "--figure", "figure.svg"
    )


def test_a_folder_without_runs_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert "is not a run folder" in refusal(capsys, "show", "empty")
    assert "no folder" in refusal(capsys, "show", "missing")
