"""An error in a user's model, loss, score or task is said once, before the first round, with the
line that it is in."""

import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import fairbloom
from fairbloom.errors import FairbloomError, failure_reason, reportable
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.simulation.choice import try_first_step
from fairbloom.tasks import load_task
from tests.commands import fairbloom as in_a_process

from .failing import SECRET, Net, line_of
from .helpers import ROOT, run, small, table

PLAIN: dict[str, Any] = {
    "task": "tests.simulation.failing:task",
    "clients": 0,
    "num_rounds": 2,
    "fraction": 1.0,
}

CAUSES = {
    "model": f"KeyError: '{SECRET}' ({line_of('model')})",
    "model, a ValueError": f"ValueError: {SECRET} ({line_of('model, a ValueError')})",
    "shape": f"cannot be multiplied (10x3 and 4x3) ({line_of('shape')})",
    "detached": "the loss of the model, Net, depends on none of its parameters",
    "a tuple": "the model, Net, returns a tuple in training: it must return one tensor",
    "scalar loss": (
        f"its loss ({line_of('scalar loss')}) must return one number for each of 10 examples"
    ),
    "loss": f"has no attribute 'nothing' ({line_of('loss')})",
    "score": f"KeyError: 'a score' ({line_of('score')})",
    "data": f"OSError: a.npz is gone ({line_of('data')})",
    "lengths": "each input needs one target, got 20 inputs and 19 targets",
}


def changes_of(fails: str, **more: Any) -> dict[str, Any]:
    return {**PLAIN, "method": "fedavg", "task.fails": fails, **more}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "engine"),
    [
        *((fails, "auto") for fails in CAUSES),
        *(("model", each) for each in ("loop", "stacked", "workers")),
    ],
)
def test_a_fault_of_all_clients_ends_a_run_before_round_1(
    fails: str, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(FairbloomError) as raised:
        run(tmp_path / "run", engine=engine, **changes_of(fails))
    said = str(raised.value)
    assert CAUSES[fails] in said
    assert said.index(CAUSES[fails]) < said.index(
        "a trial step of client a failed before the first round"
    )
    assert "those of 2 others" in said
    assert not (tmp_path / "run").exists()
    assert "refused" not in caplog.text


def test_why_a_model_cannot_be_stacked_names_the_line(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", engine="stacked", **changes_of("stacked"))
    about = json.loads((folder / "engine.json").read_text())
    assert about["engine"] == "loop"
    assert re.search(
        rf"PyTorch cannot map it over clients \(.*, {line_of('stacked')}\)", about["reason"]
    )


def test_what_one_client_fails_for_is_in_its_reply_alone(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    raised = f"KeyError: 'one client' ({line_of('one client')})"
    for fails, engine, reason in (
        ("one client", "loop", raised),
        ("one client", "workers", raised),
        ("data of one", "stacked", "OSError: a.npz is gone"),
    ):
        with subtests.test(fails=fails, engine=engine):
            folder = run(tmp_path / engine, engine=engine, **changes_of(fails))
            (refused,) = {row["refused"] for row in table(folder / "rounds.csv")}
            assert reason in refused
            assert {row["client"] for row in table(folder / "clients.csv")} >= {"b", "c"}


def test_a_reason_that_all_clients_have_comes_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run(tmp_path / "run", engine="loop", **changes_of("later"))
    Path("later").touch()
    with pytest.raises(NothingLearnedError) as raised:
        run(folder, engine="loop", **changes_of("later", num_rounds=4, unused_rounds=1))
    reason = f"KeyError: 'later' ({line_of('later')})"
    assert f"3 of 3 replies were refused, all since {reason}" in str(raised.value)
    assert str(raised.value).count(reason) == 1


def test_a_trial_leaves_nothing_behind() -> None:
    settings = small("", **changes_of(""))
    task = load_task(settings.run_config())
    model = task.model()
    state = torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try_first_step(settings, task, model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_server_learns_the_line_and_not_the_words() -> None:
    with pytest.raises(KeyError) as raised:
        Net("model")(torch.zeros(2, 4))
    reported = reportable(raised.value)
    assert line_of("model") in reported
    assert SECRET not in reported
    assert failure_reason(FairbloomError("clients = 0: too few")) == "clients = 0: too few"


# Debugging ----------------------------------------------------------------------------------------


def words_of(fails: str, out: Path) -> list[str]:
    plain = ["--task", PLAIN["task"], "--rounds", "1", "--device", "cpu", "--out", str(out)]
    return ["run", "--debug", "--set", f"task.fails={fails}", *plain]


@pytest.mark.slow
def test_a_debugger_works_in_a_model_under_debug(tmp_path: Path) -> None:
    started = [sys.executable, "-c", "from fairbloom.cli.main import main; main()"]
    words = [*words_of("debugged", tmp_path / "run"), "--engine", "workers"]
    script = "p 'seen', seen\nwhere\nq\n"
    ended = subprocess.run(
        [*started, *words], input=script, text=True, capture_output=True, cwd=ROOT, timeout=300
    )
    assert "('seen', 42)" in ended.stdout
    assert "failing.py" in ended.stdout
    assert ended.returncode == 1


@pytest.mark.parametrize(("fails", "code"), [("model", 1), ("scalar loss", 2)])
@pytest.mark.slow
def test_the_first_error_keeps_its_traceback_under_debug(
    tmp_path: Path, fails: str, code: int
) -> None:
    ended = in_a_process(ROOT, *words_of(fails, tmp_path / fails))
    assert ended.returncode == code
    assert "Traceback (most recent call last)" in ended.stderr
    assert "client/training.py" in ended.stderr
    assert "refused" not in ended.stderr


def test_in_python_the_error_itself_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("later").touch()
    out = tmp_path / "run"
    settings = {"task.fails": "later", "device": "cpu"}
    with pytest.raises(KeyError, match="later") as raised:
        fairbloom.run(
            PLAIN["task"], rounds=2, engine="stacked", out=out, settings=settings, debug=True
        )
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "forward"
    Path("later").unlink()
    debugged = fairbloom.run(
        PLAIN["task"], rounds=1, out=tmp_path / "same", settings=settings, debug=True
    )
    assert not (debugged.folder / "engine.json").exists()
    assert (
        fairbloom.run(PLAIN["task"], rounds=2, engine="stacked", out=out, settings=settings).folder
        == out
    )
