"""`fairbloom compare --app`: the methods of a comparison in a user's own Flower app."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import compare, load
from fairbloom.experiments.apps import read_app
from fairbloom.experiments.arms import parse_arms
from fairbloom.experiments.results.caveats import caveats_of_data
from fairbloom.experiments.study import Study
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.simulation.app import run_app
from tests.client import changed

from ..helpers import as_json, captured

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

[tool.flwr.app.config.work]
epochs = 1
"""

SERVER = """\
import numpy as np
from fairbloom import RunFolder
from fairbloom.strategies import from_config
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    print("the app prints")
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    RunFolder(config["out"], score="eval_acc").start(
        from_config(config), grid, arrays, config["num-rounds"]
    )
"""

# A client that writes down in its module what it has done, and draws from global generators.
CLIENT = """\
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
calls = []


@app.train()
def train(message, context):
    calls.append(message)
    model = message.content["arrays"]["w"].numpy()
    target = np.eye(3, dtype=np.float32)[int(context.node_config["partition-id"]) % 3]
    rate = context.run_config["rate"] / context.run_config["work.epochs"]
    step = rate * (target - model) + 0.01 * len(calls)
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


@pytest.fixture
def app(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (here / "tiny-app/tiny").mkdir(parents=True)
    (here / "tiny-app/pyproject.toml").write_text(PROJECT)
    (here / "tiny-app/tiny/__init__.py").touch()
    (here / "tiny-app/tiny/server.py").write_text(SERVER)
    (here / "tiny-app/tiny/client.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(here)  # restores the path that a run extends
    yield here / "tiny-app"
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny"]:
        del sys.modules[name]


def change(app: Path, file: str, before: str, after: str) -> None:
    text = (app / file).read_text()
    assert before in text
    (app / file).write_text(text.replace(before, after))


# The run config -----------------------------------------------------------------------------------


def test_each_run_has_its_method_seed_rounds_and_folder(app: Path, tmp_path: Path) -> None:
    read = read_app(app, {"rate": 1, "fedfv.alpha": 0.25, "num-rounds": 9})
    assert (read.clients, read.rounds, set(read.code)) == (
        4,
        "num-rounds",
        {"tiny", "tiny.server", "tiny.client"},
    )
    (arm,) = parse_arms("fedfv(order=reverse)")
    study = Study(
        "compare", [arm], [7], arm.label, {"fedfv.alpha": 0.25, "num-rounds": 9}, app=read
    )
    (run,) = study.runs(tmp_path).values()
    assert run.config == {  # type: ignore[union-attr]
        "out": str(tmp_path / "runs/fedfv-order=reverse-seed7"),
        "method": "fedfv (alpha=0.25, order=reverse)",
        "num-rounds": 9,
        "clients": 4,
        "seed": 7,
        "rate": 1.0,
        "work.epochs": 1,
    }


def test_keys_of_ours_in_its_run_config_are_named(
    app: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(app, "pyproject.toml", "rate = 0.5", "rate = 0.5\nproximal-mu = 0.1\ndraw = 'uniform'")
    read = read_app(app, {"best-model": "worst-10", "average-models": True})
    assert caplog.messages == [
        "all methods take these keys of the app's run config: proximal-mu = 0.1, draw = 'uniform'"
    ]
    config = read.run({"method": "fedavg", "best-model": "worst-10", "num-rounds": 3}, 0, app)
    assert config.config["best-model"] == "worst-10"


@pytest.mark.parametrize(("seeds", "said"), [("", "by RunFolder("), ("split", "The seeds split")])
def test_what_seeds_do_is_an_argument_of_the_run_folder(app: Path, seeds: str, said: str) -> None:
    change(app, "tiny/server.py", "_acc", f'_acc", seeds="{seeds}')
    for seed in range(2):
        run(app, seed=seed, out=str(app / str(seed)))
    assert said in caveats_of_data([load(app / "0"), load(app / "1")])[0]


def test_the_number_of_rounds_may_have_flowers_name(app: Path) -> None:
    change(app, "pyproject.toml", "num-rounds = 3", "num-server-rounds = 3")
    run = read_app(app, {}).run({"method": "fedavg", "num-rounds": 8}, 0, Path("out"))
    assert (run.num_rounds, run.config["num-server-rounds"]) == (8, 8)


def test_how_many_clients_there_are_is_read_or_given(app: Path) -> None:
    assert read_app(app, {"clients": 6}).clients == 6
    assert read_app(app, {"clients": 6}).config["clients"] == 6
    change(app, "pyproject.toml", "clients = 4\n", "")
    assert read_app(app, {}).clients == 10  # as in Flower's templates
    change(app, "pyproject.toml", "rate = 0.5", "rate = 0.5\nclients = 'all'")
    with pytest.raises(FairbloomError, match="clients = 'all': give the number of the app's"):
        read_app(app, {})
    change(app, "pyproject.toml", "clients = 'all'", "")
    assert read_app(app, {"clients": 6}).clients == 6
    with (app / "pyproject.toml").open("a") as file:
        file.write("[tool.flwr.federations]\ndefault = 'here'\n")
        file.write("[tool.flwr.federations.here]\noptions.num-supernodes = 5\n")
    assert read_app(app, {}).clients == 5


def test_an_app_without_the_keys_gets_the_lines_to_add(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(app, "pyproject.toml", 'method = "fedavg"\n', "")
    change(app, "pyproject.toml", "seed = 0\n", "")
    said = captured(capsys, "compare", "--app", "tiny-app", code=2).err
    assert "tiny-app/pyproject.toml has no method, seed, which every run of a comparison" in said
    assert 'add\n\nmethod = "fedavg"\nseed = 0\n\nthere' in said
    assert "strategy = from_config(config)\n" in said
    assert not Path("runs").exists()


FAULTS = {
    ("--app", "nowhere"): "nowhere/pyproject.toml cannot be read: No such file or directory. Name",
    ("--task", "digits"): "task = 'digits': [tool.flwr.app.config] of the app has no task: there",
    ("--set", "rat=1"): "rat = 1: [tool.flwr.app.config] of the app has no rat: did you mean rate?",
    ("--set", "rate=fast"): "rate = 'fast': [tool.flwr.app.config] of the app has rate = 0.5: give",
    (
        "--set",
        "seed=1",
    ): "seed = 1: a comparison of an app's runs sets seed run by run: give --seed",
    ("--methods", "fedavg(momentum=0.9)"): "momentum = 0.9 of fedavg: add momentum to [tool.flwr",
    ("--methods", "fedavgg"): "method = 'fedavgg': unknown method: did you mean FedAvg?",
    ("--runs", "runs/a"): "app has no effect with --runs",
}


@pytest.mark.parametrize(("words", "said"), FAULTS.items())
def test_a_fault_is_said_before_a_run_starts(
    app: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in captured(capsys, "compare", "--app", "tiny-app", *words, code=2).err
    assert not Path("runs").exists()


@pytest.mark.parametrize("line", ["", "clientapp = { app = 1 }\n"])
def test_an_app_without_components_is_told_the_line(app: Path, line: str) -> None:
    change(app, "pyproject.toml", 'clientapp = "tiny.client:app"\n', line)
    with pytest.raises(FairbloomError, match=r"has no clientapp: name it as in clientapp ="):
        read_app(app, {})


# A run in its process -----------------------------------------------------------------------------


def run(app: Path, **config: object) -> None:
    read = read_app(app, {})
    planned = read.run({"method": "fedfv", "fedfv.alpha": 0.25, "num-rounds": 3}, 5, app / "run")
    where = (read.folder, read.server, read.client, read.clients)
    run_app(*where, {**planned.config, **config}, read.rounds)  # type: ignore[dict-item]


def test_a_run_records_what_was_asked_for(app: Path) -> None:
    run(app)
    recorded = CONFIG.read(app / "run").settings
    assert {key: recorded[key] for key in ("method", "alpha", "seed", "num-rounds")} == {
        "method": "FedFV",
        "alpha": 0.25,
        "seed": 5,
        "num-rounds": 3,
    }
    assert list(load(app / "run").final()) == [f"site-{i}" for i in range(4)]


WRONG = {
    "the seed": (
        "from_config(config),",
        "from_config(config, seed=1),",
        "the ServerApp trains with seed = 1, and not 5 as its run config says: make its strategy by"
        " strategies.from_config",
    ),
    "the method": (
        "from_config(config),",
        "from_config({**config, 'method': 'fedavg'}),",
        "the ServerApp trains with method = 'FedAvg', and not 'FedFV'",
    ),
    "a parameter": (
        "from_config(config),",
        "from_config({**config, 'method': 'fedfv'}),",
        "the ServerApp trains with alpha = 0.1, and not 0.25",
    ),
    "the rounds": (
        'config["num-rounds"]',
        "2",
        "the ServerApp ran num_rounds = 2, and not num-rounds = 3: start its strategy with",
    ),
    "the folder": (
        'config["out"]',
        '"elsewhere"',
        "the ServerApp has ended, and .*run holds no finished run: start its strategy by RunFolder",
    ),
    "an error": ("print(", "raise KeyError(", r"KeyError: .* \(server.py, line 13\)"),
    "an exit": ("print(", "exit(", "SystemExit: the app prints"),
    "an import": ("import numpy as np", "import nunpy", "imports nunpy, which is not installed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_app_that_ignores_its_run_config_is_told(app: Path, case: str) -> None:
    before, after, said = WRONG[case]
    change(app, "tiny/server.py", before, after)
    with pytest.raises(FairbloomError, match=said):
        run(app)
    if case in ("the seed", "the method", "a parameter"):  # before a client works
        assert not (app / "run/rounds.csv").exists() or load(app / "run").rounds_done == 0


def test_an_app_that_seeds_nothing_begins_with_the_seeds_model(app: Path) -> None:
    change(app, "tiny/server.py", "np.zeros(3, np.float32)", "np.random.rand(3).astype('f4')")
    change(app, "tiny/client.py", "0.01 * len(calls)", "0.0")
    models = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(app, method="fedavg", seed=seed, out=str(app / name))
        models.append(load_file(app / name / "model.safetensors")["w"].tolist())
    assert models[0] == models[1] != models[2]


# Comparisons --------------------------------------------------------------------------------------

WORDS = ("compare", "--app", "tiny-app", "--methods", "fedavg,fedfv(alpha=0.25)", "--jobs", 2)


@pytest.mark.slow
def test_the_state_of_a_module_reaches_no_other_run(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's steps depend on how often its module was called since the process began."""
    alone = as_json(capsys, *WORDS[:4], "fedfv(alpha=0.25)", "--seeds", 1, "--out", "alone")
    found = as_json(capsys, *WORDS, "--seeds", 2, "--jobs", 1, "--out", "all")
    assert found["seeds"] == [0, 1]
    assert found["failed"] == {}
    one, other = (
        load_file(f"{out}/runs/fedfv-alpha=0.25-seed0/model.safetensors")
        for out in ("alone", "all")
    )
    assert (one["w"] == other["w"]).all()
    assert [row for row in found["clients"] if row["seed"] == 0 and row["method"] != "FedAvg"] == (
        alone["clients"]
    )


@pytest.mark.slow
def test_a_comparison_is_continued_extended_and_shown(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = captured(capsys, *WORDS, "--seeds", 1, "--out", "all").out
    assert printed.startswith("2 methods compared\nbaseline FedAvg, clients 4, seeds 1, rounds 3\n")
    assert "the app prints" not in printed
    # an interrupted run, a further seed and more rounds
    shutil.rmtree("all/runs/fedavg-seed0")
    longer = as_json(capsys, *WORDS, "--seeds", 2, "--rounds", 5, "--out", "all")
    assert as_json(capsys, "show", "all") == longer
    for name in ("fedavg", "fedfv-alpha=0.25"):
        for seed in range(2):
            assert load(f"all/runs/{name}-seed{seed}").rounds_done == 5
    assert Path("all/report.html").read_text().count("FedFV (alpha=0.25)")
    # its runs are runs like others
    assert compare(
        runs=sorted(Path("all/runs").iterdir()), out="again", progress=False
    ).methods == tuple(dict.fromkeys(row["method"] for row in longer["methods"]))


@pytest.mark.slow
def test_changed_code_and_settings_are_refused(app: Path) -> None:
    arguments = {"app": app, "methods": "fedavg", "seeds": 1, "out": "all", "progress": False}
    compare(**arguments)
    for given, said in (
        ({"settings": {"rate": 0.25}}, "rate = 0.5, and not 0.25: choose another folder"),
        ({"clients": 5}, "clients = 4, and not 5: choose another folder"),
        ({"app": None, "task": "digits"}, "choose another folder"),
    ):
        with pytest.raises(FairbloomError, match=said):
            compare(**{**arguments, **given})
    change(app, "tiny/client.py", "0.01", "0.02")
    with pytest.raises(FairbloomError, match=r"your app has changed since .* \(tiny.client\)"):
        compare(**arguments)


@pytest.mark.slow
def test_a_method_that_fails_becomes_a_row(app: Path) -> None:
    """The client does not evaluate personal models, and says so by an error."""
    change(
        app,
        "tiny/client.py",
        "calls.append(message)",
        "assert 'proximal-mu' not in message.content['config']",
    )
    compared = compare(app=app, methods="fedavg,fedprox", seeds=1, out="all", progress=False)
    assert compared.methods == ("FedAvg",)
    assert list(compared.failed) == ["FedProx"]
    assert re.search(r"FedProx .*with seed 0: .*AssertionError", " ".join(compared.caveats))


@pytest.mark.slow
def test_methods_are_compared_in_flowers_quickstart(tmp_path: Path) -> None:
    """Its model is drawn without a seed, and is the same under each method all the same."""
    changed.change(tmp_path / "app")
    changed.let_the_config_choose(tmp_path / "app")
    compared = compare(
        app=tmp_path / "app",
        methods="fedavg,fedmgdaplus",
        seeds=2,
        rounds=2,
        clients=4,
        settings={"learning-rate": 0.01, "fraction-evaluate": 1.0},
        out=tmp_path / "all",
        progress=False,
    )
    assert compared.failed == {}
    assert set(compared.values["FedAvg"][0]) == {f"client-{i}" for i in range(4)}
    means = {name: compared.table.loc[name, "mean"] for name in compared.methods}
    assert len(set(means.values())) == 2
    losses = {}
    for run in sorted(Path(tmp_path / "all/runs").iterdir()):
        rows = load(run).metrics
        rows = rows[(rows["round"] == 1) & (rows["metric"] == "train_loss")]
        losses[run.name] = dict(zip(rows["client"], rows["value"], strict=True))
    assert len(losses["fedavg-seed0"]) == 5  # each client, and their mean
    assert losses["fedavg-seed0"] == losses["fedmgdaplus-seed0"]
    assert losses["fedavg-seed1"] == losses["fedmgdaplus-seed1"]
