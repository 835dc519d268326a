"""Early stopping by validation examples: where a run ends, its files, and how it continues."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fairbloom
from fairbloom import StopRun
from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.tasks import mine

from .helpers import Outcome, StoppedError, rounds, stop_after, table

EARLY: dict[str, Any] = {
    **{
        "clients": 4,
        "num-rounds": 40,
        "fraction": 1.0,
        "validation-share": 0.3,
        "early-stopping": 3,
    },
    # so long steps that the score soon rises and falls
    **{"device": "cpu", "engine": "loop", "learning-rate": 1.0},
}


def run(out: Path, **changes: Any) -> Path:
    return simulate(Settings.of({**EARLY, "out": str(out), **changes}))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("early") / "run")


def test_a_run_ends_after_its_patience_without_a_better_score(
    stopped: Path, tmp_path: Path
) -> None:
    """As docs/runs.md has it: three rounds after the first one with the best score up to then."""
    long = run(tmp_path / "long", **{"early-stopping": 0, "num-rounds": 20})
    scores = [
        float(row["validation_accuracy_of_global_model_mean"]) for row in table(long / "rounds.csv")
    ]
    bests = [1 + scores.index(max(scores[:number])) for number in range(1, 21)]
    end = next(number for number, best in enumerate(bests, start=1) if number - best == 3)
    assert end < 20, "the data are such that it stops"
    found = fairbloom.load(stopped)
    assert (found.state, found.rounds_done) == ("finished", end)
    assert rounds(stopped) == rounds(long)[:end]


def test_the_folder_the_log_and_show_say_why(
    stopped: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = fairbloom.load(stopped)
    assert re.fullmatch(
        r"the mean validation accuracy was best in round \d+, [\d.]+ %, and not better in the 3"
        r" rounds since "
        r"\(early-stopping = 3\)",
        found.stopped,
    )
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The run stopped after round {found.rounds_done} of 40: {found.stopped}." in shown
    with caplog.at_level("INFO", "flwr"):
        run(stopped)
    assert any("is finished, since the mean validation" in line for line in caplog.messages)
    assert found.summary["worst"] == min(found.final().values())


def test_a_stopped_run_goes_on_only_with_more_patience(stopped: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", **{"early-stopping": 2})
    end = fairbloom.load(folder).rounds_done
    run(folder, **{"early-stopping": 2, "num-rounds": 60})
    assert fairbloom.load(folder).rounds_done == end
    assert fairbloom.load(folder).finished
    run(folder, **{"num-rounds": 60})
    assert fairbloom.load(folder).rounds_done > end
    assert Outcome.of(folder) == Outcome.of(stopped)
    with pytest.raises(fairbloom.FairbloomError, match="early-stopping = 3 there and 2 here"):
        run(folder, **{"early-stopping": 2, "num-rounds": 60})


def test_a_run_killed_at_any_moment_stops_where_it_would_have(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between its last checkpoint and its final model, where nothing is left to run."""
    end = fairbloom.load(stopped).rounds_done
    with monkeypatch.context() as patched:
        patched.setattr("fairbloom.server.run_folder.recorder.SHARED_SECONDS", 0.0)
        with pytest.raises(StoppedError):
            simulate(Settings.of({**EARLY, "out": str(tmp_path / "run")}), stop_after(end))
        assert not (tmp_path / "run" / "model.safetensors").exists()
    monkeypatch.setattr(RunRecorder, "record", None)  # no round is left
    run(tmp_path / "run")
    assert Outcome.of(tmp_path / "run") == Outcome.of(stopped)


def test_personal_models_are_watched_where_they_are_used(tmp_path: Path) -> None:
    """The global model of Local never changes, and would end the run at once."""
    folder = run(
        tmp_path / "run",
        method="local",
        **{"num-rounds": 8, "learning-rate": 0.05, "early-stopping": 2},
    )
    column = "validation_accuracy_of_personal_model"
    sums = Counter[str]()
    for row in table(folder / "clients.csv"):
        sums[row["round"]] += float(row[column])  # type: ignore[assignment]
    assert sums["2"] > sums["1"]
    assert fairbloom.load(folder).rounds_done > 3


def test_a_task_without_validation_examples_is_refused(tmp_path: Path) -> None:
    """It would never stop early, whatever was set."""
    task = {"task": f"{mine.__name__}:line", "learning-rate": 0.01, "num-rounds": 3}
    with pytest.raises(
        FairbloomError,
        match=r"validation-share = 0.3: task .*:line sets no validation examples apart",
    ):
        run(tmp_path / "run", **task, **{"early-stopping": 2})
    assert not (tmp_path / "run").exists()
    unset = {"early-stopping": 0, "validation-share": 0}
    assert fairbloom.load(run(tmp_path / "run", **task, **unset)).rounds_done == 3


def test_on_round_ends_a_run_as_finished_by_stop_run(tmp_path: Path) -> None:
    def enough(recorded: RecordedRound) -> None:
        if recorded.number == 4:
            raise StopRun("good enough")

    settings: dict[str, Any] = {"clients": 4, "out": tmp_path / "run", "device": "cpu"}
    found = fairbloom.run(rounds=10, settings={"early-stopping": 0}, on_round=enough, **settings)
    assert (found.state, found.rounds_done, found.stopped) == ("finished", 4, "good enough")
    assert fairbloom.run(rounds=10, **settings).rounds_done == 4
    longer = fairbloom.run(rounds=11, **settings)
    assert (longer.rounds_done, longer.stopped) == (11, "")
