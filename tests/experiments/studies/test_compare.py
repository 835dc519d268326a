"""Comparisons: tables, figures, and the numbers in them."""

import contextlib
import csv
import math
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.api import compare, load
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.studies.pool import check_runs
from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.settings import Settings, Value
from fairbloom.simulation.run import simulate
from tests.deploy.flower import wait_until
from tests.simulation.helpers import Outcome, table

from ..helpers import compared_by_hand, fairbloom, start

COLUMN = "test_accuracy_of_global_model"
SMALL = ("--seeds", 2, "--clients", 5, "--rounds", 2, "--fraction", 0.5, "--jobs", 2, "--set", "device=cpu")
WRITTEN = {"study.json", "comparison.csv", "differences.csv", "clients.csv", "clients.png", "clients.svg", REPORT}
WORDS = ("compare", "--methods", "fedavg,fedfv", *SMALL)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom(*WORDS, "--out", out) == 0
    return out


def last_round(folder: Path) -> dict[str, float]:
    rows = table(folder / "clients.csv")
    last = max(int(row["round"]) for row in rows)
    return {row["client"]: float(row[COLUMN]) for row in rows if int(row["round"]) == last}


@pytest.mark.slow
def test_the_table_has_a_row_a_method_and_seed_and_the_documented_columns(compared: Path) -> None:
    with (compared / "comparison.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["method", "seed", "score", *summarize({"anyone": 1.0})]
    expected = [[method, seed, "accuracy, %"] for method in ("FedAvg", "FedFV") for seed in ("0", "1")]
    assert [row[:3] for row in rows] == expected


def test_the_clients_table_has_every_client_under_every_method(compared: Path) -> None:
    rows = table(compared / "clients.csv")
    assert list(rows[0]) == ["method", "seed", "client", "accuracy"]
    assert len(rows) == 2 * 2 * 5
    for row in rows:
        run = last_round(compared / "runs" / f"{row['method'].lower()}-seed{row['seed']}")
        assert float(row["accuracy"]) == run[row["client"]]


def test_the_report_is_there_and_the_command_writes_the_same_one(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (compared / REPORT).read_text(encoding="utf-8")
    assert api.load(compared).verdict.headline in unescape(written)
    assert fairbloom("report", compared) == 0
    assert (compared / REPORT).read_text(encoding="utf-8") == written
    assert fairbloom("show", compared) == 0
    assert capsys.readouterr().out.count(str(compared / REPORT)) == 2


def test_runs_in_workers_are_those_of_the_run_command(compared: Path, tmp_path: Path) -> None:
    config: dict[str, Value] = {
        "method": "fedfv",
        "seed": 1,
        "clients": 5,
        "num-rounds": 2,
        "fraction": 0.5,
        "device": "cpu",
        "out": str(tmp_path / "a"),
    }
    alone = Outcome.of(simulate(Settings.of(config)))
    assert not alone.differences(Outcome.of(compared / "runs" / "fedfv-seed1"))


@pytest.mark.slow
def test_the_numbers_do_not_depend_on_how_many_runs_go_on_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has fewer processors then; alone, this model would be computed by all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wide_model.py").write_text(
        "from torch import nn\n\n\nclass Wide(nn.Sequential):\n    def __init__(self):\n"
        "        layers = (nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 10))\n"
        "        super().__init__(nn.Flatten(), *layers)\n"
    )
    words = ("compare", "--model", "wide_model:Wide", "--methods", "fedavg,fedfv", "--seeds", 1, "--clients", 5)
    words += ("--partition", "dirichlet", "--rounds", 1, "--device", "cpu")
    for jobs in (1, 2):
        assert fairbloom(*words, "--jobs", jobs, "--out", f"jobs{jobs}") == 0
    for run in ("fedavg-seed0", "fedfv-seed0"):
        one, two = (Outcome.of(tmp_path / f"jobs{jobs}" / "runs" / run) for jobs in (1, 2))
        assert not one.differences(two)


def test_methods_meet_the_same_clients_at_the_same_seed(compared: Path) -> None:
    drawn = {
        (method, seed): [(row["round"], row["client"]) for row in rows if row["participated"] == "1"]
        for method in ("fedavg", "fedfv")
        for seed in (0, 1)
        for rows in [table(compared / "runs" / f"{method}-seed{seed}" / "clients.csv")]
    }
    assert drawn["fedavg", 0] == drawn["fedfv", 0] != drawn["fedavg", 1] == drawn["fedfv", 1]


def test_methods_with_learning_rates_of_their_own_train_with_these_on_the_same_draws(tmp_path: Path) -> None:
    words = ("compare", "--methods", "fedavg(learning-rate=0.05),fedavg(learning-rate=0.5,batch-size=20)", *SMALL)
    assert fairbloom(*words, "--out", tmp_path) == 0
    folders = [
        tmp_path / "runs" / f"fedavg-{name}-seed1" for name in ("learning-rate=0.05", "batch-size=20-learning-rate=0.5")
    ]
    assert [load(folder).settings["learning-rate"] for folder in folders] == [0.05, 0.5]
    assert [load(folder).label for folder in folders] == ["FedAvg", "FedAvg"]
    slow, fast = (table(folder / "clients.csv") for folder in folders)
    drawn = [[(row["round"], row["client"], row["participated"]) for row in rows] for rows in (slow, fast)]
    assert drawn[0] == drawn[1]
    assert slow != fast


def test_a_comparison_that_is_done_is_written_again_from_its_runs(compared: Path) -> None:
    runs = {path: path.stat().st_mtime_ns for path in (compared / "runs").rglob("*") if path.is_file()}
    tables = {name: (compared / name).read_bytes() for name in ("comparison.csv", "clients.csv", "clients.png")}
    (compared / "comparison.csv").unlink()
    assert fairbloom(*WORDS, "--out", compared) == 0
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert {name: (compared / name).read_bytes() for name in tables} == tables


def test_a_run_folder_of_other_settings_is_refused_before_any_run_starts(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cmp"
    common = ("--seeds", 1, "--clients", 5, "--jobs", 1, "--set", "device=cpu", "--out", out)
    assert fairbloom("compare", "--methods", "fedavg", "--rounds", 2, *common) == 0
    capsys.readouterr()
    assert fairbloom("compare", "--methods", "fedavg,fedfv", "--rounds", 1, *common) == 2
    assert "already has 2 rounds" in capsys.readouterr().err
    assert [path.name for path in (out / "runs").iterdir()] == ["fedavg-seed0"]


@pytest.mark.slow
def test_more_rounds_extend_the_runs_of_a_comparison_to_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    words = ("compare", "--methods", "fedavg,fedfv", "--seeds", 1, "--clients", 5, "--jobs", 2, "--set", "device=cpu")
    assert fairbloom(*words, "--rounds", 2, "--out", tmp_path / "grown") == 0
    for out in ("grown", "whole"):
        assert fairbloom(*words, "--rounds", 4, "--out", tmp_path / out) == 0
    assert (tmp_path / "grown" / "clients.csv").read_bytes() == (tmp_path / "whole" / "clients.csv").read_bytes()
    for run in ("fedavg-seed0", "fedfv-seed0"):
        grown, whole = (Outcome.of(tmp_path / out / "runs" / run) for out in ("grown", "whole"))
        assert not grown.differences(whole)


def test_seeds_count_from_the_first_one(tmp_path: Path) -> None:
    words = ("compare", "--methods", "fedavg", "--seeds", 2, "--seed", 7, "--clients", 5, "--rounds", 1, "--jobs", 1)
    assert fairbloom(*words, "--model", "mlp", "--partition", "iid", "--out", tmp_path) == 0
    assert [row["seed"] for row in table(tmp_path / "comparison.csv")] == ["7", "8"]
    settings = (tmp_path / "runs" / "fedavg-seed8" / "config.toml").read_text()
    assert 'model = "mlp"' in settings
    assert 'partition = "iid"' in settings


@pytest.mark.slow
def test_a_script_that_compares_is_not_run_once_more_by_the_processes_of_its_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\nimport fairbloom\n"
        "told = fairbloom.compare(methods='fedavg', seeds=1, clients=5, rounds=1, jobs=1, out='cmp')\nprint(told)\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"begun\nComparison('{tmp_path}/cmp': FedAvg; 1 seed, accuracy, %)\n"


@pytest.mark.parametrize("key", ["task", "model", "method", "partition", "optimizer", "client-rule"])
def test_what_a_script_defines_is_refused_before_a_process_looks_for_it(key: str) -> None:
    run = Settings.of({}).model_copy(update={key.replace("-", "_"): "__main__:Mine"})
    with pytest.raises(FairbloomError, match=rf"^{key} = '__main__:Mine': the processes of several runs do not see"):
        check_runs({("FedAvg", 0): run})


@pytest.mark.slow
def test_an_interrupted_comparison_ends_with_130_and_finishes_no_run_first(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the workers as well."""
    words = ("compare", "--methods", "fedavg", "--seeds", 2, "--clients", 5, "--rounds", 100_000, "--jobs", 1)
    process = start(*words, "--out", tmp_path, start_new_session=True)
    while process.poll() is None and not list(tmp_path.rglob("checkpoint/*.safetensors")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert list(tmp_path.rglob("model.safetensors")) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_comparison_is_interrupted_without_a_traceback_while_its_processes_are_started(
    tmp_path: Path, seconds: float
) -> None:
    words = ("compare", "--methods", "fedavg", "--seeds", 2, "--clients", 5, "--rounds", 100_000, "--jobs", 2)
    process = start(*words, "--out", tmp_path, start_new_session=True)
    while process.poll() is None and len(spawned_by(process.pid)) < 2:
        time.sleep(0.005)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert told == "interrupted: the same command begins again; a run continues after its last finished round\n"


def spawned_by(parent: int) -> list[int]:
    """Return the processes that multiprocessing has spawned for another."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


@pytest.mark.slow
def test_a_second_comparison_into_a_folder_is_refused_by_name_of_the_first_until_that_was_killed(
    tmp_path: Path,
) -> None:
    words = ("compare", "--methods", "fedavg", "--seeds", 1, "--clients", 5, "--rounds", 2, "--jobs", 1)
    first = start(*words, "--out", tmp_path / "cmp", start_new_session=True)
    lock = tmp_path / "cmp" / ".lock"
    while first.poll() is None and not (lock.exists() and lock.read_text()):
        time.sleep(0.005)
    os.killpg(first.pid, signal.SIGSTOP)
    second = start(*words, "--out", tmp_path / "cmp")
    printed, told = second.communicate()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    who = f"process {first.pid} on {socket.gethostname()}"
    assert (second.returncode, printed) == (2, "")
    assert f"{tmp_path}/cmp is written by {who}: wait for it to end" in told
    assert "(--out)" in told
    assert (tmp_path / "cmp" / ".lock").exists()
    assert fairbloom(*words, "--out", tmp_path / "cmp") == 0
    assert {path.name for path in (tmp_path / "cmp").iterdir()} == {*WRITTEN, "runs"} - {"differences.csv"}


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_told_in_one_line(tmp_path: Path) -> None:
    """As the system kills the largest process when memory runs short."""
    words = ("compare", "--methods", "fedavg", "--seeds", 1, "--clients", 5, "--rounds", 100_000, "--jobs", 1)
    process = start(*words, "--out", tmp_path)
    lock = tmp_path / "runs" / "fedavg-seed0" / ".lock"
    while process.poll() is None and not (lock.exists() and lock.read_text()):
        time.sleep(0.005)
    os.kill(int(re.findall(r"process (\d+)", lock.read_text())[0]), signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode == 2
    assert told.startswith("error: the system has ended the process of a run")
    assert told.endswith("lower --jobs, and run the same command again, which continues\n")


def is_free(folder: Path) -> bool:
    """Return whether no process holds the folder."""
    try:
        with locked_folder(folder, wait=False):
            return True
    except FairbloomError:
        return False


@pytest.mark.slow
def test_a_comparison_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    words = ("compare", "--methods", "fedavg", "--seeds", 1, "--clients", 5, "--rounds", 100_000, "--jobs", 1)
    run = tmp_path / "runs" / "fedavg-seed0"
    command = start(*words, "--out", tmp_path, start_new_session=True)
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


def block_run(out: Path, method: str) -> None:
    """Let a run fail: it cannot make its lock, because a folder has that name."""
    (out / "runs" / f"{method}-seed0" / ".lock").mkdir(parents=True)


def test_a_comparison_that_fails_ends_no_other_process_of_the_caller(tmp_path: Path) -> None:
    """Nor one that is started meanwhile: a notebook may have a loader's workers, or a run of its own."""
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    for method in ("fedavg", "fedfv"):
        block_run(tmp_path, method)
    with pytest.raises(FairbloomError, match=r"with seed 0: .*\.lock"):
        compare(methods="fedfv,fedavg", seeds=1, clients=5, rounds=300, jobs=2, out=tmp_path, progress=False)
    try:
        assert other.is_alive()
        assert {process.pid for process in multiprocessing.active_children()} == {other.pid}
    finally:
        other.terminate()
        other.join()


# Numbers of a comparison, by hand -----------------------------------------------------------------------------------

BY_HAND = compared_by_hand(
    FedAvg=[{"a": 10.0, "b": 50.0, "c": 90.0}, {"a": 20.0, "b": 50.0, "c": 80.0}],
    FedFV=[{"a": 40.0, "b": 50.0, "c": 90.0}, {"a": 30.0, "b": 60.0, "c": 70.0}],
)
AN_ERROR = compared_by_hand(
    Score("mae", higher_is_better=False), FedAvg=BY_HAND.values["FedAvg"], FedFV=BY_HAND.values["FedFV"]
)
"""The same numbers, of which the lower is the better."""


def test_with_an_error_a_gain_is_a_fall() -> None:
    assert AN_ERROR.spread("FedAvg", "worst") == pytest.approx((85.0, math.sqrt(50.0)))
    assert AN_ERROR.gain("FedFV", "worst") == pytest.approx((5.0, math.sqrt(50.0)))
    assert AN_ERROR.gain("FedFV", "best") == pytest.approx((-20.0, math.sqrt(200.0)))
    better = [0.0, 100 / 3]
    assert AN_ERROR.percent_better("FedFV") == pytest.approx((100 / 6, statistics.stdev(better)))


def test_differences_are_better_whatever_the_direction_of_score_and_measure() -> None:
    assert BY_HAND.gains("FedFV", "worst") == [30.0, 10.0]
    assert AN_ERROR.gains("FedFV", "worst") == [0.0, 10.0]
    assert BY_HAND.gains("FedFV", "client:a") == [30.0, 10.0]
    assert AN_ERROR.gains("FedFV", "client:a") == [-30.0, -10.0]
    for comparison in (BY_HAND, AN_ERROR):
        assert comparison.gains("FedFV", "gap") == [30.0, 20.0]  # clients are closer together
        assert min(comparison.gains("FedFV", "jain")) > 0.0
    found = BY_HAND.difference("FedFV", "worst")
    assert (found.mean, found.better, found.worse, found.seeds) == (20.0, 2, 0, 2)


def test_what_is_no_method_or_measure_is_refused_with_what_there_is() -> None:
    with pytest.raises(FairbloomError, match="method = 'FedAvg': the methods that are compared with FedAvg are FedFV"):
        BY_HAND.difference("FedAvg", "worst")
    with pytest.raises(FairbloomError, match="method = 'TERM': this comparison has FedAvg, FedFV"):
        BY_HAND.gains("TERM", "worst")
    with pytest.raises(FairbloomError, match=r"unknown measure 'best of all': there are mean, std, .*client:NAME"):
        BY_HAND.differences("best of all")
    with pytest.raises(FairbloomError, match="measure = 'client:z': it is not there"):
        BY_HAND.differences("client:z")


def test_equal_measures_are_equal_whatever_rounding_has_made_of_them() -> None:
    values = [{"a": 0.1 + 0.2, "b": 0.7}, {"a": 0.3, "b": 0.7}]
    others = [{"a": 0.3, "b": 0.7}, {"a": 0.1 + 0.2, "b": 0.7}]
    assert values != others
    found = compared_by_hand(FedAvg=values, FedFV=others).difference("FedFV", "mean")
    assert (found.mean, found.better, found.worse, found.significant) == (0.0, 0, 0, False)


def test_a_client_that_lacks_a_score_with_some_seed_is_compared_over_the_others() -> None:
    base = [{"a": 1.0, "b": 2.0}, {"a": 1.0}, {"a": 1.0, "b": 3.0}]
    fair = [{"a": 1.0, "b": 4.0}, {"a": 1.0}, {"a": 1.0, "b": 6.0}]
    comparison = compared_by_hand(FedAvg=base, FedFV=fair)
    assert comparison.gains("FedFV", "client:b") == [2.0, 3.0]
    assert comparison.difference("FedFV", "client:b").seeds == 2
    assert {row["measure"] for row in comparison.difference_rows()} >= {"mean", "client:a"}


def test_measures_without_meaning_are_left_out_of_the_rows() -> None:
    """Gini's coefficient of numbers of which some are negative is none."""
    comparison = compared_by_hand(Score("r2"), FedAvg=[{"a": -1.0, "b": 1.0}] * 2, FedFV=[{"a": 0.5, "b": 1.0}] * 2)
    assert "gini" not in {row["measure"] for row in comparison.difference_rows()}


# The tables that are written ------------------------------------------------------------------------------------------
