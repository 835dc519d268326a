"""Progress bars: of a run's rounds, and of a study's runs."""

import io
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from fairbloom.experiments.arms import Arm
from fairbloom.experiments.studies import progress
from fairbloom.experiments.studies.progress import study_progress
from fairbloom.experiments.studies.running import carry_out
from fairbloom.experiments.study import Study
from fairbloom.logs import log
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.recorded import RecordedRound
from tests.server.run_folder.test_recorder import a_round


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 120 columns is sent."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "Terminal", lambda **options: console)
    return written


def test_a_study_has_one_bar_which_counts_its_runs(screen: io.StringIO) -> None:
    with progress.progress() as bar:
        shown = progress.StudyBar(bar, "comparing")
        shown.expect(2)
        shown.count()
        (task,) = bar.tasks
        assert (task.completed, task.total) == (1, 2)
        bar.refresh()
    assert "runs done" in screen.getvalue()


def test_a_long_round_shows_how_many_clients_have_trained(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress.progress() as bar:
        shown = progress.RunBar(bar, "FedAvg", 5)
        (task,) = bar.tasks
        shown.show_within(1, 4)
        assert task.fields["measured"] == ""  # the round may be over at once
        now[0] = 3.0
        shown.show_within(2, 4)
        assert task.fields["measured"] == "2 of 4 clients trained"
        assert 0.0 < task.completed < 1.0
        row = {f"test_accuracy_of_global_model_{measure}": 50.0 for measure in ("mean", "worst_10")}
        shown.count(RecordedRound.of(a_round(1), row, ACCURACY), ACCURACY)
        assert task.fields["measured"] == "mean 50.0 %, worst client 50.0 %"
        assert task.completed == 1


def test_a_log_line_is_written_above_the_bars(screen: io.StringIO) -> None:
    handlers = logging.getLogger("flwr").handlers
    before = [getattr(each, "stream", None) for each in handlers]
    with progress.progress() as bar:
        progress.RunBar(bar, "FedAvg", 5)
        bar.refresh()
        log.warning("client-3 decides")
    assert [getattr(each, "stream", None) for each in handlers] == before
    cleared, _, line = screen.getvalue().partition("client-3 decides")[0].rpartition("\x1b[2K")
    assert "FedAvg" in cleared
    assert "FedAvg" not in line
    assert "client-3 decides" in screen.getvalue()


@pytest.mark.slow
def test_warnings_of_runs_are_written_above_the_bars(
    tmp_path: Path, screen: io.StringIO, subtests: pytest.Subtests
) -> None:
    # a rate too large
    config: dict[str, Value] = {"clients": 4, "num-rounds": 1, "device": "cpu", "optimizer": "adam"}
    study = Study("compare", [Arm("FedAvg", "fedavg")], [0, 1], "FedAvg", config)
    with study_progress("comparing") as bar, carry_out(study, tmp_path, 2, bar) as work:
        work.run(study.runs(tmp_path))
    lines = [
        line
        for line in screen.getvalue().splitlines()
        if "learning-rate = 0.1 is the default" in line
    ]
    assert len(lines) == 1  # a study prints equal lines once
    for line in lines:
        with subtests.test(line=line):
            written = line.rpartition("\x1b[2K")[-1]
            assert written.startswith("WARNING")
            assert written.endswith("for example 0.001")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, which a test changes."""
    found = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def test_short_work_prints_no_line_in_a_log(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with study_progress("comparing") as bar:
        bar.count("fedavg-seed0 has finished")
    with study_progress("comparing", shown=False) as bar:
        now[0] = 3600.0
        bar.count("fedavg-seed0 has finished")
    assert capsys.readouterr() == ("", "")


def test_each_run_of_a_long_study_has_a_line_in_a_log(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with study_progress("comparing") as bar:
        bar.expect(3)
        bar.count()  # it was finished before
        now[0] = 11.0
        bar.count("fedavg-seed0 has finished")
        bar.count("fedfv-seed0 has failed: no client was evaluated")
    assert capsys.readouterr() == (
        "",
        "comparing: 2 of 3 runs done, fedavg-seed0 has finished\n"
        "comparing: 3 of 3 runs done, fedfv-seed0 has failed: no client was evaluated\n",
    )


def test_a_long_run_has_a_line_a_minute_in_a_log(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {f"test_accuracy_of_global_model_{measure}": 50.0 for measure in ("mean", "worst_10")}
    with progress.progress() as bar:
        shown = progress.RunBar(bar, "FedAvg", 5)
        for number, seconds in ((1, 30.0), (2, 61.0), (3, 90.0)):
            now[0] = seconds
            shown.count(RecordedRound.of(a_round(number), row, ACCURACY), ACCURACY)
        now[0] = 122.0
        shown.show_within(2, 4)
    measured = "mean 50.0 %, worst client 50.0 %"
    assert capsys.readouterr().err.splitlines() == [
        f"FedAvg: round 2 of 5, {measured}",
        f"FedAvg: round 4 of 5: 2 of 4 clients trained, {measured}",
    ]
