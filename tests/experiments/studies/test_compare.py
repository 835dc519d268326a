"""Comparisons: tables, figures, and the numbers in them.

Progress bars: of a run's rounds, and of a study's runs.
"""

import contextlib
import csv
import io
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.flower import wait_until
from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.api import compare, load
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.studies import progress
from fairbloom.experiments.studies.compare import seeds_before, warn_of_idle
from fairbloom.experiments.studies.pool import check_runs, run_all
from fairbloom.experiments.studies.progress import study_progress
from fairbloom.experiments.studies.running import carry_out
from fairbloom.experiments.study import Study, find_study
from fairbloom.logs import log
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings, Value
from fairbloom.simulation.run import simulate
from tests.server.run_folder.test_recorder import a_round
from tests.simulation.helpers import Outcome, table

from ..helpers import captured, compared_by_hand, fairbloom, start, times_in
from ..made_up import make_comparison

SMALL = (
    "--seeds",
    2,
    "--seed",
    7,
    "--clients",
    5,
    "--rounds",
    2,
    "--fraction",
    0.5,
    "--set",
    "device=cpu",
)
WORDS = ("compare", "--methods", "fedavg,fedfv(learning-rate=0.05)", *SMALL, "--jobs", 2)
FOLDERS = {"FedAvg": "fedavg", "FedFV (learning-rate=0.05)": "fedfv-learning-rate=0.05"}
ENDLESS = (
    "compare",
    "--methods",
    "fedavg",
    "--seeds",
    1,
    "--clients",
    5,
    "--rounds",
    100_000,
    "--jobs",
    1,
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom(*WORDS, "--out", out) == 0
    return out


def test_tables_have_a_row_a_method_seed_and_client(
    compared: Path, subtests: pytest.Subtests
) -> None:
    with (compared / "comparison.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["method", "seed", "score", *summarize({"anyone": 1.0}), "improved"]
    assert [row[:3] for row in rows] == [
        [method, seed, "accuracy, %"] for method in FOLDERS for seed in ("7", "8")
    ]
    clients = table(compared / "clients.csv")
    assert list(clients[0]) == ["method", "seed", "client", "accuracy"]
    assert len(clients) == 2 * 2 * 5
    for row in clients:
        with subtests.test(row=row):
            run = load(compared / "runs" / f"{FOLDERS[row['method']]}-seed{row['seed']}").final()
            assert float(row["accuracy"]) == run[row["client"]]


def test_the_report_is_there_and_the_command_writes_the_same_one(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (compared / REPORT).read_text(encoding="utf-8")
    assert api.load(compared).verdict.headline in unescape(written).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert fairbloom("report", compared) == 0
    assert (compared / REPORT).read_text(encoding="utf-8") == written
    assert captured(capsys, "show", compared).out.count(str(compared / REPORT)) == 2


def test_runs_in_workers_are_those_of_the_run_command(compared: Path, tmp_path: Path) -> None:
    config: dict[str, Value] = {
        "method": "fedfv",
        "learning-rate": 0.05,
        "seed": 8,
        "clients": 5,
        "num-rounds": 2,
        "fraction": 0.5,
        "device": "cpu",
        "out": str(tmp_path / "a"),
    }
    assert not Outcome.of(simulate(Settings.of(config))).differences(
        Outcome.of(compared / "runs" / "fedfv-learning-rate=0.05-seed8")
    )


def compare_in_worker(out: Path) -> str:
    """Compare as `compared` does, in the process of a pool; return what it may start."""
    assert fairbloom(*WORDS, "--out", out) == 0
    return "none" if multiprocessing.current_process().daemon else "processes"


@pytest.mark.slow
def test_a_worker_without_processes_compares_to_the_same_bits(
    compared: Path, tmp_path: Path
) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(compare_in_worker, (tmp_path / "out",)) == "none"
    for name in ("comparison.csv", "clients.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (compared / name).read_bytes()


def test_runs_follow_in_a_process_that_starts_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    settings = {
        **{"task": "digits", "model": "mlp", "clients": 5, "num-rounds": 2, "device": "cpu"},
        **{"unused-rounds": 1, "engine": "loop"},
    }
    runs = {
        name: Settings.of({**settings, "learning-rate": rate, "out": str(tmp_path / name)})
        for name, rate in (("bad", 1e30), ("good", 0.1))
    }
    ended = dict[str, str]()
    run_all(runs, 2, logging.WARNING, lambda name, error: ended.update({name: str(error)}))
    assert ended["good"] == "None"
    assert "learned nothing" in ended["bad"]
    assert "2 runs follow one after the other" in caplog.text


@pytest.mark.slow
def test_the_number_of_jobs_changes_no_number(here: Path, subtests: pytest.Subtests) -> None:
    words = ("compare", "--model", "mlp", "--methods", "fedavg,fedfv", "--seeds", 1, "--clients", 5)
    words += ("--partition", "dirichlet", "--rounds", 1, "--device", "cpu")
    for jobs in (1, 2):
        with subtests.test(jobs=jobs):
            assert fairbloom(*words, "--jobs", jobs, "--out", f"jobs{jobs}") == 0
    for run in ("fedavg-seed0", "fedfv-seed0"):
        with subtests.test(run=run):
            one, two = (Outcome.of(here / f"jobs{jobs}" / "runs" / run) for jobs in (1, 2))
            assert not one.differences(two)


def test_methods_meet_the_same_clients_at_the_same_seed(compared: Path) -> None:
    drawn = {
        (method, seed): [
            (row["round"], row["client"]) for row in rows if row["participated"] == "1"
        ]
        for method, folder in zip(("fedavg", "fedfv"), FOLDERS.values(), strict=True)
        for seed in (7, 8)
        for rows in [table(compared / "runs" / f"{folder}-seed{seed}" / "clients.csv")]
    }
    assert drawn["fedavg", 7] == drawn["fedfv", 7] != drawn["fedavg", 8] == drawn["fedfv", 8]


def test_a_comparison_is_written_again_from_its_runs(compared: Path) -> None:
    runs = times_in(compared / "runs")
    tables = {
        name: (compared / name).read_bytes()
        for name in ("comparison.csv", "clients.csv", "clients.png")
    }
    (compared / "comparison.csv").unlink()
    assert fairbloom(*WORDS, "--out", compared) == 0
    assert times_in(compared / "runs") == runs
    assert {name: (compared / name).read_bytes() for name in tables} == tables


def test_tables_have_the_methods_named_now_and_repeat_no_run(
    compared: Path, tmp_path: Path
) -> None:
    """Though the plan that was there is damaged."""
    out = tmp_path / "cmp"
    shutil.copytree(compared, out)
    about = json.loads((out / "study.json").read_text())
    del about["arms"]
    (out / "study.json").write_text(json.dumps(about))
    with pytest.raises(FairbloomError, match=r"study.json.*arms"):
        api.load(out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/model.safetensors")}
    assert (
        fairbloom("compare", "--methods", "qfedavg(q=1),fedavg", *SMALL, "--jobs", 1, "--out", out)
        == 0
    )
    assert api.load(out).methods == ("QFedAvg (q=1)", "FedAvg")
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert api.load(out).values["FedAvg"] == api.load(compared).values["FedAvg"]


@pytest.mark.slow
def test_a_comparison_with_more_seeds_says_how_many_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until all runs are finished nobody has seen results; fewer seeds are no extension."""
    small = ("compare", "--methods", "fedavg,fedfv", "--clients", 4, "--rounds", 1, "--jobs", 1)
    for seeds, said in ((2, 0), (3, 2), (4, 2), (2, 0)):
        capsys.readouterr()
        assert fairbloom(*small, "--seeds", seeds, "--out", tmp_path / "cmp") == 0
        assert api.load(tmp_path / "cmp").extended_from == said
        assert ("extended from 2 seeds" in capsys.readouterr().out) is bool(said)
    make_comparison(tmp_path / "made", ["fedavg", "fedfv"], [0, 1], ["a", "b"], 1)
    study = find_study(tmp_path / "made")
    more = replace(study, seeds=[0, 1, 2])
    assert seeds_before(more, tmp_path / "made") == 2
    shutil.rmtree(tmp_path / "made" / "runs" / "fedfv-seed1")
    assert seeds_before(more, tmp_path / "made") == 0
    replace(study, extended_from=2, seeds=[0, 1, 2]).write(tmp_path / "made")  # interrupted
    assert seeds_before(more, tmp_path / "made") == 2


def test_a_folder_of_a_run_or_of_somebody_s_files_is_refused(
    compared: Path,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    """Their clients.csv would be replaced."""
    run = tmp_path / "run"
    other = tmp_path / "other"
    shutil.copytree(compared / "runs" / "fedavg-seed7", run)
    other.mkdir()
    (other / "clients.csv").write_text("age,outcome\n50,well\n")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for folder in (run, other):
        with subtests.test(folder=folder):
            with pytest.raises(FairbloomError, match=rf"{folder} .*\(--out\)$"):
                compare(
                    methods="fedavg,fedfv", clients=5, rounds=2, jobs=1, out=folder, progress=False
                )
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.slow
def test_processes_do_not_run_the_script_that_compares(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\nimport fairbloom\nprint(fairbloom.compare(methods='fedavg', seeds=1,"
        " clients=5, rounds=1, jobs=1, out='cmp'))\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    # Lines of progress come if it takes longer than ten seconds.
    errors = [line for line in ended.stderr.splitlines() if not line.startswith("comparing: ")]
    assert (ended.returncode, errors) == (0, [])
    assert ended.stdout.startswith("begun\nComparison(1 method compared on digits: ")


@pytest.mark.parametrize(
    "key", ["task", "model", "method", "partition", "optimizer", "client-rule"]
)
def test_what_a_script_defines_is_refused_at_once(key: str) -> None:
    run = Settings.of({}).model_copy(update={key.replace("-", "_"): "__main__:Mine"})
    with pytest.raises(FairbloomError, match=f"^{key} = '__main__:Mine'"):
        check_runs({("FedAvg", 0): run})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("moment", ["started", "imported", "trained"])
def test_an_interrupted_comparison_ends_with_130(tmp_path: Path, moment: str) -> None:
    """Ctrl-C in a terminal reaches the workers as well, also while these are started."""
    process = start(*ENDLESS, "--out", tmp_path, start_new_session=True)

    def is_there() -> bool:
        return bool(
            [*tmp_path.rglob("checkpoint/*.safetensors")]
            if moment == "trained"
            else spawned_by(process.pid)
        )

    while process.poll() is None and not is_there():
        time.sleep(0.005)
    time.sleep(0.5 if moment == "imported" else 0.0)
    os.killpg(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=300)
    assert process.returncode == 130
    assert output.startswith("interrupted: the same command begins again")
    assert output.count("\n") == 1
    assert list(tmp_path.rglob("model.safetensors")) == []


def spawned_by(parent: int) -> list[int]:
    """Return the processes that multiprocessing has spawned for another."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


@pytest.mark.slow
def test_a_killed_process_of_a_run_is_reported_in_one_line(tmp_path: Path) -> None:
    """As the system kills the largest process when memory runs short."""
    process = start(*ENDLESS, "--out", tmp_path)
    lock = tmp_path / "runs" / "fedavg-seed0" / ".lock"
    while process.poll() is None and not (lock.exists() and lock.read_text()):
        time.sleep(0.005)
    os.kill(int(re.findall(r"process (\d+)", lock.read_text())[0]), signal.SIGKILL)
    _, output = process.communicate()
    assert process.returncode == 2
    assert output.startswith("error: the system has ended the process of a run")
    assert "lower --jobs" in output


def is_free(folder: Path) -> bool:
    """Return whether no process holds the folder."""
    try:
        with locked_folder(folder, wait=False):
            return True
    except FairbloomError:
        return False


@pytest.mark.slow
def test_a_comparison_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "fedavg-seed0"
    command = start(*ENDLESS, "--out", tmp_path, start_new_session=True)
    try:
        while command.poll() is None and not (run / "rounds.csv").exists():
            time.sleep(0.005)
        command.kill()
        command.wait()
        wait_until(lambda: is_free(run), lambda: "the run's process lives on")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate()


def test_a_failing_comparison_ends_no_process_of_the_caller(tmp_path: Path) -> None:
    """Nor one that is started meanwhile: a notebook may have a loader's workers, or a run of its
    own."""
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    # A run cannot make its lock, because a folder has that name.
    for method in ("fedavg", "fedfv"):
        (tmp_path / "runs" / f"{method}-seed0" / ".lock").mkdir(parents=True)
    with pytest.raises(FairbloomError, match=r"with seed 0: .*\.lock"):
        compare(
            methods="fedfv,fedavg",
            seeds=1,
            clients=5,
            rounds=300,
            jobs=2,
            out=tmp_path,
            progress=False,
        )
    try:
        assert other.is_alive()
        assert {process.pid for process in multiprocessing.active_children()} == {other.pid}
    finally:
        other.terminate()
        other.join()


# Numbers of a comparison, by hand -----------------------------------------------------------------

BY_HAND = compared_by_hand(FedAvg=[{"a": 10.0, "b": 50.0}] * 2, FedFV=[{"a": 40.0, "b": 50.0}] * 2)


@pytest.mark.parametrize(
    ("ask", "fault"),
    [
        (lambda: BY_HAND.difference("FedAvg", "worst"), "'FedAvg'.*FedFV"),
        (lambda: BY_HAND.gains("TERM", "worst"), "'TERM'.*FedAvg, FedFV"),
        (lambda: BY_HAND.differences("best of all"), "'best of all'.*mean, std.*client:NAME"),
        (lambda: BY_HAND.differences("client:z"), "'client:z'"),
    ],
)
def test_what_is_no_method_or_measure_is_refused(ask: object, fault: str) -> None:
    with pytest.raises(FairbloomError, match=fault):
        ask()


def test_equal_measures_are_equal_in_spite_of_rounding() -> None:
    values = [{"a": 0.1 + 0.2, "b": 0.7}, {"a": 0.3, "b": 0.7}]
    others = [{"a": 0.3, "b": 0.7}, {"a": 0.1 + 0.2, "b": 0.7}]
    assert values != others
    found = compared_by_hand(FedAvg=values, FedFV=others).difference("FedFV", "mean")
    assert (found.mean, found.better, found.worse, found.significant) == (0.0, 0, 0, False)


def test_measures_without_meaning_are_left_out_of_the_rows() -> None:
    """Gini's coefficient is undefined if some numbers are negative."""
    comparison = compared_by_hand(
        Score("r2"), FedAvg=[{"a": -1.0, "b": 1.0}] * 2, FedFV=[{"a": 0.5, "b": 1.0}] * 2
    )
    assert "gini" not in {row["measure"] for row in comparison.difference_rows()}


def test_arms_with_idle_parameters_have_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each arm has its own reason: a recipe with `--quick` cuts the rounds of several decays."""
    slow = {"fedmgdaplus.decay": 0.1}
    arms = {
        "plain": {},
        "slow": slow,
        "slow, other steps": {**slow, "fedmgdaplus.server-lr": 2.0},
        "inverse": {**slow, "fedmgdaplus.server-schedule": "inverse"},
    }
    shared = {"method": "fedmgdaplus", "num-rounds": 20}
    warn_of_idle({label: Settings.of({**shared, **own}) for label, own in arms.items()})
    (message,) = caplog.messages
    assert message.startswith("slow, slow, other steps: decay = 0.1 changes nothing in 20 rounds")
    assert "; inverse: decay = 0.1 changes nothing with server-schedule = 'inverse'" in message
    assert "plain" not in message


def test_no_idle_parameter_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_idle({"FedAvg": Settings.of({})})
    assert not caplog.messages


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


def test_a_run_has_a_bar_of_its_rounds_with_the_last_scores(screen: io.StringIO) -> None:
    with progress.progress() as bar:
        shown = progress.RunBar(bar, "FedAvg", 5)
        (task,) = bar.tasks
        assert (task.fields["measured"], task.completed, task.total) == ("", 0, 5)
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
        line for line in screen.getvalue().splitlines() if "learning-rate 0.1 suits SGD" in line
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
        for number, seconds in ((1, 30.0), (2, 61.0), (3, 90.0), (4, 122.0)):
            now[0] = seconds
            shown.count(RecordedRound.of(a_round(number), row, ACCURACY), ACCURACY)
    measured = "mean 50.0 %, worst client 50.0 %"
    assert capsys.readouterr().err.splitlines() == [
        f"FedAvg: round 2 of 5, {measured}",
        f"FedAvg: round 4 of 5, {measured}",
    ]
