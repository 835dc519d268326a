"""Runs in which nothing, or not all, is learned: named on the command line and for a federation,
and they can go on."""

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from fairbloom.client.app import app
from fairbloom.client.local import LocalClient, Metrics
from fairbloom.client.local_round import Update, evaluate_client, train_client
from fairbloom.client.states import StateDict
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.server.app import main
from fairbloom.server.checkpoint import list_checkpoints
from fairbloom.simulation.grid import InProcessGrid
from tests.experiments.helpers import fairbloom

from .helpers import checkpoints_every, rounds, run, small, table

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


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, on a wide terminal without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")


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
        f"        if self.progress.finished_rounds + ({hook!r} == 'choose') == 3:\n"
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
        patch.setattr("fairbloom.simulation.clients.train_client", broken)
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
    monkeypatch.setattr("fairbloom.simulation.clients.train_client", torn)
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

    monkeypatch.setattr("fairbloom.simulation.clients.train_client", fails_once)
    monkeypatch.setattr("fairbloom.simulation.clients.evaluate_client", fails)
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
