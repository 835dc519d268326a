"""`compare --app` and `search --app`: the methods of a study in a user's own Flower app."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from benchmarks.flower import Flower, flower, wait_until
from fairbloom.client.fair.training import SUPPORTED
from fairbloom.client.rules.registry import kinds_of
from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.api import compare, load, search
from fairbloom.experiments.apps import App, AppRun, read_app
from fairbloom.experiments.arms import APP_METHODS, METHODS, Arm, parse_arms
from fairbloom.experiments.pages.search import page_of_search
from fairbloom.experiments.results.search import Search
from fairbloom.experiments.studies import app_process
from fairbloom.experiments.studies.app_process import check_begun, run_app
from fairbloom.experiments.studies.pool import check_runs
from fairbloom.experiments.studies.running import study_folder
from fairbloom.experiments.studies.search import arms_of
from fairbloom.experiments.study import Study, find_study
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import Value
from fairbloom.scaffold.new import TEMPLATE
from fairbloom.server.run_folder.files import CONFIG, SCORES
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.strategies import find_method

from ..helpers import as_json, captured, fairbloom, refusal, start, times_in

PROJECT = """\
[project]
name = "tiny"
version = "1.0"

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "tiny.server:app"
clientapp = "tiny.client:app"

[tool.flwr.app.config]
out = "runs/tiny"
method = "fedavg"
num-rounds = 3
clients = 4
seed = 0
rate = 0.5
fast = false

[tool.flwr.app.config.work]
epochs = 1
"""

SERVER = """\
import numpy as np
from fairbloom import RunFolder
from fairbloom.strategies import from_config
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    print("the app is fast:", config["fast"])
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    RunFolder(config["out"], score="eval_acc").start(
        from_config(config), grid, arrays, config["num-rounds"]
    )
"""

CLIENT = """\
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    model = message.content["arrays"]["w"].numpy()
    target = np.eye(3, dtype=np.float32)[int(context.node_config["partition-id"]) % 3]
    step = context.run_config["rate"] / context.run_config["work.epochs"] * (target - model)
    metrics = MetricRecord({"num-examples": 10, "loss-before": float(np.square(step).sum())})
    after = ArrayRecord({"w": Array((model + step).astype(np.float32))})
    return Message(RecordDict({"arrays": after, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    target = np.eye(3, dtype=np.float32)[int(context.node_config["partition-id"]) % 3]
    away = float(np.abs(message.content["arrays"]["w"].numpy() - target).sum())
    metrics = MetricRecord({"num-examples": 5, "eval_acc": 1.0 / (1.0 + away)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message, context):
    about = ConfigRecord({"name": f"site-{context.node_config['partition-id']}"})
    return Message(RecordDict({"client": about}), reply_to=message)
"""

QUIET: dict[str, Any] = {"progress": False, "jobs": 2}


@pytest.fixture
def app(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder tiny-app, with the template's __main__.py and a model of three numbers."""
    folder = here / "tiny-app"
    (folder / "tiny").mkdir(parents=True)
    main = (TEMPLATE / "my_app" / "__main__.py").read_text().replace("my_app", "tiny")
    for old, new in (("client_app", "client"), ("server_app", "server")):
        main = main.replace(old, new)
    files = {"__init__.py": "", "__main__.py": main, "server.py": SERVER, "client.py": CLIENT}
    for name, text in files.items():
        (folder / "tiny" / name).write_text(text)
    (folder / "pyproject.toml").write_text(PROJECT)
    monkeypatch.setattr(sys, "path", [*sys.path])  # which a search for a method extends
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny"]:
        del sys.modules[name]


def change(app: Path, file: str, before: str, after: str) -> None:
    text = (app / file).read_text()
    assert before in text
    (app / file).write_text(text.replace(before, after))


def read(app: Path, methods: str = "fedavg", **given: Value) -> tuple[App, dict[str, Value]]:
    return read_app(app, {key.replace("_", "-"): value for key, value in given.items()}, methods)


def plan(app: Path, method: str = "fedfv(alpha=0.25)", out: str = "run", **given: Value) -> AppRun:
    """Return a run of an app with seed 5."""
    read_in, settings = read(app, method, **given)
    (arm,) = parse_arms(method)
    return read_in.run({**settings, **arm.config, "seed": 5, "out": str(app.parent / out)})


# The run config -----------------------------------------------------------------------------------


def test_a_run_has_its_method_seed_rounds_and_folder(app: Path, tmp_path: Path) -> None:
    given: dict[str, Value] = {"rate": 1, "num-rounds": 9, "fedfv.alpha": 0.25, "work.epochs": 2}
    read_in, settings = read_app(app, given, "fedfv(order=reverse),fedavg")
    assert set(read_in.code) == {"tiny", "tiny.server", "tiny.client"}
    arms = parse_arms("fedfv(order=reverse),fedavg")
    study = Study("compare", arms, [7], arms[0].label, settings, app=read_in)
    of_fedfv, of_fedavg = study.runs(tmp_path).values()
    assert of_fedfv.config == {  # type: ignore[union-attr]
        "out": str(tmp_path / "runs/fedfv-order=reverse-seed7"),
        "method": "fedfv (alpha=0.25, order=reverse)",
        "num-rounds": 9,
        "clients": 4,
        "seed": 7,
        "rate": 1.0,
        "fast": False,
        "work.epochs": 2,
    }
    assert (of_fedavg.method, of_fedavg.num_rounds) == ("fedavg", 9)


def test_python_m_gets_only_what_differs(app: Path) -> None:
    package, *words = app_process._command_of(plan(app, "fedavg(proximal-mu=0.1)", fast=True))
    assert package == "tiny"
    assert set(words) == {
        "fast=true",
        "num-rounds=3",
        "seed=5",
        f"out={app.parent / 'run'}",
        "method=fedavg (proximal-mu=0.1)",
    }


def test_rounds_may_have_flowers_name(app: Path) -> None:
    change(app, "pyproject.toml", "num-rounds = 3", "num-server-rounds = 3")
    assert plan(app).num_rounds == 3
    assert plan(app, num_rounds=8).changed["num-server-rounds"] == 8


def test_keys_may_be_written_with_underscores(app: Path) -> None:
    change(app, "pyproject.toml", "rate = 0.5", "learning_rate = 0.5")
    assert plan(app, learning_rate=0.25).changed["learning_rate"] == 0.25
    assert plan(app, "fedavg(learning-rate=0.125)").changed["learning_rate"] == 0.125


def test_an_option_of_the_run_config_is_set_there(app: Path) -> None:
    change(app, "pyproject.toml", "rate = 0.5", "rate = 0.5\nproximal-mu = 0.5")
    run = plan(app, "fedavg(proximal-mu=0.25)")
    assert (run.method, run.changed["proximal-mu"]) == ("fedavg", 0.25)
    assert plan(app, "fedavg", proximal_mu=0.125).config["proximal-mu"] == 0.125


def test_a_method_of_the_apps_own_is_found_in_it(app: Path) -> None:
    (app / "tiny" / "mine.py").write_text(
        "from fairbloom.strategies import FedAvg\n\n\nclass Mine(FedAvg):\n    '''Mine.'''\n"
    )
    run = plan(app, "tiny.mine:Mine")
    assert type(run.strategy()).__name__ == "Mine"


def test_default_methods_of_apps_are_those_that_fair_supports() -> None:
    supported = []
    for name in METHODS.split(","):
        terms = find_method(name)().terms(1)
        if not SUPPORTED.find_unsupported(terms, [kind(terms) for kind in kinds_of(terms)]):
            supported.append(name)
    assert ",".join(supported) == APP_METHODS


def test_a_study_of_an_app_has_its_settings_alone(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compare_arms", "search_arms"):
        monkeypatch.setattr(api, name, lambda study, *others: study)
    compared: Any = compare(app=app, rounds=9, progress=False)
    searched: Any = search(app=app, rounds=9, progress=False)
    for study in (compared, searched):
        assert {arm.method for arm in study.arms} == {*APP_METHODS.split(",")}
        assert study.settings == {"num-rounds": 9}
        assert study.app.given == {"num-rounds": 9}
    assert searched.app == replace(compared.app, needs_validation=True)


# What is refused before a run starts --------------------------------------------------------------

REFUSED = {
    ("--app", "nowhere"): "nowhere/pyproject.toml is not that of a Flower app of yours: name the",
    ("--task", "digits"): "unknown setting task = 'digits': [tool.flwr.app.config] in",
    ("--set", "rat=1"): "unknown setting rat = 1: did you mean rate? [tool.flwr.app.config] in",
    ("--set", "rate=fast"): "rate = 'fast': it must be of type float, as its default in [tool.flwr",
    ("--set", "fedfv.alpha=0.1"): "unknown setting fedfv.alpha = 0.1: [tool.flwr.app.config] in",
    (
        "--set",
        "seed=1",
    ): "seed = 1: a comparison of an app's runs sets seed run by run: give --seed",
    ("--methods", "fedavg(momentum=0.9)"): "unknown setting momentum = 0.9: [tool.flwr.app.con",
    ("--methods", "fedavgg"): "method = 'fedavgg': unknown method: did you mean FedAvg?",
    ("--methods", "fedavg(rate=1)"): "fedavg(rate=1): FedAvg has no parameter rate",
    ("--seeds", "0"): "seeds = 0: a comparison takes at least one",
    ("--runs", "runs/a"): "app has no effect with --runs, as these runs have theirs",
}


@pytest.mark.parametrize(("words", "said"), REFUSED.items())
def test_a_fault_is_said_before_a_run_starts(
    app: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    line = refusal(capsys, "compare", "--app", "tiny-app", "--methods", "fedavg", *words)
    assert line.startswith(f"error: {said}") or said in line
    assert [path.name for path in app.parent.iterdir()] == ["tiny-app"]


REFUSED_BY_SEARCH = {
    ("--grid", "rat=1"): "grid: rat is not a parameter of FedAvg: did you mean rate?",
    ("--grid", "rate=fast,slow"): "rate = 'fast': it must be of type float",
    ("--grid", "clients=3,4"): "arms would be judged by other examples with other values of client",
    ("--grid", "seed=1,2"): "grid: a search sets seed run by run",
    (
        "--grid",
        "rate=1,2",
        "--criterion",
        "group-gap:loss",
    ): "an app's runs have no groups of example",
    ("--flwr",): "there is nothing to choose from but FedAvg: name more --methods",
}


@pytest.mark.parametrize(("words", "said"), REFUSED_BY_SEARCH.items())
def test_a_search_says_a_fault_before_a_run_starts(
    app: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in refusal(capsys, "search", "--app", "tiny-app", "--methods", "fedavg", *words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", [compare, search])
def test_arguments_of_another_kind_of_run_are_refused(app: Path, command: Any) -> None:
    with pytest.raises(FairbloomError, match="flwr starts runs of a Flower app: name its folder"):
        command(flwr=True)
    with pytest.raises(FairbloomError, match="an app loads its own data: leave data and target"):
        command(app=app, data={"north": None})
    with pytest.raises(FairbloomError, match="an app loads its own data"):
        command(app=app, target="cured")
    assert not Path("runs").exists()


MALFORMED = {
    "no TOML": ("[project]", "[project", "cannot be read"),
    "no app": ("tool.flwr.app", "tool.other", "is not that of a Flower app of yours"),
    "an app of another form": (
        "[tool.flwr.app]",
        "[[tool.flwr.app]]",
        "cannot be read|is not that",
    ),
    "no serverapp": ("serverapp", "server", "lacks 'serverapp': a run needs"),
    "no version": ("version", "release", "lacks 'version': a run needs"),
    "no method": (
        'method = "fedavg"\nnum-rounds = 3\n',
        "",
        r'lacks method = "fedavg", num-rounds = 20, which a study sets in each run: add it there',
    ),
    "no package": (
        '"tiny.server',
        '"server',
        "server has no __main__.py, which python -m server",
    ),
}


@pytest.mark.parametrize(("before", "after", "said"), MALFORMED.values(), ids=MALFORMED)
def test_a_pyproject_that_fits_no_study_has_a_remedy(
    app: Path, before: str, after: str, said: str
) -> None:
    change(app, "pyproject.toml", before, after)
    with pytest.raises(FairbloomError, match=said):
        read(app)


def test_without_a_main_flwr_run_remains(app: Path) -> None:
    (app / "tiny" / "__main__.py").unlink()
    with pytest.raises(FairbloomError, match=r"no __main__.py, .* or give --flwr to start runs"):
        read(app)
    read_in, _ = read_app(app, {}, "fedavg", flwr=True)
    assert read_in.flwr


def test_what_a_script_defines_is_unknown_to_the_app(app: Path) -> None:
    run = plan(app)
    of_script = replace(run, changed={**run.changed, "method": "__main__:Mine"})
    with pytest.raises(FairbloomError, match="the app's processes do not see"):
        check_runs({"runs/mine-seed0": of_script})


# What a run folder must record --------------------------------------------------------------------


def record(run: AppRun, **changed: object) -> None:
    settings = {"method": "FedFV", "alpha": 0.25, "seed": 5, "num-rounds": 3, **changed}
    Path(run.out).mkdir(exist_ok=True)
    SCORES.write(Path(run.out), [Score("eval_acc", True)])
    CONFIG.write(Path(run.out), RecordedSettings(settings))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"method": "FedAvg"}, "method = 'FedAvg', and not 'FedFV'"),
        ({"seed": 1}, "seed = 1, and not 5"),
        ({"alpha": 0.1}, "alpha = 0.1, and not 0.25"),
    ],
)
def test_another_run_than_the_run_config_says_is_noticed(
    app: Path, other: dict[str, object], said: str
) -> None:
    run = plan(app)
    check_begun(run)
    record(run)
    check_begun(run)
    app_process._check_recorded(run)
    record(run, **other)
    with pytest.raises(FairbloomError, match=f"run holds a run with {said}: choose another folder"):
        check_begun(run)
    with pytest.raises(FairbloomError, match=f"trains with {said} as its run config says: make"):
        app_process._check_recorded(run)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("", "a search chooses by validation examples, and the app's eval_acc is of test examples"),
        ("eval_acc", "eval_acc is of test examples: let its clients reply"),
        ("val_loss", "best_model = 'val_loss' is of another kind than eval_acc"),
        ("val_acc", ""),
        ("val_wishes", ""),
    ],
)
def test_a_search_needs_a_score_of_validation_examples(app: Path, metric: str, said: str) -> None:
    run = plan(app)
    record(run, **{"validation-metric": metric})
    app_process._check_recorded(run)
    searched = replace(run, app=replace(run.app, needs_validation=True))
    context = pytest.raises(FairbloomError, match=said) if said else contextlib.nullcontext()
    with context:
        app_process._check_recorded(searched)


def test_a_folder_keeps_the_code_and_settings_of_its_runs(app: Path) -> None:
    def begin(**given: Value) -> None:
        read_in, settings = read(app, **given)
        study = Study("compare", [Arm("FedAvg", "fedavg")], [0], "FedAvg", settings, app=read_in)
        with study_folder(study, app.parent / "out"):
            pass

    begin()
    change(app, "tiny/client.py", '"num-examples": 10', '"num-examples": 9')
    begin(rate=0.25)  # as no round is recorded
    (app.parent / "out/runs/fedavg-seed0/checkpoint").mkdir(parents=True)
    begin(rate=0.25)
    (app.parent / "out/runs/fedavg-seed0/checkpoint/1.safetensors").touch()
    begin(rate=0.25, num_rounds=9)
    with pytest.raises(FairbloomError, match=r"begun with rate = 0\.25, and not 0\.5: choose"):
        begin()
    with pytest.raises(FairbloomError, match="begun with clients = 4, and not 5: choose another"):
        begin(rate=0.25, clients=5)
    (app / "tiny/more.py").touch()
    change(app, "tiny/client.py", '"num-examples": 9', '"num-examples": 8')
    with pytest.raises(FairbloomError, match=r"app has changed since .* \(tiny.client\): choose"):
        begin(rate=0.25)


def test_a_folder_holds_runs_of_an_app_or_of_a_task(app: Path) -> None:
    read_in, settings = read(app)
    of_app = Study("compare", [Arm("FedAvg", "fedavg")], [0], "FedAvg", settings, app=read_in)
    of_app.write(app.parent / "out")
    assert find_study(app.parent / "out").app == read_in
    with pytest.raises(FairbloomError, match="holds a comparison of an app's runs: choose another"):
        compare(seeds=1, out="out", **QUIET)


# Searches -----------------------------------------------------------------------------------------


def test_a_search_tries_values_of_the_run_config(app: Path) -> None:
    read_in, settings = read(app, "fedfv,fedavg")
    grid: dict[str, list[Value]] = {"rate": [1, 0.25], "alpha": [0.5]}
    assert [arm.label for arm in arms_of("fedfv", grid, "fedavg", settings, read_in)] == [
        "FedFV (alpha=0.5, rate=1)",
        "FedFV (alpha=0.5, rate=0.25)",
        "FedAvg (rate=1)",
        "FedAvg (rate=0.25)",
    ]
    rounds = arms_of("fedavg", {"num-rounds": [2, 4]}, "fedavg", settings, read_in)
    assert [arm.config["num-rounds"] for arm in rounds] == [2, 4]


def test_the_page_of_a_search_names_the_app(app: Path) -> None:
    read_in, settings = read(app)
    study = Study("search", [], [0], "fedavg", settings, criterion="worst", app=read_in)
    assert page_of_search(Search(study, [], ACCURACY)).title == "Search in tiny-app"


# Processes ----------------------------------------------------------------------------------------

# An app that needs no library: it does what `how` says.
STAND_IN = """
import os, pathlib, signal, sys, time
config = dict(word.split("=", 1) for word in sys.argv[1:])
print("thread:", os.environ["OMP_NUM_THREADS"], "reads:", sys.stdin.read() == "")
folder = pathlib.Path(config["out"])
folder.mkdir()
method = {"other": "FedAvg"}.get(config["how"], "FedFV")
(folder / "config.toml").write_text(
    f'run-folder-format = FORMAT\\nmethod = "{method}"\\nalpha = 0.25\\nseed = 5\\nnum-rounds = 3'
)
match config["how"]:
    case "raises":
        raise KeyError("nowhere")
    case "says":
        sys.exit("error: it says why")
    case "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "other" | "waits":
        print(os.getpid(), flush=True)
        time.sleep(600)
    case "finishes" | "fails later":
        (folder / "model.safetensors").touch()
        sys.exit(int(config["how"] == "fails later"))
"""

ENDS = {
    "raises": r"^KeyError: 'nowhere' \(exit code 1\); all its output is in .*run.log$",
    "says": r"^error: it says why \(exit code 1\); all its output is in .*run.log$",
    "is killed": r"\(killed by SIGKILL by the system, as when memory runs short: lower --jobs\)",
    "other": "the ServerApp trains with method = 'FedAvg', and not 'FedFV'",
    "nothing": "the app has ended without a finished run of 3 rounds in .*run: correct an error",
}


@pytest.fixture
def stand_in(app: Path) -> Path:
    source = STAND_IN.replace("FORMAT", str(RecordedSettings().format))
    (app / "tiny" / "__main__.py").write_text(source)
    change(app, "pyproject.toml", "rate = 0.5", 'rate = 0.5\nhow = ""')
    return app


@pytest.mark.slow
def test_how_an_app_fails_is_said_with_its_log(stand_in: Path, subtests: pytest.Subtests) -> None:
    for how, said in ENDS.items():
        with subtests.test(how=how):
            shutil.rmtree("run", ignore_errors=True)
            with pytest.raises(FairbloomError, match=said):
                run_app(plan(stand_in, how=how))
            assert Path("run.log").read_text().startswith("thread: 1 reads: True\n")


@pytest.mark.slow
def test_a_finished_run_counts_however_the_app_ends(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for how in ("finishes", "fails later"):
        with subtests.test(how=how):
            shutil.rmtree("run", ignore_errors=True)
            run_app(plan(stand_in, how=how))
            assert Path("run.log").read_text().startswith("thread: 3 ")


def is_there(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "tiny" in Path(f"/proc/{pid}/cmdline").read_text()
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("to", ["all", "the command"])
def test_no_app_outlives_its_comparison(stand_in: Path, number: int, to: str) -> None:
    """Ctrl-C goes to all processes of a terminal; a system kills one."""
    words = ("--set", "how=waits", "--seeds", 2, "--jobs", 2, "--out", stand_in.parent / "out")
    command = start(
        "compare", "--app", stand_in, "--methods", "fedavg", *words, start_new_session=True
    )
    logs = [stand_in.parent / f"out/runs/fedavg-seed{seed}.log" for seed in range(2)]

    def begun() -> bool:
        return all(log.exists() and log.read_text().count("\n") > 1 for log in logs)

    try:
        wait_until(lambda: command.poll() is not None or begun(), lambda: "no app has begun")
        apps = [int(log.read_text().split()[-1]) for log in logs]
        assert all(map(is_there, apps))
        if to == "all":
            os.killpg(command.pid, number)
        else:
            command.send_signal(number)
        _, said = command.communicate(timeout=300)
        wait_until(lambda: not any(map(is_there, apps)), lambda: "an app lives on")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    if number == signal.SIGINT:
        assert command.returncode == 130
        assert said.startswith("interrupted: the same command begins again")
        assert said.count("\n") == 1


# Whole studies ------------------------------------------------------------------------------------

WORDS = (
    *("compare", "--app", "tiny-app", "--methods", "fedavg,fedfv(alpha=0.25)"),
    *("--set", "fast=true", "--out", "all"),
)


@pytest.mark.slow
def test_a_comparison_is_extended_and_shown(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = captured(capsys, *WORDS, "--seeds", 1).out
    assert printed.startswith("2 methods compared\nbaseline FedAvg, clients 4, seeds 1, rounds 3\n")
    assert "local needs a task of yours in place of an app" in printed
    assert "the app is fast" not in printed
    assert "the app is fast: True" in Path("all/runs/fedavg-seed0.log").read_text()
    written = times_in(Path("all/runs"))
    more = as_json(capsys, *WORDS, "--seeds", 2)
    assert more["seeds"] == [0, 1]
    assert as_json(capsys, "show", "all") == more
    assert written.items() <= times_in(Path("all/runs")).items()  # finished runs are not repeated
    of_runs = compare(runs="all/runs/*", out="again", progress=False)
    assert of_runs.methods == ("FedAvg", "FedFV (alpha=0.25)")
    given = {"methods": "fedavg", "seeds": 2, "settings": {"fast": True}}
    compare(app=app, rounds=5, out="all", **given, **QUIET)
    assert [load(f"all/runs/fedavg-seed{seed}").rounds_done for seed in range(2)] == [5, 5]


@pytest.mark.slow
def test_a_killed_comparison_continues_to_the_same_bits(app: Path) -> None:
    """The same command, with a second seed."""
    change(app, "tiny/client.py", "    model =", "    time.sleep(0.05)\n    model =")
    change(app, "tiny/client.py", "import numpy", "import time\n\nimport numpy")
    words = ("compare", "--app", app, "--methods", "fedavg", "--rounds", 9)
    run = app.parent / "killed/runs/fedavg-seed0"
    rounds = run / "rounds.csv"

    def recorded() -> int:
        return rounds.read_text().count("\n") - 1 if rounds.exists() else 0

    command = start(*words, "--seeds", 1, "--out", run.parents[1], start_new_session=True)
    wait_until(lambda: command.poll() is not None or recorded() > 2)
    os.killpg(command.pid, signal.SIGKILL)
    command.communicate()
    assert not (run / "model.safetensors").exists()
    for out in ("killed", "whole"):
        assert fairbloom(*words, "--seeds", 2, "--out", out) == 0
    for seed in range(2):
        models = [
            load_file(f"{out}/runs/fedavg-seed{seed}/model.safetensors")["w"].tobytes()
            for out in ("killed", "whole")
        ]
        assert models[0] == models[1]
    for table in ("clients.csv", "comparison.csv"):
        assert Path("killed", table).read_text() == Path("whole", table).read_text()


@pytest.mark.slow
def test_a_method_that_fails_is_named_and_others_go_on(app: Path) -> None:
    compared = compare(app=app, methods="fedavg,ditto,fedfv", seeds=1, out="all", **QUIET)
    assert compared.methods == ("FedAvg", "FedFV")
    assert compared.failed == {"Ditto": "failed with 1 of 1 seeds"}
    (said,) = [each for each in compared.caveats if each.startswith("Ditto with seed 0: ")]
    assert "the client does not support personal-lambda = 1.0" in said
    assert said.endswith(f"all its output is in {app.parent / 'all/runs/ditto-seed0.log'}.")


@pytest.mark.slow
def test_clients_that_change_their_rows_are_no_pair(app: Path) -> None:
    change(
        app,
        "tiny/client.py",
        '"num-examples": 5',
        '"num-examples": len(context.run_config["method"])',
    )
    with pytest.raises(FairbloomError, match=r"in one of them site-0, .* had other rows"):
        compare(app=app, methods="fedavg,fedmgda", seeds=1, out="all", **QUIET)


@pytest.mark.slow
def test_a_search_chooses_by_validation_and_tests_afresh(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is worse on test examples is better on validation examples here."""
    words = ("search", "--app", "tiny-app", "--methods", "fedavg", "--criterion", "mean")
    words = (*words, "--grid", "rate=0.02,0.5", "--seeds", "1", "--out")
    said = captured(capsys, *words, "first", code=2).err
    assert "chooses by validation examples, and the app's eval_acc is of test examples: let" in said
    assert "best_model='val_acc'), and search in another folder (--out)" in said
    words = (*words, "found")
    change(app, "tiny/server.py", 'score="eval_acc"', 'score="eval_acc", best_model="val_acc"')
    accuracy = '"eval_acc": 1.0 / (1.0 + away)'
    change(
        app, "tiny/client.py", accuracy, f'{accuracy}, "val_acc": 1.0 - context.run_config["rate"]'
    )
    found = as_json(capsys, *words)
    values = {each["arm"]: each["validation"] for each in found["arms"]}
    last = load("found/runs/fedavg-rate=0.02-seed0").metrics
    last = last[(last["round"] == 3) & (last["metric"] == "val_acc") & (last["client"] != "")]
    assert values["FedAvg (rate=0.02)"] == pytest.approx(last["value"].mean())
    assert found["best"] == "FedAvg (rate=0.02)" == max(values, key=lambda arm: values[arm])
    assert found["fresh"] == [1000]
    assert found["comparison"]["seeds"] == [1000]
    assert as_json(capsys, *words) == found
    assert as_json(capsys, "show", "found") == found


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flower]:
    """Flower's own home and SuperLink, which end with the test."""
    with flower(tmp_path / "home") as runtime:
        for name in runtime.environment.keys() - os.environ.keys():
            monkeypatch.setenv(name, runtime.environment[name])
        runtime.start_local()
        yield runtime


@pytest.mark.slow
def test_flwr_run_gives_the_same_comparison(app: Path, local: Flower) -> None:
    given = {"app": app, "methods": "fedfv(alpha=0.25)", "seeds": 1, "progress": False}
    there = compare(**given, flwr=True, out="there")
    here = compare(**given, out="here")
    assert there.failed == {}
    assert there.methods == here.methods == ("FedFV (alpha=0.25)",)
    assert there.values[here.baseline][0] == pytest.approx(here.values[here.baseline][0])
    change(app, "tiny/server.py", "    print(", "    raise KeyError('nowhere')\n    print(")
    with pytest.raises(FairbloomError, match="ended without a finished run of 3 rounds"):
        compare(**given, flwr=True, out="failing")
    (log,) = Path("failing/runs").glob("*.log")
    assert "KeyError: 'nowhere'" in log.read_text()
