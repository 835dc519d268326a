"""The command line: what it prints, what it leaves, and its exit codes."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from fairbloom.cli import app, merged
from fairbloom.server.settings import Settings, default_config, parameter_defaults, parsed
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS
from tests.simulation.helpers import Outcome, table

from .helpers import SMALL, fairbloom, start

GROUP = typer.main.get_group(app)


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
    assert f"worst served: {worst['client']} {float(worst[column]):.1f} %" in printed
    assert f"{sum(float(row[column]) for row in last) / 5:.1f}" in printed


def test_options_and_settings_reach_the_run(tmp_path: Path) -> None:
    words = ["--task", "digits", "--model", "mlp", "--partition", "iid", "--fraction", "0.4", "--seed", "4"]
    words += ["--engine", "loop", "--method", "fedfv", "--set", "fedfv.tau=3", "--set", "learning-rate=0.05"]
    assert fairbloom("run", *SMALL, *words, "--out", "a") == 0
    expected: dict[str, Any] = {"model": "mlp", "partition": "iid", "fraction": 0.4, "seed": 4, "method": "fedfv"}
    expected |= {"clients": 5, "num-rounds": 3, "device": "cpu", "fedfv.tau": 3, "learning-rate": 0.05}
    there = simulate(Settings.of({**expected, "out": "b"}))
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
    (["run", "--method", "fedvf"], ("method = 'fedvf'", "did you mean fedfv?")),
    (["run", "--task", "digit"], ("task = 'digit'", "did you mean digits?")),
    (["run", "--clients", "0"], ("clients = 0",)),
    (["run", "--clients", "1000"], ("clients = 1000", "1797 examples")),
    (["run", "--fraction", "0"], ("fraction = 0",)),
    (["run", "--method", "fedfv", "--set", "fedfv.alpha=2"], ("fedfv.alpha = 2", "[0, 1]")),
    (["run", "--set", "learning-rate=nan"], ("learning-rate = nan", "finite")),
    (["run", "--set", "learning-rte=0.1"], ("did you mean learning-rate?",)),
    (["run", "--set", "clients=many"], ("clients = 'many'",)),
    (["run", "--set", "clients=[5]"], ("clients = ", "[5]")),
    (["run", "--set", "clients"], ("--set clients", "KEY=VALUE")),
    (["run", "--device", "cuda:99"], ("device = 'cuda:99' is not available",)),
    (["run", "--clients", "few"], ("few",)),
    (["run", "--no-such-option"], ("--no-such-option",)),
    (["walk"], ("walk",)),
    (["compare", "--methods", "fedavg,fedvf"], ("method = 'fedvf'", "did you mean fedfv?")),
    (["compare", "--methods", ","], ("methods = ','", "fedavg")),
    (["compare", "--seeds", "0"], ("seeds",)),
    (["compare", "--set", "fedfv.alpha=2"], ("fedfv.alpha = 2", "[0, 1]")),
]


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


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fairbloom("run", *SMALL, "--out", "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert fairbloom("run", *SMALL, "--seed", "7", "--out", "a") == 2
    assert "seed = 0 there and 7 here" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def test_an_interrupted_run_ends_with_130_and_the_same_command_finishes_it(tmp_path: Path) -> None:
    words = ["run", "--clients", "5", "--rounds", "150", "--device", "cpu", "--method", "fedfv"]
    process, rows = start(*words, "--out", tmp_path / "a"), tmp_path / "a" / "rounds.csv"
    while process.poll() is None and (not rows.exists() or len(rows.read_bytes().splitlines()) < 4):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate()
    assert process.returncode == 130
    assert "the same command continues" in told
    assert "Traceback" not in told
    assert printed == ""
    assert not (tmp_path / "a" / "model.safetensors").exists()
    for out in ("a", "b"):
        assert fairbloom(*words, "--out", tmp_path / out) == 0
    assert not Outcome.of(tmp_path / "a").differences(Outcome.of(tmp_path / "b"))


def test_a_command_in_a_process_of_its_own_ends_with_0(tmp_path: Path) -> None:
    process = start("run", *SMALL, "--out", tmp_path / "a")
    printed, told = process.communicate()
    assert (process.returncode, told) == (0, "")
    assert str(tmp_path / "a") in printed


def test_bad_input_in_a_process_of_its_own_ends_with_2(tmp_path: Path) -> None:
    process = start("run", "--fraction", "7", "--out", tmp_path / "a")
    printed, told = process.communicate()
    assert (process.returncode, printed) == (2, "")
    assert "fraction = 7.0" in told
    assert "Traceback" not in told


# What there is to choose from ---------------------------------------------------------------------------------------


def as_json(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert fairbloom(command, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_methods_lists_every_method_with_its_parameters_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    described = as_json(capsys, "methods")
    assert [method["name"] for method in described] == list(METHODS)
    for method in described:
        assert method["summary"]
        assert method["formula"]
        assert re.search(r"\b(19|20)\d\d\b", method["source"]), f"{method['name']}'s source has no year"
    keys = {parameter["key"] for method in described for parameter in method["parameters"]}
    assert keys == set(parameter_defaults())
    assert all(parameter["range"] for method in described for parameter in method["parameters"])


def test_methods_states_the_defaults_that_the_settings_have(capsys: pytest.CaptureFixture[str]) -> None:
    for method in as_json(capsys, "methods"):
        for parameter in method["parameters"]:
            if parameter["default"] != "required":
                assert parsed(parameter["default"]) == parameter_defaults()[parameter["key"]]


def test_methods_in_words_names_every_method_and_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("methods") == 0
    printed = capsys.readouterr().out
    for name in (*METHODS, *parameter_defaults()):
        assert name in printed


def test_tasks_lists_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    described = as_json(capsys, "tasks")
    assert [task["name"] for task in described] == list(TASKS)
    assert fairbloom("tasks") == 0
    printed = capsys.readouterr().out
    for task in described:
        for word in (task["name"], task["summary"], *task["models"], *task["partitions"]):
            assert word in printed


def test_settings_lists_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "settings") == default_config()
    assert fairbloom("settings") == 0
    printed = capsys.readouterr().out
    for key, value in default_config().items():
        assert re.search(rf"^ *{re.escape(key)} +{re.escape(repr(value))} +\S", printed, re.MULTILINE), key


# Help ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", GROUP.commands)
def test_every_command_has_a_help_with_a_description(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom(command, "--help") == 0
    printed = capsys.readouterr().out
    assert str(GROUP.commands[command].help).splitlines()[0] in printed
    assert "--help" in printed


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_help_of_commands_that_work_has_an_example_that_is_taken(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fairbloom(command, "--help")
    example = re.search(rf"Example: fairbloom ({command} .+)", capsys.readouterr().out)
    assert example
    _, *words = example[1].split()
    assert GROUP.commands[command].make_context(command, words).params["out"]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("--help") == 0
    printed = capsys.readouterr().out
    assert set(GROUP.commands) == {"run", "compare", "methods", "tasks", "settings", "client", "server", "deploy"}
    assert all(command in printed for command in GROUP.commands)


# --set --------------------------------------------------------------------------------------------------------------


def test_assignments_come_after_options_and_the_last_one_holds() -> None:
    assert merged({"clients": 5, "seed": None}, ["clients = 6", "fedfv.alpha=0.2", "clients=7"]) == {
        "clients": 7,
        "fedfv.alpha": 0.2,
    }
