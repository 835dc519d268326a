"""Runs in which nothing, or not all, is learned: named on the command line and for a federation,
and they can go on.

An error in a user's model, loss, score or task is said once, before the first round, with the
line that it is in.
"""

import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

import fairbloom as api
from fairbloom.client.app import app
from fairbloom.client.local import LocalClient, Metrics
from fairbloom.client.local_round import Update, evaluate_client, train_client
from fairbloom.client.private.simulated import NoAccount
from fairbloom.client.states import StateDict
from fairbloom.errors import FairbloomError, failure_reason, reportable
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.server.app import main
from fairbloom.server.checkpoint import list_checkpoints
from fairbloom.simulation.choice import try_first_step
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.tasks import load_task
from tests.commands import fairbloom as in_a_process
from tests.experiments.helpers import fairbloom

from .failing import SECRET, Net, line_of
from .helpers import ROOT, checkpoints_every, rounds, run, small, table

LATE = (
    "--clients",
    4,
    "--rounds",
    5,
    "--set",
    "stragglers=1.0",
    "--set",
    "device=cpu",
    "--set",
    "drop-stragglers=true",
    "--out",
    "a",
)


pytestmark = pytest.mark.usefixtures("here")


def used(folder: Path) -> list[str]:
    return [row["replies_used"] for row in rounds(folder)]


def test_the_command_line_says_that_nothing_is_learned(capfd: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("run", *LATE) == 2
    (said,) = [
        line
        for line in capfd.readouterr().err.splitlines()
        if "the run has learned nothing" in line
    ]
    assert "for 3 rounds: in round 3, 4 of 4 replies were refused" in said
    assert "is a straggler in round 3, and drop-stragglers is on" in said
    assert "unused-rounds = 0" in said
    assert used(Path("a")) == ["0", "0"]  # the third was not finished
    assert not Path("a", "model.safetensors").exists()
    assert fairbloom("run", *LATE) == 2
    assert fairbloom("run", *LATE, "--set", "unused-rounds=0") == 0
    assert used(Path("a")) == ["0"] * 5
    assert Path("a", "model.safetensors").exists()


@pytest.mark.parametrize("hook", ["weigh", "choose"])
def test_stop_run_of_a_method_finishes_the_run(hook: str) -> None:
    Path("plateau.py").write_text(
        "from fairbloom import StopRun\n"
        "from fairbloom.strategies import FedAvg\n\n\n"
        "class Stops(FedAvg):\n"
        f"    def {hook}(self, *given):\n"
        f"        if self.run_state.finished_rounds == 2:\n"
        "            raise StopRun('plateau')\n"
        f"        return super().{hook}(*given)\n"
    )
    words = ("--method", "plateau:Stops", "--clients", 4, "--rounds", 5, "--set", "device=cpu")
    assert fairbloom("run", *words, "--out", "a") == 0
    assert len(rounds(Path("a"))) == 2
    assert Path("a", "model.safetensors").exists()
    assert list_checkpoints(Path("a", "checkpoint"))[0].stem == "2"


def test_a_run_goes_on_from_its_folder_after_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(local: LocalClient, received: StateDict, terms: Terms, sent: Any) -> Update:
        if terms.server_round < 3:
            return train_client(local, received, terms, sent)
        raise OSError("the sensors of all clinics are off")

    with monkeypatch.context() as patch, checkpoints_every(1):
        patch.setattr(NoAccount, "train", staticmethod(broken))
        with pytest.raises(
            NothingLearnedError, match=r"in round 5, .*: the sensors of all clinics are off"
        ):
            run("a", engine="loop")
        with pytest.raises(NothingLearnedError, match="the sensors"):
            run("a", engine="loop", unused_rounds=2)
    assert used(run("a", engine="loop")) == ["2", "2", "0", "0", "2", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [30.0, 1e30])
def test_a_run_that_diverges_names_its_learning_rate(tmp_path: Path, rate: float) -> None:
    wild: dict[str, Any] = {
        "model": "mlp",
        "learning_rate": rate,
        "local_epochs": 9,
        "num_rounds": 9,
    }
    wild["method"] = "fedavg"
    with pytest.raises(NothingLearnedError, match=r"not finite|broken") as refusal:
        run(tmp_path / "wild", **wild)
    remedy = r"begin a new run with a learning-rate below ([\d.e+]+) and, .*, gradient-clip = 1"
    assert [float(named) for named in re.findall(remedy, str(refusal.value))] == [rate]
    run(tmp_path / "lower", **wild | {"learning_rate": 0.01 * min(rate, 1.0), "gradient_clip": 1.0})
    assert {row["refused"] for row in rounds(tmp_path / "lower")} == {""}
    with pytest.raises(NothingLearnedError) as again:
        run(
            tmp_path / "clipped",
            **wild | {"learning_rate": 1e38, "gradient_clip": 1.0, "num_rounds": 3},
        )
    assert "gradient-clip" not in str(again.value)


def test_a_torn_file_of_a_client_is_told_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(local: LocalClient, received: StateDict, terms: Terms, sent: Any) -> Update:
        load_file(tmp_path / "torn.safetensors")
        raise AssertionError("it can be read")

    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    monkeypatch.setattr(NoAccount, "train", staticmethod(torn))
    run(tmp_path / "a", engine="loop", unused_rounds=0)
    reasons = [row["refused"] for row in rounds(tmp_path / "a")]
    assert all("SafetensorError" in refused and ".py, line" in refused for refused in reasons)
    assert not any(
        str(tmp_path) in refused or "site-packages" in refused or "/" in refused
        for refused in reasons
    )


def test_rounds_of_a_federation_share_no_checkpoint(tmp_path: Path) -> None:
    config = small(tmp_path / "a").run_config()
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with checkpoints_every(10):
        main(InProcessGrid(app, config, 5), context)
        run(tmp_path / "b")
    assert [path.stem for path in list_checkpoints(tmp_path / "a" / "checkpoint")] == ["6", "5"]
    assert [path.stem for path in list_checkpoints(tmp_path / "b" / "checkpoint")] == ["6"]


def test_a_client_that_raises_is_refused_and_the_run_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    """One client fails in the second round, and another one whenever it evaluates."""

    def fails_once(local: LocalClient, received: StateDict, terms: Terms, sent: Any) -> Update:
        if local.name == "client-2" and terms.server_round == 2:
            raise RuntimeError("the disk of clinic 2 is gone")
        return train_client(local, received, terms, sent)

    def fails(local: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        if local.name == "client-3":
            raise ValueError("no test data")
        return evaluate_client(local, received, terms)

    monkeypatch.setattr(NoAccount, "train", staticmethod(fails_once))
    monkeypatch.setattr(NoAccount, "evaluate", staticmethod(fails))
    folder = run(tmp_path / "run", fraction=1.0, num_rounds=3, engine="loop")
    assert used(folder) == ["5", "4", "5"]
    assert {row["participants"] for row in rounds(folder)} == {"5"}
    for number, row in enumerate(rounds(folder), start=1):
        with subtests.test(number=number, row=row):
            assert ("client-2: RuntimeError: the disk of clinic 2 is gone" in row["refused"]) == (
                number == 2
            )
            assert (
                "client-3: evaluation: ValueError: no test data (test_stopped.py, line"
                in row["refused"]
            )
    clients = table(folder / "clients.csv")
    assert {row["client"] for row in clients} == {f"client-{k}" for k in (0, 1, 2, 4)}
    refused = [row for row in clients if row["client"] == "client-2"]
    assert [row["participated"] for row in refused] == ["1", "0", "1"]
    assert [row["coefficient"] != "" for row in refused] == [True, False, True]
    assert (folder / "model.safetensors").exists()


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
    "detached": "the loss of the model, Net, does not depend on any parameter",
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
        *(("model", each) for each in ("loop", "stacked")),
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
    assert "as did 2 others" in said
    assert not (tmp_path / "run").exists()
    assert "refused" not in caplog.text


def test_why_a_model_cannot_be_stacked_names_the_line(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", engine="stacked", **changes_of("stacked"))
    about = json.loads((folder / "engine.json").read_text())
    assert about["engine"] == "loop"
    assert re.search(
        rf"PyTorch cannot map it over clients \(.*, {line_of('stacked')}\)", about["reason"]
    )


@pytest.mark.parametrize(
    ("fails", "engine", "reason"),
    [
        ("one client", "loop", f"KeyError: 'one client' ({line_of('one client')})"),
        ("data of one", "stacked", "OSError: a.npz is gone"),
    ],
)
def test_what_one_client_fails_for_is_in_its_reply_alone(
    tmp_path: Path, fails: str, engine: str, reason: str
) -> None:
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
    words = [*words_of("debugged", tmp_path / "run"), "--engine", "stacked"]
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
        api.run(PLAIN["task"], rounds=2, engine="stacked", out=out, settings=settings, debug=True)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "forward"
    Path("later").unlink()
    debugged = api.run(
        PLAIN["task"], rounds=1, out=tmp_path / "same", settings=settings, debug=True
    )
    assert not (debugged.folder / "engine.json").exists()
    assert (
        api.run(PLAIN["task"], rounds=2, engine="stacked", out=out, settings=settings).folder == out
    )
