"""Progress bars: of a run's rounds, and of a study's runs with the rounds of those that go on."""

import io
import logging
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.flower import wait_until
from fairbloom.experiments.studies.driver import run_study
from fairbloom.experiments.studies.study import Candidate, Study
from fairbloom.experiments.views import progress
from fairbloom.experiments.views.live.state import LiveRun, Looker
from fairbloom.experiments.views.progress import study_progress
from fairbloom.logs import log
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.recorded import RecordedRound
from tests.server.run_folder.test_recorder import a_round
from tests.simulation.helpers import run

from .test_live import interrupted


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with a finished run and one that goes on, in this process as its lock says, after round 3 of 6."""
    run(tmp_path / "runs" / "done-seed0")
    folder = interrupted(tmp_path / "runs" / "fedfv-seed0")
    (folder / ".lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    return tmp_path


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 120 columns is sent."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "Terminal", lambda **options: console)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    return written


def test_runs_that_go_on_are_shown_with_their_rounds_and_measures(study: Path, screen: io.StringIO) -> None:
    with study_progress("comparing", 2, study) as bars:
        bars.count()
        wait_for_bar(bars, study)
    last = screen.getvalue()
    assert "fedfv-seed0" in last
    assert "3/6" in last
    assert "worst client" in last
    assert "1/2" in last
    assert "done-seed0" not in last


def wait_for_bar(bars: progress.StudyBars, study: Path) -> None:
    """Return when the watcher has shown the run, and its bar was drawn."""
    wait_until(lambda: study / "runs" / "fedfv-seed0" in bars.shown)
    bars.refresh()


def test_a_long_round_shows_how_many_clients_have_trained(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_log_line_is_written_above_the_bars_which_leave_no_copy(screen: io.StringIO) -> None:
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


def test_warnings_of_the_runs_of_a_study_are_written_above_its_bars(tmp_path: Path, screen: io.StringIO) -> None:
    config: dict[str, Value] = {"clients": 4, "num-rounds": 1, "device": "cpu", "optimizer": "adam"}  # a rate too large
    study = Study([[Candidate("FedAvg", config, "fedavg")]], range(2), tmp_path)
    with study_progress("comparing", 2, tmp_path) as bars:
        run_study(study, 2, bars.count, lambda failures: None)
    lines = [line for line in screen.getvalue().splitlines() if "learning-rate = 0.1 is the default" in line]
    assert len(lines) == 2
    for line in lines:
        written = line.rpartition("\x1b[2K")[-1]
        assert written.startswith("WARNING")
        assert written.endswith("set it, to 0.001 say")


def test_the_bar_of_a_study_counts_the_shares_of_runs_that_go_on(study: Path, screen: io.StringIO) -> None:
    with progress.progress() as bar:
        task = bar.add_task("comparing", total=2, measured="")
        bars = progress.StudyBars(bar, task, Looker(study))
        bars.count()
        bars.show(Looker(study).look_at_running())
        assert [each.completed for each in bar.tasks] == [1.5, 3]
        (study / "runs" / "fedfv-seed0" / ".lock").unlink()
        bars.show(Looker(study).look_at_running())
        assert [each.completed for each in bar.tasks] == [1.0]


def test_nothing_is_looked_at_where_nobody_watches(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(looker: Looker) -> list[LiveRun]:
        raise AssertionError("looked")

    monkeypatch.setattr(Looker, "look_at_running", look)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.0)
    with study_progress("comparing", 2, study) as bars:
        bars.count()
    assert capsys.readouterr() == ("", "")
