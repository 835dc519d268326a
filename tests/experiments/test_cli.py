"""The command line: what it prints, what it leaves, and its exit codes."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.core import TyperArgument

from fairbloom import __version__
from fairbloom.cli import COMMANDS as LISTED
from fairbloom.cli import LateCommand, app
from fairbloom.experiments.options import CommonOptions, as_settings
from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds.round import Round
from fairbloom.server.checkpoint import list_checkpoints
from fairbloom.server.run_folder import recorder
from fairbloom.server.run_folder.rows import Row
from fairbloom.server.settings import Settings, default_config, parameters
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS
from tests.commands import STARTED, forked
from tests.commands import fairbloom as in_a_process
from tests.simulation.helpers import Outcome, table

from .helpers import ROOT, SMALL, fairbloom


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, on a wide terminal without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


# Run ----------------------------------------------------------------------------------------------------------------


def test_run_leaves_a_run_folder_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("run", *SMALL, "--method", "fedfv", "--out", "a") == 0
    printed = capsys.readouterr().out
    assert f"run folder: {tmp_path / 'a'}" in printed
    assert (tmp_path / "a" / "model.safetensors").exists()
    assert len(table(tmp_path / "a" / "rounds.csv")) == 3


def test_run_shows_the_final_accuracies_and_the_worst_served_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("run", *SMALL, "--out", "a") == 0
    printed = capsys.readouterr().out
    last = [row for row in table(tmp_path / "a" / "clients.csv") if row["round"] == "3"]
    column = "test_accuracy_of_global_model"
    worst = min(last, key=lambda row: float(row[column]))
    assert re.search(rf"first: .+\nclient .+\n─+\n{worst['client']} +{float(worst[column]):.1f} ", printed)
    assert f"{sum(float(row[column]) for row in last) / 5:.1f}" in printed


def test_options_and_settings_reach_the_run(tmp_path: Path) -> None:
    words = ["--task", "digits", "--model", "mlp", "--partition", "iid", "--fraction", "0.4", "--seed", "4"]
    words += ["--engine", "loop", "--method", "fedfv", "--set", "fedfv.tau=3", "--set", "learning-rate=0.05"]
    assert fairbloom("run", *SMALL, *words, "--out", "a") == 0
    expected: dict[str, Any] = {"model": "mlp", "partition": "iid", "fraction": 0.4, "seed": 4, "method": "fedfv"}
    expected |= {"clients": 5, "num-rounds": 3, "device": "cpu", "fedfv.tau": 3, "learning-rate": 0.05}
    there = simulate(Settings.of({**expected, "engine": "loop", "out": "b"}))
    assert not Outcome.of(tmp_path / "a").differences(Outcome.of(there))


def test_a_finished_run_is_shown_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fairbloom("run", *SMALL, "--out", "a")
    first, written = capsys.readouterr().out, (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns
    assert fairbloom("run", *SMALL, "--out", "a") == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns == written


def test_a_run_without_out_is_named_by_its_settings(tmp_path: Path) -> None:
    assert fairbloom("run", *SMALL) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-fedavg-seed0-")


REFUSED: list[tuple[list[str], tuple[str, ...]]] = [
    (["run", "--method", "fedfvv"], ("method = 'fedfvv'", "did you mean FedFV?")),
    (["run", "--task", "digit"], ("task = 'digit'", "did you mean digits?")),
    (["run", "--clients", "0"], ("clients = 0",)),
    (["run", "--clients", "1000"], ("clients = 1000", "1797 examples")),
    (["run", "--fraction", "-1"], ("fraction = -1",)),
    (["run", "--method", "fedfv", "--set", "fedfv.alpha=2"], ("fedfv.alpha = 2", "[0, 1]")),
    (["run", "--set", "learning-rate=nan"], ("learning-rate = nan", "float above 0")),
    (["run", "--set", "learning-rte=0.1"], ("did you mean learning-rate?",)),
    (["run", "--set", "clients=many"], ("clients = 'many'",)),
    (["run", "--set", "clients=[5]"], ("clients = ", "[5]")),
    (["run", "--set", "clients"], ("'clients'", "KEY=VALUE")),
    (["run", "--device", "cuda:99"], ("device = 'cuda:99' is not available",)),
    (["run", "--clients", "few"], ("--clients = 'few'", "int at least 0")),
    (["run", "--engine", "lop"], ("engine = 'lop'", "did you mean loop?", "auto, loop, stacked or workers")),
    (["run", "--memory", "-1"], ("--memory = -1", "float at least 0")),
    (["run", "--rounds", "10,20"], ("--rounds = '10,20'", "fairbloom search --grid num-rounds=10,20")),
    (["compare", "--fraction", "0,5"], ("--fraction = '0,5'", "a point, 0.5")),
    (["run", "--seed", "one"], ("--seed = 'one'", "allowed is int")),
    (["compare", "--engine", "stack"], ("engine = 'stack'", "did you mean stacked?")),
    (["compare", "--engine", "loop", "--set", "engine=auto"], ("engine is given two values, 'loop' and 'auto'",)),
    (["run", "--no-such-option"], ("--no-such-option",)),
    (["run", "--rounds", "5", "--set", "num-rounds=7"], ("num-rounds is given two values, 5 and 7: give it one",)),
    (["run", "--set", "seed=1", "--set", "seed=2"], ("seed is given two values, 1 and 2: give it one",)),
    (["run", "--set", "qfedavg.q=2"], ("qfedavg.q has no effect with method = 'fedavg'",)),
    (["walk"], ("walk",)),
    (["compare", "--methods", "fedavg,fedfvv"], ("method = 'fedfvv'", "did you mean FedFV?")),
    (["compare", "--methods", ","], ("methods = ','", "fedavg")),
    (["compare", "--rounds", "5", "--set", "num-rounds=7"], ("num-rounds is given two values, 5 and 7: give it one",)),
    (["compare", "--set", "fraction=0.1", "--set", "fraction=1"], ("fraction is given two values, 0.1 and 1: give",)),
    (["compare", "--set", "seed=7"], ("seed = 7: a comparison sets seed run by run: give --seed and --seeds instead",)),
    (["compare", "--set", "method=fedfv"], ("method = 'fedfv': a comparison sets method", "give --methods instead")),
    (["compare", "--set", "out=elsewhere"], ("out = 'elsewhere': a comparison sets out", "give --out instead")),
    (["compare", "--set", "adafed.gamma=2"], ("adafed.gamma has no effect with method = 'fedavg'", "'fedfv'")),
    (["compare", "--methods", "fedavg", "--set", "fedfv.alpha=0.2"], ("fedfv.alpha has no effect",)),
    (["compare", "--set", "learning-rte=0.1"], ("did you mean learning-rate?",)),
    (["compare", "--seeds", "0"], ("seeds",)),
    (["compare", "--methods", "fedavg,qfedavg(r=1)"], ("qfedavg(r=1): QFedAvg has no parameter r; there are q, lip",)),
    (["compare", "--methods", "qfedavg(q=many)"], ("qfedavg.q = 'many'", "float at least 0")),
    (["compare", "--methods", "fedfv(alpha=2)"], ("fedfv.alpha = 2", "[0, 1]")),
    (["compare", "--methods", "fedavg,qfedavg(q=1"], ("a parenthesis or quote is open",)),
    (["compare", "--methods", "qfedavg(q=1)", "--set", "qfedavg.q=1"], ("qfedavg.q is given twice, in qfedavg(q=1)",)),
    (["compare", "--methods", "fedavg,fedfv", "--baseline", "term"], ("baseline = 'term' is not among the methods",)),
    (["compare", "--methods", "__main__:Mine"], ("method = '__main__:Mine'",)),
    (["compare", "--set", "fedfv.alpha=2"], ("fedfv.alpha = 2", "[0, 1]")),
]


@pytest.mark.slow
def test_several_values_are_tried_by_the_search_an_error_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A comparison's method, too: its error has the name of the method."""
    few = (
        "--clients",
        5,
        "--seeds",
        1,
        "--jobs",
        1,
        "--set",
        "device=cpu",
        "--set",
        "num-rounds=1",
        "--out",
        "searched",
    )
    for given in (["run", "--set", "momentum=0,0.5"], ["compare", "--methods", "fedfv(alpha=0.1,0.5)"]):
        assert fairbloom(*given) == 2
        named = re.search(r"fairbloom (search .*--grid \S+) tries", capsys.readouterr().err)
        assert named is not None
        assert fairbloom(*named[1].split(), *few[:-1], f"a-{given[0]}") == 0


@pytest.mark.parametrize(("words", "expected"), REFUSED, ids=lambda part: " ".join(part)[:50])
def test_bad_input_ends_with_2_and_a_message_and_nothing_is_written(
    words: list[str], expected: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", "a"] if words[0] != "walk" else []
    assert fairbloom(*words, *out) == 2
    printed = capsys.readouterr()
    for word in expected:
        assert word in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert fairbloom(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    return line


PLACES = {
    "x" * 300: "cannot be used: File name too long. Choose another folder (--out)",
    "file": "file is a file, not a folder: choose another folder (--out)",
    "file/a/b": "file is a file, not a folder: choose another folder (--out)",
}


@pytest.mark.parametrize(
    "command", [("run",), ("compare", "--methods", "fedavg", "--seeds", 1)], ids=["run", "compare"]
)
@pytest.mark.parametrize("out", PLACES, ids=["long", "file", "below a file"])
def test_a_place_that_can_be_no_folder_is_refused_in_one_line_and_nothing_is_written(
    command: tuple[object, ...], out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    assert PLACES[out] in refusal(capsys, *command, "--out", out)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "precious")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize(
    "command", [("run",), ("compare", "--methods", "fedavg", "--seeds", 1)], ids=["run", "compare"]
)
def test_a_place_that_cannot_be_written_is_refused_in_one_line(
    command: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "Permission denied" in refusal(capsys, *command, "--out", "locked/a")


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fairbloom("run", *SMALL, "--out", "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert fairbloom("run", *SMALL, "--seed", "7", "--out", "a") == 2
    assert "seed = 0 there and 7 here" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no clients.csv": (lambda run: (run / "clients.csv").unlink(), "clients.csv cannot be read: No such file"),
    "no rounds.csv": (lambda run: (run / "rounds.csv").unlink(), "rounds.csv cannot be read: No such file"),
    "a torn clients.csv": (lambda run: cut(run / "clients.csv"), "clients.csv cannot be read: its last line is torn"),
    "another rounds.csv": (lambda run: (run / "rounds.csv").write_text("a,b\n1,2\n"), "rounds.csv cannot be read: its"),
    "no accuracies": (
        lambda run: (run / "clients.csv").write_text((run / "clients.csv").read_text().partition("\n")[0] + "\n"),
        "clients.csv has no test accuracy after the last round",
    ),
    "a word for an accuracy": (
        lambda run: (run / "clients.csv").write_text(
            re.sub(r"(?m)^(3,client-1,(?:[^,]*,){3})[^,]*", r"\1many", (run / "clients.csv").read_text())
        ),
        "test_accuracy_of_global_model has 'many', which is no number",
    ),
    "a torn model": (lambda run: cut(run / "model.safetensors"), "model.safetensors is damaged: it is no whole file"),
    "torn settings": (lambda run: cut(run / "config.toml", 20), "config.toml cannot be read: it is no valid TOML: "),
}


def cut(path: Path, length: int = -4) -> None:
    path.write_bytes(path.read_bytes()[:length])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of one run, which the run command shows as well."""
    out = tmp_path_factory.mktemp("finished")
    words = ("--methods", "fedavg", "--seeds", 1, "--clients", 5, "--rounds", 3, "--set", "device=cpu")
    assert fairbloom("compare", *words, "--out", out) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "fault"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_finished_run_is_one_line_when_it_is_shown_and_when_it_is_compared(
    damage: Callable[[Path], object], fault: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "fedavg-seed0"
    shutil.copytree(finished / "runs" / "fedavg-seed0", folder)
    damage(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert fault in refusal(capsys, "run", *SMALL, "--out", folder)
    words = ("--methods", "fedavg", "--seeds", 1, "--clients", 5, "--rounds", 3, "--set", "device=cpu")
    assert fault in refusal(capsys, "compare", *words, "--out", tmp_path)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_whose_checkpoints_are_damaged_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rounds in (2, 3):  # a run that is extended has a checkpoint of before
        fairbloom("run", *SMALL, "--rounds", rounds, "--out", "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    for path in list_checkpoints(tmp_path / "a" / "checkpoint"):
        path.write_bytes(b"")
    line = refusal(capsys, "run", *SMALL, "--out", "a")
    assert "3.safetensors is damaged: it is empty; " in line
    assert "2.safetensors is damaged: it is empty. Put back a copy, or choose another folder (--out)" in line


def before_each_round(act: Callable[[], None]) -> None:
    """Let the runs of this process write each round at once, and do something before they record one."""
    record = recorder.RunRecorder.record

    def recorded(self: recorder.RunRecorder, finished: Round, seconds: float) -> Row:
        act()
        return record(self, finished, seconds)

    recorder.SHARED_SECONDS = 0.0
    recorder.RunRecorder.record = recorded  # type: ignore[method-assign]


def run_when_allowed(go: Path, words: list[str]) -> None:
    """Run a command in a process of its own; its runs wait for a file before they record a round."""

    def wait() -> None:
        while not go.exists():
            time.sleep(0.01)

    before_each_round(wait)
    sys.exit(fairbloom(*words))


def run_until_interrupted(rows: str, *words: str) -> None:
    """Run a command in a process of its own to which Ctrl-C comes once a run has written three rounds."""

    def interrupt() -> None:
        if Path(rows).exists() and len(Path(rows).read_bytes().splitlines()) > 3:
            signal.raise_signal(signal.SIGINT)

    before_each_round(interrupt)
    sys.exit(fairbloom(*words))


def test_two_runs_into_one_folder_at_once_are_one_run_and_a_refusal_that_names_it(tmp_path: Path) -> None:
    words = ["run", *SMALL, "--method", "fedfv", "--out", str(tmp_path / "a")]
    first, lock = STARTED.Process(target=run_when_allowed, args=(tmp_path / "go", words)), tmp_path / "a" / ".lock"
    first.start()
    while first.is_alive() and not (lock.exists() and lock.read_text()):
        time.sleep(0.005)
    second = in_a_process(ROOT, *words)
    (tmp_path / "go").touch()
    who = f"process {first.pid} on {socket.gethostname()}"
    assert (second.returncode, second.stdout) == (2, "")
    told = f"error: {tmp_path}/a is written by {who}: wait for it to end, or choose another folder (--out)"
    assert told in second.stderr
    assert "Traceback" not in second.stderr
    first.join()
    assert first.exitcode == 0
    assert fairbloom(*words[:-1], tmp_path / "b") == 0
    assert not Outcome.of(tmp_path / "a").differences(Outcome.of(tmp_path / "b"))


def test_an_interrupted_run_ends_with_130_and_the_same_command_finishes_it(tmp_path: Path) -> None:
    words = ["run", "--clients", "5", "--rounds", "10", "--device", "cpu", "--method", "fedfv"]
    rows = tmp_path / "a" / "rounds.csv"
    ended = forked(ROOT, run_until_interrupted, str(rows), *words, "--out", str(tmp_path / "a"))
    assert ended.returncode == 130
    assert ended.stderr == "interrupted: the same command begins again; a run continues after its last finished round\n"
    assert ended.stdout == ""
    assert len(rows.read_bytes().splitlines()) > 3
    assert not (tmp_path / "a" / "model.safetensors").exists()
    for out in ("a", "b"):
        assert fairbloom(*words, "--out", tmp_path / out) == 0
    assert not Outcome.of(tmp_path / "a").differences(Outcome.of(tmp_path / "b"))


@pytest.mark.slow
def test_an_error_that_no_user_can_mend_keeps_its_traceback_and_ends_with_1() -> None:
    """Also a ValueError, which is what a user's own app or method may raise."""
    broken = (
        "from fairbloom import cli; from fairbloom.experiments.commands import lists; "
        "lists.describe_method = lambda name: int('a bug'); cli.main()"
    )
    process = subprocess.run([sys.executable, "-c", broken, "methods"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback")
    assert "ValueError: invalid literal for int() with base 10: 'a bug'" in process.stderr


def test_version_prints_the_version_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("--version") == 0
    assert capsys.readouterr() == (f"fairbloom {__version__}\n", "")


# What there is to choose from ---------------------------------------------------------------------------------------


def as_json(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert fairbloom(command, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_methods_lists_every_method_with_its_parameters_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    described = as_json(capsys, "methods")
    assert [method["name"] for method in described] == list(METHODS)
    for method in described:
        assert method["summary"]
        assert re.search(r"\b(19|20)\d\d\b", method["source"]), f"{method['name']}'s source has no year"
    keys = {parameter["key"] for method in described for parameter in method["parameters"]}
    assert keys == {key for key, parameter in parameters().items() if parameter.owner in METHODS}
    assert all(parameter["range"] for method in described for parameter in method["parameters"])


def test_tasks_lists_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    described = as_json(capsys, "tasks")
    assert [task["name"] for task in described] == list(TASKS)
    assert fairbloom("tasks") == 0
    printed = capsys.readouterr().out
    for task in described:
        for word in (task["name"], task["summary"], *task["models"], *task["partitions"]):
            assert word in printed


def test_data_are_shown_client_by_client_with_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "basel.csv").write_text("age,bmi,target\n" + "50,20,1\n40,30,0\n" * 5)
    (tmp_path / "h" / "lund.csv").write_text("age,bmi\n50,20\n")
    assert fairbloom("data", "h") == 1
    printed = capsys.readouterr().out
    assert re.search(r"^lund +lund.csv +target +has no column 'target'", printed, re.MULTILINE)
    assert re.search(r"^age +basel +40 to 50", printed, re.MULTILINE)
    assert fairbloom("data", "h", "--json") == 1
    assert [row["client"] for row in json.loads(capsys.readouterr().out)["clients"]] == ["basel", "lund"]
    assert fairbloom("data", "--task", "digits", "--set", "clients=3") == 0
    assert re.search(r"^client-0 +480 +120$", capsys.readouterr().out, re.MULTILINE)
    assert "no such folder" in refusal(capsys, "data", "nowhere")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "h"]


def test_data_take_the_folder_as_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, age in (("basel", 50), ("turku", 60)):
        (tmp_path / f"{name}.csv").write_text("age,target\n" + f"{age},1\n{age - 5},0\n" * 5)
    assert fairbloom("data", "--task", "csv", "--data-dir", tmp_path) == 0
    assert "basel" in capsys.readouterr().out
    assert "data-dir is given two values" in refusal(capsys, "data", tmp_path, "--data-dir", "other")


@pytest.mark.parametrize("command", ["run", "compare", "search", "reproduce", "data", "check"])
@pytest.mark.parametrize("option", ["--learning-rate", "--server_optimizer=adam", "--fedlf.server-lr"])
def test_a_setting_that_is_given_as_an_option_is_refused_with_the_way_to_give_it(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = option.strip("-").partition("=")[0].replace("_", "-")
    assert fairbloom(command, option, "3") == 2
    assert f"write --set {key}=VALUE" in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("command", ["run", "compare", "search", "reproduce", "data", "check"])
@pytest.mark.parametrize(
    ("option", "key"), [("--server-optimzer=adam", "server-optimizer"), ("--fedlf.server-rl", "fedlf.server-lr")]
)
def test_a_misspelt_setting_that_is_given_as_an_option_is_refused_with_the_way_to_give_the_nearest(
    command: str, option: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom(command, option, "3") == 2
    assert f"did you mean --set {key}=VALUE?" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_misspelt_option_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for option, meant in (("--rouns", "--rounds"), ("--seeed", "--seed"), ("--data_dir", "--data-dir")):
        assert fairbloom("run", option, "3") == 2
        said = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert ("write --data-dir" if option == "--data_dir" else "id you mean") in said
        assert meant in said


@pytest.mark.parametrize("words", [["chek"], ["deploy", "statu"]])
def test_a_misspelt_command_is_corrected_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom(*words) == 2
    assert capsys.readouterr().err.count("Did you mean") <= 1


def test_settings_lists_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "settings") == default_config()
    assert fairbloom("settings") == 0
    printed = capsys.readouterr().out
    for key, value in default_config().items():
        assert re.search(rf"^{re.escape(key)} = {re.escape(repr(value))}$", printed, re.MULTILINE), key


def test_settings_of_a_name_and_a_name_that_none_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("settings", "qfedavg", "learning_rate", "--json") == 0
    rates = [key for key in default_config() if "learning-rate" in key]
    assert {*json.loads(capsys.readouterr().out)} == {"qfedavg.q", "qfedavg.lipschitz", *rates}
    assert fairbloom("settings", "qfedavg") == 0
    assert capsys.readouterr().out.startswith("\nqfedavg\nqfedavg.q = ")
    assert fairbloom("settings", "lerning-rate") == 2
    assert "did you mean learning-rate" in capsys.readouterr().err


# Help ---------------------------------------------------------------------------------------------------------------


def command_called(name: str) -> click.Command:
    """Return a command as it is when it is called."""
    late = typer.main.get_group(app).commands[name]
    assert isinstance(late, LateCommand)
    return late.imported()


@pytest.mark.parametrize("command", LISTED)
def test_a_commands_help_begins_as_it_is_listed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom(command, "--help") == 0
    printed = capsys.readouterr().out
    assert LISTED[command].summary in printed
    assert LISTED[command].example in printed
    assert "--help" in printed
    assert str(command_called(command).help).splitlines()[0] == LISTED[command].summary


def test_help_says_what_each_argument_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = [each for name in LISTED for each in commands_in(command_called(name))]
    arguments = [each for command in commands for each in command.params if isinstance(each, TyperArgument)]
    assert len(arguments) > 20
    assert [each.name for each in arguments if not each.help] == []
    for words, said in (
        ("show", "The folder of a run or a study"),
        ("client keys", "Name of this client in the"),
    ):
        assert fairbloom(*words.split(), "--help") == 0
        assert said in capsys.readouterr().out


def commands_in(command: click.Command) -> Iterator[click.Command]:
    """Yield a command, and those in it."""
    yield command
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from commands_in(each)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_help_of_commands_that_work_has_an_example_that_is_taken(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fairbloom(command, "--help")
    example = re.search(rf"Example: fairbloom ({command} .+)", capsys.readouterr().out)
    assert example
    _, *words = example[1].split()
    assert command_called(command).make_context(command, words).params["out"]


@pytest.mark.parametrize("command", ["run", "compare", "search"])
def test_options_that_commands_have_in_common_say_what_their_settings_do(command: str) -> None:
    offered = {option.name: option for option in command_called(command).params if isinstance(option, click.Option)}
    assert [name for name in offered if name in CommonOptions.__annotations__] == [*CommonOptions.__annotations__]
    for name in CommonOptions.__annotations__.keys() - {"data_dir"}:
        (key,) = as_settings({name: None})
        assert str(offered[name].help).startswith(SETTINGS[key].description)
