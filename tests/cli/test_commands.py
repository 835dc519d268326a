"""The command line: what it prints, what it leaves, and its exit codes."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.core import TyperArgument

from fairbloom import __version__
from fairbloom.cli.lists import GROUPS
from fairbloom.cli.main import COMMANDS as LISTED, LateCommand, app
from fairbloom.cli.settings_command import join_words
from fairbloom.experiments.options import StudyOptions, as_settings
from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds.round import Round
from fairbloom.server.run_folder import recorder
from fairbloom.server.run_folder.csv_rows import Row
from fairbloom.server.settings import Settings, default_config, parameters
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS
from tests.commands import fork_workers, forked
from tests.experiments.helpers import ROOT, SMALL, as_json, captured, fairbloom, refusal
from tests.simulation.helpers import Outcome, table

pytestmark = pytest.mark.usefixtures("here")


# Run ----------------------------------------------------------------------------------------------


def test_a_run_is_named_shown_and_not_run_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    words = (
        "run",
        *SMALL,
        "--method",
        "fedfv",
        "--set",
        "fedfv.tau=3",
        "--fraction",
        "0.4",
        "--engine",
        "loop",
    )
    printed = captured(capsys, *words).out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-fedfv-seed0-")
    assert f"run folder: {folder}" in printed
    given = {
        "clients": 5,
        "num-rounds": 3,
        "fraction": 0.4,
        "method": "fedfv",
        "fedfv.tau": 3,
        "engine": "loop",
    }
    assert not Outcome.of(folder).differences(
        Outcome.of(simulate(Settings.of({**given, "device": "cpu", "out": "b"})))
    )
    last = [row for row in table(folder / "clients.csv") if row["round"] == "3"]
    column = "test_accuracy_of_global_model"
    worst = min(last, key=lambda row: float(row[column]))
    assert re.search(
        rf"first: .+\nclient .+\n─+\n{worst['client']} +{float(worst[column]):.1f} ", printed
    )
    assert f"{sum(float(row[column]) for row in last) / 5:.1f}" in printed
    written = (folder / "model.safetensors").stat().st_mtime_ns
    for again in (words, ("show", folder)):
        with subtests.test(again=again):
            assert captured(capsys, *again).out == printed
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert printed.startswith(
        "FedFV (tau=3) on digits\nclients 5, rounds 3, seed 0, state finished, engine "
    )
    for key, value in {
        "clients": 5,
        "num-rounds": 3,
        "score": "accuracy",
        "device": "cpu",
        "fedfv.tau": 3,
    }.items():
        with subtests.test(key=key, value=value):
            assert re.search(rf"^{key} +{value}$", printed, re.MULTILINE)


REFUSED: list[tuple[list[str], tuple[str, ...]]] = [
    (["run", "--method", "fedfvv"], ("method = 'fedfvv'", "did you mean FedFV?")),
    (["run", "--clients", "1000"], ("clients = 1000", "1797 examples")),
    (["run", "--fraction", "-1"], ("fraction = -1",)),
    (["run", "--method", "fedfv", "--set", "fedfv.alpha=2"], ("fedfv.alpha = 2", "[0, 1]")),
    (["run", "--set", "learning-rate=nan"], ("learning-rate = nan", "float above 0")),
    (["run", "--set", "learning-rte=0.1"], ("did you mean learning-rate?",)),
    (["run", "--set", "clients=[5]"], ("clients = ", "[5]")),
    (
        ["run", "--task", "adult", "--set", "test-share=0.3"],
        ("test-share has no effect", "'adult'", "leave it out"),
    ),
    (["run", "--set", "clients"], ("'clients'", "KEY=VALUE")),
    (["run", "--device", "cuda:99"], ("device = 'cuda:99' is not available",)),
    (
        ["run", "--engine", "lop"],
        ("engine = 'lop'", "did you mean loop?", "auto, loop or stacked"),
    ),
    (
        ["run", "--model", "torchvison:resnet18"],
        ("there is no module torchvison", "did you mean torchvision?"),
    ),
    (["run", "--memory", "-1"], ("--memory = -1", "float at least 0")),
    (
        ["run", "--rounds", "10,20"],
        ("--rounds = '10,20'", "fairbloom search --grid num-rounds=10,20"),
    ),
    (["compare", "--fraction", "0,5"], ("--fraction = '0,5'", "a point, 0.5")),
    (
        ["compare", "--engine", "loop", "--set", "engine=auto"],
        ("engine is given two values, 'loop' and 'auto'",),
    ),
    (
        ["run", "--rounds", "5", "--set", "num-rounds=7"],
        ("num-rounds is given two values, 5 and 7: give it one",),
    ),
    (
        ["run", "--set", "seed=1", "--set", "seed=2"],
        ("seed is given two values, 1 and 2: give it one",),
    ),
    (
        ["run", "--method", "fedmgda", "--set", "fedmgda.decay=0.1", "--rounds", "50"],
        ("fedmgda.decay = 0.1 changes nothing in 50 rounds", "lower decay-every, as in 5"),
    ),
    (["run", "--set", "qfedavg.q=2"], ("qfedavg.q has no effect with method = 'fedavg'",)),
    (["walk"], ("walk",)),
    (
        ["compare", "--set", "seed=7"],
        ("seed = 7: a comparison sets seed run by run: give --seed and --seeds instead",),
    ),
    (
        ["compare", "--set", "method=fedfv"],
        ("method = 'fedfv': a comparison sets method", "give --methods instead"),
    ),
    (
        ["compare", "--set", "out=elsewhere"],
        ("out = 'elsewhere': a comparison sets out", "give --out instead"),
    ),
    (
        ["compare", "--set", "adafed.gamma=2"],
        ("adafed.gamma has no effect with method = 'fedavg'", "'qfedavg'"),
    ),
    (["compare", "--seeds", "0"], ("seeds",)),
    (
        ["compare", "--methods", "qfedavg(q=1)", "--set", "qfedavg.q=1"],
        ("qfedavg.q is given twice, in qfedavg(q=1)",),
    ),
    (
        ["compare", "--methods", "fedavg,fedfv", "--baseline", "term"],
        ("baseline = 'term' is not among the methods",),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        ["run", "--set", "momentum=0,0.5"],
        ["compare", "--methods", "fedfv(alpha=0.1,0.5)"],
    ],
)
def test_several_values_are_tried_by_the_search_an_error_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """A comparison's method, too: its error has the name of the method."""
    fork_workers(monkeypatch)
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
    )
    named = re.search(
        r"fairbloom (search .*--grid \S+) tries", captured(capsys, *given, code=2).err
    )
    assert fairbloom(*named[1].split(), *few, "--out", f"a-{given[0]}") == 0


@pytest.mark.parametrize(("words", "expected"), REFUSED)
def test_bad_input_ends_with_2_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: tuple[str, ...]
) -> None:
    printed = captured(capsys, *words, *(["--out", "a"] if words[0] != "walk" else []), code=2)
    assert [word for word in expected if word not in printed.err] == [], words
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_be_no_folder_is_refused_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "locked").mkdir(mode=0o500)
    places = {"x" * 300: "File name too long", "file": "is a file", "file/a/b": "is a file"}
    places |= {"locked/a": "Permission denied"} if os.geteuid() else {}  # root may write anywhere
    for out, fault in places.items():
        with subtests.test(out=out, fault=fault):
            for command in ("run",), ("compare", "--methods", "fedavg", "--seeds", 1):
                assert fault in refusal(capsys, *command, "--out", out)
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "locked"}
    assert (tmp_path / "file").read_text() == "precious"


def before_each_round(act: Callable[[], None]) -> None:
    """Let the runs of this process write each round at once, and do something before they record
    one."""
    record = recorder.RunRecorder.record

    def recorded(self: recorder.RunRecorder, finished: Round, seconds: float) -> Row:
        act()
        return record(self, finished, seconds)

    recorder.SHARED_SECONDS = 0.0
    recorder.RunRecorder.record = recorded  # type: ignore[method-assign]


def run_until_interrupted(rows: str, *words: str) -> None:
    """Run a command in a process of its own to which Ctrl-C comes once a run has written three
    rounds."""

    def interrupt() -> None:
        if Path(rows).exists() and len(Path(rows).read_bytes().splitlines()) > 3:
            signal.raise_signal(signal.SIGINT)

    before_each_round(interrupt)
    sys.exit(fairbloom(*words))


def test_an_interrupted_run_ends_with_130_and_can_be_finished(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    words = ["run", "--clients", "5", "--rounds", "10", "--device", "cpu", "--method", "fedfv"]
    rows = tmp_path / "a" / "rounds.csv"
    ended = forked(ROOT, run_until_interrupted, str(rows), *words, "--out", str(tmp_path / "a"))
    assert ended.returncode == 130
    assert (
        ended.stderr
        == "interrupted: the same command begins again; a run continues after its last finished"
        " round\n"
    )
    assert ended.stdout == ""
    assert len(rows.read_bytes().splitlines()) > 3
    assert not (tmp_path / "a" / "model.safetensors").exists()
    for out in ("a", "b"):
        with subtests.test(out=out):
            assert fairbloom(*words, "--out", tmp_path / out) == 0
    assert not Outcome.of(tmp_path / "a").differences(Outcome.of(tmp_path / "b"))


def test_version_prints_the_version_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert captured(capsys, "--version") == (f"fairbloom {__version__}\n", "")


# What there is to choose from ---------------------------------------------------------------------


def test_every_method_is_listed_with_parameters_and_source(
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    described = as_json(capsys, "methods")
    assert [method["name"] for method in described] == list(METHODS)
    for method in described:
        with subtests.test(method=method):
            assert method["summary"]
            assert re.search(r"\b(19|20)\d\d\b", method["source"]), (
                f"{method['name']}'s source has no year"
            )
    assert {parameter["key"] for method in described for parameter in method["parameters"]} == {
        key for key, parameter in parameters().items() if parameter.owner in METHODS
    }
    assert all(parameter["range"] for method in described for parameter in method["parameters"])


def test_tasks_lists_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    described = as_json(capsys, "tasks")
    assert [task["name"] for task in described] == list(TASKS)
    assert all(task["summary"] and task["models"] for task in described)


def test_data_are_shown_client_by_client_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "basel.csv").write_text("age,bmi,target\n" + "50,20,1\n40,30,0\n" * 5)
    (tmp_path / "h" / "lund.csv").write_text("age,bmi\n50,20\n")
    printed = captured(capsys, "data", "h", code=1).out
    assert re.search(r"^lund +lund.csv +target +has no column 'target'", printed, re.MULTILINE)
    assert re.search(r"^age +number +40 to 50, median 50", printed, re.MULTILINE)
    every = captured(capsys, "data", "h", "--every-client", code=1).out
    assert re.search(r"^age +basel +40 to 50", every, re.MULTILINE)
    assert fairbloom("data", "h", "--json") == 1
    assert [row["client"] for row in json.loads(capsys.readouterr().out)["clients"]] == [
        "basel",
        "lund",
    ]
    assert re.search(
        r"^client-0 +480 +120$",
        captured(capsys, "data", "--task", "digits", "--set", "clients=3").out,
        re.MULTILINE,
    )
    assert "no such folder" in refusal(capsys, "data", "nowhere")
    assert fairbloom("data", "--task", "csv", "--data-dir", "h") == 1  # as run takes the folder
    assert "basel" in capsys.readouterr().out
    assert "data-dir is given two values" in refusal(capsys, "data", "h", "--data-dir", "other")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "h"]


@pytest.mark.parametrize("others", [1, 30])
def test_data_name_the_clients_that_no_device_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], others: int
) -> None:
    (tmp_path / "h").mkdir()
    for name in ("Genève", *(f"Basel-{k}" for k in range(others))):
        (tmp_path / "h" / f"{name}.csv").write_text("age,target\n" + "50,1\n40,0\n" * 5)
    assert (
        "fairbloom deploy enroll refuses Genève: use up to 63 letters from A to Z, digits, dots,"
        " dashes and underscores\n"
    ) in captured(capsys, "data", "h").out
    (tmp_path / "h" / "Genève.csv").unlink()
    assert "enroll" not in captured(capsys, "data", "h").out


def test_data_of_many_clients_are_shown_in_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    lines = [
        f"s{site:03},{50 + row},{row % 9}.5,{row % 2}"
        for site in range(200)
        for row in range(6 + site % 40)
    ]
    lines = [line.replace("8.5", "8;5") for line in lines[:-1]] + ["s199,1 020,old,1"]
    (tmp_path / "all.csv").write_text("\n".join(["site,age,dose,target", *lines]))
    words = ("data", "all.csv", "--set", "csv.client=site")
    printed = captured(capsys, *words, code=1).out
    assert len(printed.splitlines()) < 40
    for pattern in (
        "smallest +s000 +5 +1",
        "largest +s162 +7 +1",
        "all +15 clients +90 +15",
        r"s003, s004, s005 and 182 more +all.csv +\d+ to \d+, \d+ more +dose +8;5 +which is not",
        "age +number",
    ):
        with subtests.test(pattern=pattern):
            assert re.search(rf"^{pattern}", printed, re.MULTILINE), printed
    assert len(captured(capsys, *words, "--every-client", code=1).out.splitlines()) > 600


@pytest.mark.parametrize("command", ["run", "compare", "search"])
def test_a_folder_and_a_schema_mean_tables(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("schema.toml").write_text("target = 1\n")
    words = (command, "--data-dir", "h", "--schema", "schema.toml")
    assert "schema.toml: target = 1" in refusal(capsys, *words)
    assert "schema: task digits" in refusal(capsys, *words[:1], *words[3:])


# Settings that are given as options, and what is said.
MISSPELT = {
    "--learning-rate": "write --set learning-rate=VALUE",
    "--server_optimizer=adam": "write --set server-optimizer=VALUE",
    "--fedlf.server-lr": "write --set fedlf.server-lr=VALUE",
    "--server-optimzer=adam": "did you mean --set server-optimizer=VALUE?",
    "--fedlf.server-rl": "did you mean --set fedlf.server-lr=VALUE?",
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            ((command, option, "3"), said)
            for command in ("run", "compare", "search", "reproduce", "data")
            for option, said in MISSPELT.items()
        ),
        *(
            ((command, other, "a,b"), f"No such option '{other}': write {right}.")
            for command, other, right in (
                ("compare", "--method", "--methods"),
                ("run", "--methods", "--method"),
                ("search", "--method", "--methods"),
                ("reproduce", "--method", "--rows"),
                ("run", "--seeds", "--seed"),
                ("reproduce", "--seed", "--seeds"),
            )
        ),
        (("run", "--rouns", "3"), "id you mean"),
        (("run", "--data_dir", "3"), "write --data-dir"),
        (("reprot",), "Did you mean"),
        (("deploy", "statu"), "Did you mean"),
    ],
)
def test_wrong_options_are_refused_with_the_way_to_give_them(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    told = " ".join(captured(capsys, *words, code=2).err.replace("│", " ").split())
    assert said in told, words
    assert told.count("Did you mean") <= 1, words


def test_settings_of_a_name_and_a_name_that_none_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "settings") == default_config()
    assert {*as_json(capsys, "settings", "qfedavg", "learning_rate")} == {
        "qfedavg.q",
        "qfedavg.lipschitz",
        *[key for key in default_config() if "learning-rate" in key],
    }
    assert captured(capsys, "settings", "qfedavg").out.startswith("\nqfedavg\nqfedavg.q = ")
    assert fairbloom("settings", "rounds", "timeout") == 0
    shown = [
        line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")
    ]
    assert [line.partition(" = ")[0] for line in shown[:4]] == [
        *(GROUPS["num-rounds"], "num-rounds"),
        *(GROUPS["round-timeout"], "round-timeout"),
    ]
    assert GROUPS.keys() <= SETTINGS.keys()
    lists = (captured(capsys, words).out for words in ("settings", "methods", "tasks"))
    assert max(len(line) for text in lists for line in text.splitlines()) <= 110
    assert "did you mean learning-rate" in captured(capsys, "settings", "lerning-rate", code=2).err


# Help ---------------------------------------------------------------------------------------------


def command_called(name: str) -> click.Command:
    late = typer.main.get_group(app).commands[name]
    assert isinstance(late, LateCommand)
    return late.imported()


@pytest.mark.parametrize(("command", "listed"), LISTED.items())
def test_a_commands_help_begins_as_it_is_listed(
    capsys: pytest.CaptureFixture[str], command: str, listed: object
) -> None:
    printed = captured(capsys, command, "--help").out
    assert [
        words for words in (listed.summary, listed.example, "--help") if words not in printed
    ] == []
    assert str(command_called(command).help).splitlines()[0] == listed.summary
    if command in ("run", "compare"):  # the example is taken
        _, _, *words = listed.example.split()
        assert command_called(command).make_context(command, words).params["out"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show", "The folder of a run or a study"),
        ("client keys", "Name of this client in the"),
    ],
)
def test_help_says_what_each_argument_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = [each for name in LISTED for each in commands_in(command_called(name))]
    arguments = [
        each for command in commands for each in command.params if isinstance(each, TyperArgument)
    ]
    assert len(arguments) > 20
    assert [each.name for each in arguments if not each.help] == []
    assert said in captured(capsys, *words.split(), "--help").out


def commands_in(command: click.Command) -> Iterator[click.Command]:
    yield command
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from commands_in(each)


@pytest.mark.parametrize("command", ["run", "compare", "search"])
def test_common_options_say_what_their_settings_do(command: str) -> None:
    common = [*StudyOptions.__annotations__]
    offered = {
        each.name: each for each in command_called(command).params if isinstance(each, click.Option)
    }
    assert [name for name in offered if name in common] == common
    for name in {*common} - {"data_dir"}:
        (key,) = as_settings({name: None})
        assert str(offered[name].help).startswith(SETTINGS[key].description)


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("--methods fedavg, fedfv term --seeds 2", "--methods fedavg,fedfv,term --seeds 2"),
        ("--methods fedavg --runs a b --seed 1", "--methods fedavg --runs a --runs b --seed 1"),
        ("--methods=fedavg fedfv --runs=a b", "--methods=fedavg,fedfv --runs=a --runs b"),
        ("data --out x", "data --out x"),
    ],
)
def test_words_that_a_shell_separates_are_one_list(words: str, joined: str) -> None:
    assert join_words(words.split()) == joined.split()
