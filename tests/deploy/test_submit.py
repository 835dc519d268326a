"""Runs on a federation are submitted, followed and stopped through files, without a server.

Commands of a federation import few libraries, and Ctrl-C during imports ends them.

The status of a federation, from the files of its server.
"""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fairbloom.cli import main as cli
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.messages import MAX_SETTINGS_BYTES
from fairbloom.deploy.fleet.runs import STOPPED, Order, RunFiles, list_runs, submit
from fairbloom.deploy.operator import submit as runs
from fairbloom.deploy.operator.status import show
from fairbloom.experiments.api import compare
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.study import find_study
from fairbloom.protocol.settings import Value, fingerprint
from fairbloom.server.progress import ANNOUNCED
from fairbloom.server.run_folder.csv_rows import ABSENT
from fairbloom.server.run_folder.files import PRIVACY
from fairbloom.server.settings import Settings, default_config
from fairbloom.simulation.run import simulate
from fairbloom.system.lock import exclusive_lock
from fairbloom.tasks.models.weights import digest_weights
from tests.checkout import ROOT
from tests.commands import fork_workers
from tests.experiments.helpers import captured, fairbloom
from tests.tables.helpers import SCHEMA

from .commands import client_command


def orders(made: Path) -> list[Order]:
    return [Order.read(run.order) for run in list_runs(Federation.read(made).runs)]


def submitted_settings(made: Path) -> dict[str, Any]:
    return dict(orders(made)[-1].settings)


def last_run(made: Path) -> RunFiles:
    return list_runs(Federation.read(made).runs)[-1]


# Followed and stopped -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "word"), [(0, "completed"), (1, "failed (exit status 1)"), (130, "stopped")]
)
def test_submit_follows_the_log_and_reports_the_end(
    made: Path, status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    def carry_out() -> None:
        while not list_runs(Federation.read(made).runs):
            time.sleep(0.05)
        run = last_run(made)
        run.log.write_text("round 1\n")
        time.sleep(0.3)
        with run.log.open("a") as file:
            file.write("round 2\x1b[2J\n")  # an app prints what a client has written
        run.end(status)

    server = threading.Thread(target=carry_out)
    server.start()
    assert fairbloom("deploy", "submit", "--set", "method=fedfv", "--set", "num-rounds=2") == status
    server.join()
    number = last_run(made).number
    assert (
        capsys.readouterr().out == f"run {number}\nround 1\nround 2\\x1b[2J\nrun {number}: {word}\n"
    )
    assert submitted_settings(made) == {**default_config(), "method": "fedfv", "num-rounds": 2}


def test_a_refit_has_the_settings_of_the_compared_runs(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they were computed, and the folder that they were written to, is left out."""
    fork_workers(monkeypatch)
    plain = {"clients": 5, "rounds": 2, "progress": False, "jobs": 1}
    shared: dict[str, Value] = {"learning-rate": 0.05, "device": "cpu", "early-stopping": 2}
    shared |= {"validation-share": 0.2}
    compare(methods="fedavg,fedfv(tau=2)", seeds=1, out=tmp_path / "cmp", settings=shared, **plain)
    words = ("deploy", "submit", "--detach", "--refit", tmp_path / "cmp", "--method", "fedfv")
    assert fairbloom(*words, "--set", "local-epochs=2") == 0
    settings = submitted_settings(made)
    own = {"method": "fedfv", "fedfv.tau": 2, "clients": 5, "test-share": 0.0, "fraction": 1.0}
    assert settings == {
        **default_config(), **own, "learning-rate": 0.05, "local-epochs": 2,
        "num-rounds": settings["num-rounds"],
    }  # fmt: skip
    said = captured(capsys, "deploy", "submit", "--method", "fedfv", code=2).err
    assert "--method fedfv is of --refit: write --set method=fedfv" in said
    assert fairbloom("deploy", "submit", "--detach", "--set", "method=fedfv") == 0


class Served(threading.Thread):
    """A server that carries out runs in this process, but for those with an `end` of their own."""

    def __init__(self, federation: Federation, ends: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self.federation = federation
        self.ends = ends
        self.over = threading.Event()
        self.done = list[str]()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for run in list_runs(self.federation.runs):
                if run.status is None:
                    settings = Order.read(run.order).settings
                    self.done.append(f"{settings['method']} {settings['seed']}")
                    if not (end := self.ends.get(self.done[-1], 0)):
                        simulate(Settings.of(settings))
                    run.end(end)


def test_a_comparison_submits_what_is_missing(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that fails is tried again, one that is stopped ends the comparison."""
    fork_workers(monkeypatch)
    served = Served(Federation.read(made), {"fedfv 1": 1})
    served.start()
    out = tmp_path / "cmp"
    words = ["deploy", "compare", "--methods", "fedavg,fedfv(alpha=0.2)", "--out", out, "--seeds"]
    for each in ("clients=5", "num-rounds=2", "device=cpu", "round-timeout=30.0"):
        words[-1:-1] = ["--set", each]
    try:
        captured(capsys, *words, 2)
        every = [f"{method} {seed}" for seed in (0, 1) for method in ("fedavg", "fedfv")]
        assert served.done == every
        study = find_study(out)
        assert study is not None
        assert [*study.failed] == ["runs/fedfv-alpha=0.2-seed1"]
        served.ends = {"fedavg 2": STOPPED}
        said = captured(capsys, *words, 3, code=2).err
        assert "was stopped, and the comparison with it: the same command continues both" in said
        assert served.done == [*every, "fedfv 1", "fedavg 2"]
        served.ends = {}
        shown = captured(capsys, *words, 3).out
        assert served.done[6:] == ["fedavg 2", "fedfv 2"]
    finally:
        served.over.set()
        served.join()
    # a run into the same folder that has not ended is followed
    federation = Federation.read(made)
    given = {"method": "fedfv", "seed": 9, "out": str(out / "x"), "num-rounds": 2}
    submit(federation.runs, runs.OURS.order(federation, given)).end(1)
    waiting = submit(federation.runs, runs.OURS.order(federation, given))
    threading.Timer(0.5, waiting.end, (0,)).start()
    before = list_runs(federation.runs)
    assert runs.carry_out(federation, given) == ""
    assert len(list_runs(federation.runs)) == len(before)
    # the same as in one process
    here = compare(
        methods="fedavg,fedfv(alpha=0.2)", seeds=3, out=tmp_path / "here", clients=5, rounds=2,
        progress=False, jobs=1, settings={"device": "cpu"},
    )  # fmt: skip
    assert here.verdict.headline in " ".join(shown.split())
    for name in ("comparison.csv", "differences.csv", "clients.csv"):
        assert (out / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert (out / REPORT).exists()


def test_a_run_without_a_server_waits_and_says_so(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--detach") == 0
    words = runs.describe_wait(Federation.read(made), last_run(made))
    assert "start fairbloom server --dir" in words
    assert f"run {last_run(made).number}" in words


def test_a_run_whose_files_are_gone_is_not_followed_for_ever(made: Path) -> None:
    federation = Federation.read(made)
    with pytest.raises(runs.DeployError, match="is gone: the same submit continues the run"):
        runs.follow(federation, RunFiles(federation.runs / "7"))


def test_stop_names_what_it_stops(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run is in progress" in captured(capsys, "deploy", "stop", code=2).err
    assert fairbloom("deploy", "submit", "--detach") == 0
    assert fairbloom("deploy", "submit", "--detach") == 0
    first, second = list_runs(Federation.read(made).runs)
    assert (
        f"runs {first.number}, {second.number} are in progress or wait: name one"
        in captured(capsys, "deploy", "stop", code=2).err
    )
    assert (
        "run 'nothing' is not one of this federation"
        in captured(capsys, "deploy", "stop", "nothing", code=2).err
    )
    assert fairbloom("deploy", "stop", first.number) == 0
    assert (first.is_stopped, second.is_stopped) == (True, False)
    assert "will not continue once a server runs" in capsys.readouterr().out
    first.end(STOPPED)
    assert "has ended already: stopped" in captured(capsys, "deploy", "stop", first.number).out
    assert fairbloom("deploy", "stop") == 0
    assert second.is_stopped


# What is submitted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("fraction=2", "fraction"),
        ("fedfv.alpha=0.2", "fedfv.alpha has no effect with method = 'fedavg'"),
        (
            "state-dir=/etc",
            "state-dir = '/etc' has no effect on devices: each has its own, state-dir in its",
        ),
        ("data-dir=/etc", "data-dir = '/etc' has no effect on devices"),
        (
            "task=os:system",
            "task = 'os:system': os belongs to Python and holds no task, so no device allows it",
        ),
        ("task=os.path:join", "task = 'os.path:join': os belongs to Python"),
        (
            "model=subprocess:run",
            "model = 'subprocess:run': subprocess belongs to Python and holds no model",
        ),
        ("device=/dev/sda", "device = '/dev/sda': devices accept auto, cpu, cuda, cuda:1 or mps"),
    ],
)
def test_an_invalid_setting_is_named_and_nothing_is_written(
    made: Path, capsys: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    assert said in captured(capsys, "deploy", "submit", "--set", setting, code=2).err
    assert orders(made) == []


def test_settings_above_a_mebibyte_are_not_sent(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / "schema.toml").write_text(SCHEMA + "\n" * (MAX_SETTINGS_BYTES // 2))
    words = ("--set", "task=csv", "--schema", made / "schema.toml")
    assert (
        "and devices take at most 1,047,576: shorten"
        in captured(capsys, "deploy", "submit", "--detach", *words, code=2).err
    )
    assert orders(made) == []


def test_sizes_of_enrolled_clients_are_sent_with_the_run(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "b", "--examples", "300") == 0
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    assert fairbloom("deploy", "enroll", "unknown") == 0
    assert fairbloom("deploy", "enroll", "gone", "--examples", "7") == 0
    assert fairbloom("deploy", "revoke", "gone") == 0
    assert fairbloom("deploy", "submit", "--detach") == 0
    assert submitted_settings(made)["enrolled-sizes"] == "a=1200 b=300"
    assert fairbloom("deploy", "submit", "--detach", "--set", "enrolled-sizes=a=5") == 0
    assert submitted_settings(made)["enrolled-sizes"] == "a=5"


def test_a_drain_needs_a_server_and_is_shown(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no server runs" in captured(capsys, "deploy", "stop", "--after-run", code=2).err
    run = write_run(made)
    with exclusive_lock(made / "state" / "lock"):
        say_now(made, time.time())
        assert "no further run begins" in captured(capsys, "deploy", "stop", "--after-run").out
        (found,) = survey(capsys)["runs"]
    assert found["run"] == run.number
    assert (found["state"], found["awaits"]) == ("waiting", "for the server's next start")
    assert run.status is None


@pytest.mark.parametrize("own", ["", "0" * 64])
def test_the_digest_of_initial_weights_is_sent(made: Path, tmp_path: Path, own: str) -> None:
    """Unless it is given, as for a run that continues without the file."""
    weights = tmp_path / "weights.pth"
    torch.save({"x": torch.ones(2)}, weights)
    words = ["--set", f"initial-weights={weights}"]
    if own:
        weights.unlink()
        words += ["--set", f"weights-digest={own}"]
    assert fairbloom("deploy", "submit", "--detach", *words) == 0
    assert submitted_settings(made)["weights-digest"] == (own or digest_weights(str(weights)))


def test_what_devices_must_allow_is_said(
    made: Path, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = captured(
        capsys,
        "deploy",
        "submit",
        "--detach",
        "--set",
        f"task={own}:points",
        "--set",
        "learning-rate=0.2",
    ).err
    value = f"{own}:points"
    assert (
        f"task = '{value}' is accepted only by devices with owners who allow it (allow ="
        f" ['{value}'] in" in said
    )
    assert said.count("is accepted only by devices") == 1
    with pytest.raises(SettingRefusedError, match="allow, in "):
        accepted_settings({"task": value})
    accepted_settings({"task": value, "learning-rate": 0.2}, allow=[value])  # as the remedy advises


def test_an_accepted_schema_needs_no_allow(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "schema.toml").write_text(SCHEMA)
    words = ("--set", "task=csv", "--schema", made / "schema.toml")
    assert (
        "is accepted only by devices"
        not in captured(capsys, "deploy", "submit", "--detach", *words).err
    )
    assert submitted_settings(made)["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["clients=2"], "client c has partition 2, but clients=2 has only 0 to 1: set clients=3"),
        (["clients=3"], ""),
        ([], ""),  # the digits are split over twenty clients
    ],
)
def test_partitions_beyond_the_clients_are_said(
    made: Path, capsys: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    captured(capsys, "deploy", "revoke", "a")
    found = captured(
        capsys,
        "deploy",
        "submit",
        "--detach",
        *(word for each in settings for word in ("--set", each)),
    ).err
    assert said in found
    assert ("partition" in found) == bool(said)


# Which app ----------------------------------------------------------------------------------------

HERS = """
[project]
name = "hers"
version = "1.0"
[tool.flwr.app]
publisher = "she"
[tool.flwr.app.components]
serverapp = "hers:app"
clientapp = "hers:app"
[tool.flwr.app.config]
rounds = 3
name = "first"
net.rate = 0.5
"""


@pytest.fixture
def hers(made: Path) -> Path:
    """A user's app, in a folder of the current directory."""
    folder = made.parent / "hers"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(HERS)
    return folder


@pytest.mark.parametrize("options", [["--app", "hers"], []])
def test_a_users_app_runs_with_its_own_settings(
    made: Path, hers: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    if not options:  # in its folder, without --app
        monkeypatch.chdir(hers)
        options = ["--dir", str(made)]
    words = ("--set", "rounds=5", "--set", "net.rate=1")
    assert fairbloom("deploy", "submit", "--detach", *options, *words) == 0
    assert orders(made) == [
        Order("hers:app", "hers", "1.0", {"rounds": 5, "net.rate": 1.0, "name": "first"}, str(hers))
    ]


@pytest.mark.parametrize(
    ("out", "folder", "moved"),
    [
        ("{old}/runs/a", "{old}/app", ("{new}/runs/a", "{new}/app")),
        ("{old}/fed/runs/a", "", ("{new}/fed/runs/a", "")),
        ("runs/a", "{old}-other/app", ("runs/a", "{old}-other/app")),
        ("/mnt/runs/a", "{old}/app", ("/mnt/runs/a", "{new}/app")),
        (5, "{old}", (5, "{new}")),
    ],
)
def test_an_order_moves_with_its_federation(
    tmp_path: Path, out: Value, folder: str, moved: tuple[Value, str]
) -> None:
    old = tmp_path / "old"
    new = tmp_path / "new"

    def placed(path: Value) -> Value:
        return path.format(old=old, new=new) if isinstance(path, str) else path

    order = Order("app", "mine", "1", {"out": placed(out), "n": 1}, str(placed(folder)))
    run = submit(old / "fed" / "state" / "runs", order)
    assert Order.read(run.order) == order
    old.rename(new)
    found = Order.read(new / run.order.relative_to(old))
    assert (found.settings, found.folder, found.place) == (
        {"out": placed(moved[0]), "n": 1},
        placed(moved[1]),
        str(old),
    )
    without = submit(new / "fed" / "state" / "runs", Order("app", "mine", "1", {}))
    assert Order.read(without.order).settings == {}


IN_HERS = "[tool.flwr.app.config] in hers/pyproject.toml"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("round=5", f"unknown setting round = 5: did you mean rounds? {IN_HERS} has"),
        ("fraction=1", f"unknown setting fraction = 1: {IN_HERS} has rounds, name"),
        ("state-dir=x", "unknown setting state-dir = 'x': "),
        ("rounds=many", f"rounds = 'many': it must be of type int, as its default in {IN_HERS}"),
        ("rounds=true", "rounds = True: it must be of type int"),
        ("name=5", "name = 5: it must be of type str"),
    ],
)
def test_a_setting_that_an_app_does_not_take_is_named(
    made: Path, hers: Path, capsys: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    words = ("deploy", "submit", "--app", "hers", "--set", setting)
    assert said in captured(capsys, *words, code=2).err
    assert orders(made) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            None,
            (
                "--app other: it is neither a folder with [tool.flwr.app] in its pyproject.toml nor a"
                " module"
            ),
        ),
        ('[project]\nname = "other"\n', "--app other: it is neither a folder"),
        ("[project\n", "other/pyproject.toml cannot be read: "),
        (HERS.replace('version = "1.0"', ""), "other/pyproject.toml lacks 'version'"),
    ],
)
def test_a_place_without_an_app_is_named(
    made: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    if text is not None:
        Path("other").mkdir(exist_ok=True)
        Path("other", "pyproject.toml").write_text(text)
    assert said in captured(capsys, "deploy", "submit", "--app", "other", code=2).err
    assert orders(made) == []


def test_without_an_app_fairblooms_is_submitted(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pyproject.toml").write_text('[project]\nname = "analysis"\n')
    assert fairbloom("deploy", "submit", "--detach") == 0
    assert fairbloom("deploy", "submit", "--detach", "--app", "fairbloom.serverapp:app") == 0
    monkeypatch.chdir(Path(__file__).parents[2])  # of a checkout
    assert fairbloom("deploy", "submit", "--detach", "--dir", str(made)) == 0
    assert {(order.app, order.distribution, order.folder) for order in orders(made)} == {
        ("fairbloom.serverapp:app", "fairbloom", "")
    }


def test_an_installed_app_is_named_by_its_import_string(made: Path) -> None:
    assert (
        fairbloom("deploy", "submit", "--detach", "--app", "pytest:app", "--set", "rounds=3") == 0
    )
    assert orders(made) == [Order("pytest:app", "pytest", pytest.__version__, {"rounds": 3})]


# Settings of a user's own -------------------------------------------------------------------------

OWN = """
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import Task

class WorstHalf(FairStrategy):
    def __init__(self, *, share: float = 0.5, words: str = "", **options):
        super().__init__(**options)
        self.share, self.words = share, words

    def weigh(self, cohort):
        return cohort.prior

def points(setup, *, noise: float = 0.1, kind: str = "flat"):
    raise NotImplementedError("submitting a run loads no data")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user in the current directory."""
    (tmp_path / "hers_alone.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "hers_alone"
    sys.modules.pop("hers_alone", None)


def test_settings_of_a_users_method_and_task_are_sent(made: Path, own: str) -> None:
    words = [
        "method=hers_alone:WorstHalf",
        "worsthalf.share=0.25",
        'worsthalf.words=it\'s "two words"',
    ]
    words += [
        "task=hers_alone:points",
        "points.noise=0.3",
        'points.kind="5"',
        "max-growth=inf",
        "batch-size=4",
    ]
    assert (
        fairbloom(
            "deploy", "submit", "--detach", *(each for word in words for each in ("--set", word))
        )
        == 0
    )
    received = Settings.of(submitted_settings(made))
    assert received.parameters == {
        "worsthalf.share": 0.25,
        "worsthalf.words": 'it\'s "two words"',
        "points.noise": 0.3,
        "points.kind": "5",
    } | {key: value for key, value in received.parameters.items() if key in default_config()}
    assert received.max_growth == float("inf")


VALUES = st.booleans() | st.integers() | st.floats() | st.text()


@given(st.dictionaries(st.sampled_from(["own.a", "own.b-c"]), VALUES))
def test_any_value_of_a_users_setting_arrives(settings: dict[str, Value]) -> None:
    order = Order("app", "hers", "1.0", settings)
    with tempfile.TemporaryDirectory() as folder:
        arrived = Order.read(submit(Path(folder, "runs"), order).order).settings
    assert {key: repr(value) for key, value in arrived.items()} == {
        key: repr(value) for key, value in settings.items()
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["method=hers_alone:WorstHalf", "worsthalf.shere=0.5"],
            "unknown setting worsthalf.shere = 0.5; did you mean",
        ),
        (["worsthalf.share=0.5"], "unknown setting worsthalf.share = 0.5"),
        (["task=hers_alone:point"], "hers_alone has no point"),
        (["task=hers_gone:points"], "there is no module hers_gone"),
    ],
)
def test_a_mistake_in_a_users_setting_is_named_before_sending(
    made: Path, own: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert (
        said
        in captured(
            capsys,
            "deploy",
            "submit",
            *(each for word in words for each in ("--set", word)),
            code=2,
        ).err
    )
    assert orders(made) == []


LOADED = """
import sys
from fairbloom.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "words", [["deploy", "--help"], ["deploy", "enroll", "a", "--dir", "nowhere"]], ids=str
)
def test_commands_import_no_pytorch_and_end_as_the_command_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["fairbloom", *words])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=ROOT, capture_output=True, text=True
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capfd.readouterr()
    assert done.stdout.replace("-c deploy", "fairbloom deploy").split() == [
        *printed.out.split(),
        "False",
    ]
    assert (done.returncode, done.stderr) == (end.value.code, printed.err)


INTERRUPTED = """
import signal
import sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == "{}":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules.pop("{}", None)
sys.meta_path.insert(0, Interrupt)
from fairbloom.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["importlib.metadata", "typer", "fairbloom.command", "fairbloom.strategies"]
)
def test_ctrl_c_during_imports_ends_a_command_silently(module: str) -> None:
    program = INTERRUPTED.replace("{}", module)
    done = subprocess.run(
        [sys.executable, "-c", program, "methods"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_devices_help_says_what_each_argument_is(tmp_path: Path) -> None:
    """By `python -m fairbloom.deploy`, without the whole command line, as in the client's image."""
    done = client_command("keys", "--help", folder=tmp_path)
    assert "Name of this client in the" in done.stdout, done.stderr


ORDER = Order("fairbloom.serverapp:app", "fairbloom", "0.1.0", {})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    out = tmp_path_factory.mktemp("run") / "first"
    return simulate(
        Settings.of(
            {"clients": 2, "num-rounds": 2, "device": "cpu", "method": "fedfv", "out": str(out)}
        )
    )


def say_now(made: Path, at: float, **about: Any) -> None:
    (made / "state" / "now.json").write_text(json.dumps({"at": at, **about}))


def survey(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert fairbloom("deploy", "status", "--json") == 0
    return json.loads(capsys.readouterr().out)


def write_run(
    made: Path, status: int | None = None, log: str = "", folder: Path | None = None
) -> RunFiles:
    run = submit(Federation.read(made).runs, ORDER)
    run.log.write_text(log)
    if folder is not None:
        (run.folder / ANNOUNCED).write_text(str(folder))
    if status is not None:
        run.end(status)
    return run


def test_clients_are_online_away_never_seen_or_revoked(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c", "d", "--examples", "7") == 0
    assert fairbloom("deploy", "revoke", "d") == 0
    say_now(made, time.time(), online={"a": 2}, seen={"a": 5.0, "b": 0.0, "d": 1.0})
    with exclusive_lock(made / "state" / "lock"):
        found = survey(capsys)
        assert found["server"] == "up"
        states = {name: client["state"] for name, client in found["clients"].items()}
        assert states == {"a": "online", "b": "away", "c": "never", "d": "revoked"}
        assert found["clients"]["b"]["last-seen"] == "1970-01-01T00:00:00+00:00"
        assert found["clients"]["a"]["refused-with-same-key"] == 2
        assert (found["clients"]["c"]["partition-id"], found["clients"]["c"]["examples"]) == (2, 7)
        say_now(made, time.time() - 60.0, online={"a": 2}, seen={"a": 5.0})
        assert survey(capsys)["clients"]["a"]["state"] == "away"  # the server hangs
    say_now(made, time.time(), online={"a": 2}, seen={"a": 5.0})
    found = survey(capsys)  # the server was killed just now
    assert (found["server"], found["clients"]["a"]["state"]) == ("down", "away")


def test_a_running_run_names_who_is_absent_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    absent = {kind: f"site-{kind}" for kind in ABSENT if kind != "refused"}
    run = {"run": 1, "state": "running", "exit-status": None, "round": 3, "of-rounds": 5}
    about = {"method": "fedavg", "task": "csv", "seconds-a-round": None}
    show(
        {
            "server": "down",
            "started": None,
            "version": None,
            "connections": {"open": None},
            "clients": {},
            "runs": [run | about | absent],
            "disk": {"free-bytes": 0},
            "certificate-days": 1.0,
        }
    )
    said = capsys.readouterr().out
    for kind, name in absent.items():
        assert f"  {kind} in round 3: {name}\n" in said


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("yes", ", schema accepted"),
        ("unknown", ", cannot tell whether a schema is accepted"),
        (None, ""),
    ],
)
def test_status_says_what_is_known_of_a_schema(
    made: Path, capsys: pytest.CaptureFixture[str], answer: str | None, words: str
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    if answer is not None:
        (made / "profiles" / "a").mkdir(parents=True)
        (made / "profiles" / "a" / "accepts").write_text(answer)
    assert survey(capsys)["clients"]["a"]["accepts"] == answer
    assert fairbloom("deploy", "status") == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ("schema" in said, words[2:] in said) == (bool(words), True)


def test_a_copied_machine_is_named_for_a_day(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by doctor; and whether or not the server runs."""
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    now = time.time()
    say_now(made, now, online={"a": 0, "b": 0}, copied={"a": now - 3600.0, "b": now - 90_000.0})
    found = survey(capsys)["clients"]
    assert found["a"]["copied"].startswith(datetime.fromtimestamp(now, UTC).isoformat()[:4])
    assert found["b"]["copied"] is None
    assert fairbloom("deploy", "status") == 0
    said = " ".join(capsys.readouterr().out.split())
    words = "its key and state folder are on two machines, or came from a backup"
    assert said.count(words) == said.count("and a copy of its machine") == 1
    assert fairbloom("deploy", "doctor") == 1
    assert f"clients: a: {words}" in capsys.readouterr().out
    say_now(made, now, copied={})
    assert fairbloom("deploy", "status") == 0
    assert "copy" not in capsys.readouterr().out


def test_clients_show_what_the_last_run_left_of_their_accounts(
    made: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    for number, clients in enumerate(({"a": 450.0, "b": 9.0}, {"a": 14.0, "gone": 3.0})):
        folder = shutil.copytree(run_folder, tmp_path / f"run-{number}")
        left = {name: {"units": units} for name, units in clients.items()}
        PRIVACY.write(folder, {"simulated": False, "clients": left})
        write_run(made, status=0, folder=folder)
    found = survey(capsys)
    assert {name: each["privacy-units"] for name, each in found["clients"].items()} == {
        "a": 14,
        "b": 9,
        "c": None,
    }
    assert "accounts" not in found["runs"][0]
    assert fairbloom("deploy", "status") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "14 units of its privacy account left" in said


def test_runs_show_their_rounds_and_how_they_ended(
    made: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(made, status=0, folder=run_folder)
    write_run(made, status=1, log="first\nthe run ends: nothing was learned\n")
    write_run(made, status=130, folder=tmp_path / "gone")
    going = write_run(made, folder=run_folder)
    waiting = write_run(made)
    runs = survey(capsys)["runs"]
    assert [run["state"] for run in runs] == [
        "waiting",
        "running",
        "stopped",
        "failed",
        "completed",
    ]
    assert [run["exit-status"] for run in runs] == [None, None, 130, 1, 0]
    assert (runs[0]["run"], runs[1]["run"]) == (waiting.number, going.number)
    assert (runs[1]["method"], runs[1]["round"], runs[1]["of-rounds"]) == ("fedfv", 2, 2)
    assert "unknown" in runs[2]
    assert runs[3]["said"] == "the run ends: nothing was learned"
    assert runs[4]["folder"] == str(run_folder)


def test_the_last_run_has_its_end_and_its_folder(
    made: Path,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    write_run(made, status=1)
    run = write_run(made, status=0, folder=run_folder)
    os.utime(run.folder / "status", (5.0, 5.0))
    assert survey(capsys)["runs"][0]["ended"] == "1970-01-01T00:00:05+00:00"
    assert (
        f"the last, run {run.number}, completed at 1970-01-01T00:00:05+00:00: fairbloom show"
        f" {run_folder}\n"
    ) in captured(capsys, "deploy", "status").out


def test_a_damaged_run_folder_does_not_hide_other_entries(
    made: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "damaged")
    (folder / "rounds.csv").write_text("nonsense\n1")
    write_run(made, folder=folder)
    (run,) = survey(capsys)["runs"]
    assert run["unknown"]
    assert "not known" in captured(capsys, "deploy", "status").out


def test_the_tables_show_what_is_wrong(
    made: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    write_run(made, folder=run_folder)
    write_run(made, status=1, log="the run ends: \x1b[2Jnothing was learned\n")
    say_now(made, time.time(), online={"a": 0}, seen={"a": 5.0})
    said = captured(capsys, "deploy", "status").out
    assert "server: down" in said
    assert "clients: 1 away, 1 never" in said
    assert "fedfv on digits, round 2 of 2" in said
    assert "nothing was learned" in said
    assert "\x1b[2J" not in said
    assert "certificate: the server's holds for 398 more days" in said


def test_connections_and_the_current_run_are_shown(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(made), write_run(made)
    say_now(made, time.time(), run=second.number, connections={"open": 12, "limit": 768})
    with exclusive_lock(made / "state" / "lock"):
        found = survey(capsys)
        assert fairbloom("deploy", "status") == 0
    assert found["connections"] == {"open": 12, "limit": 768}
    assert "connections: 12 of at most 768" in capsys.readouterr().out
    states = {run["run"]: run["state"] for run in found["runs"]}
    assert states == {first.number: "waiting", second.number: "running"}
    assert survey(capsys)["connections"] == {"open": None, "limit": None}  # no server runs


def test_status_says_what_is_refused_and_awaited(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "c") == 0
    run, waiting = write_run(made), write_run(made)
    reason = "client 'b' is enrolled with another key"
    about = {
        "run": run.number,
        "waiting": "awaited: b",
        "version": "2.0",
        "online": {"a": 0},
        "versions": {"a": "1.0", "b": "1.0"},
        "reasons": {"b": reason},
        "reasons_at": {"b": 86400.0},
        "connections": {"open": 1, "limit": 768},
        "refused": {"permission denied": 7, "already exists": 0, "reply": 2},
    }
    say_now(made, time.time(), **about)
    with exclusive_lock(made / "state" / "lock"):
        os.utime(made / "state" / "lock", (5.0, 5.0))
        found = survey(capsys)
        said = captured(capsys, "deploy", "status").out
        say_now(made, time.time(), **{**about, "versions": {"a": "2.0"}})
        alike = captured(capsys, "deploy", "status").out
    began = "1970-01-01T00:00:05+00:00"
    assert [found[key] for key in ("started", "version", "refused")] == [
        began,
        "2.0",
        about["refused"],
    ]
    assert [(each["version"], each["last-reason"]) for each in found["clients"].values()] == [
        ("1.0", None),
        ("1.0", reason),
        (None, None),
    ]
    assert [(each["run"], each["awaits"]) for each in found["runs"]] == [
        (waiting.number, ""),
        (run.number, "awaited: b"),
    ]
    assert {
        f"server: up since {began}, version 2.0",
        "refused: 7 permission denied, 2 reply",
        "  waits: awaited: b",
        f"  last error of b, 1970-01-02: {reason}",
    } <= {*said.splitlines()}
    assert said.count("version 1.0") == 1  # only of clients that are online
    assert alike.count("version 2.0") == 1  # only the server's, as the client has the same
    assert re.search(rf"revoked +│ {re.escape(found['clients']['c']['revoked'])} ", said)
    found = survey(capsys)  # the server was killed just now
    assert [found[key] for key in ("started", "version", "refused")] == [None, None, {}]
    assert found["runs"][1]["awaits"] == ""


def test_each_command_of_the_operator_is_noted(made: Path) -> None:
    for words in ("stop", "revoke a", "submit --set fraction=2", "enroll ../a"):
        assert fairbloom("deploy", *words.split()) == 2
    assert not (made / "commands.jsonl").exists()  # nothing was done
    for words in ("enroll a b", "revoke a", "submit --detach", "stop", "status"):
        assert fairbloom("deploy", *words.split()) == 0
    account = pwd.getpwuid(os.geteuid()).pw_name
    lines = (made / "commands.jsonl").read_text().splitlines()
    assert [{**json.loads(line), "at": ""} for line in lines] == [
        {"at": "", "account": account, "command": command, **about}
        for command, about in (
            ("enroll", {"client": "a"}),
            ("enroll", {"client": "b"}),
            ("revoke", {"client": "a"}),
            ("submit", {"run": last_run(made).number}),
            ("stop", {"run": last_run(made).number}),
        )
    ]


# A release ----------------------------------------------------------------------------------------


def finished_run(made: Path, folder: Path, *, is_finished: bool = True) -> RunFiles:
    """Submit a run of digits, and return it as the server leaves it, with its run folder."""
    assert fairbloom("deploy", "submit", "--dir", made, "--detach", "--set", "seed=3") == 0
    run = last_run(made)
    run.end(0)
    (run.folder / ANNOUNCED).write_text(str(folder))
    folder.mkdir(exist_ok=True)
    if is_finished:
        (folder / "model.safetensors").touch()
    return run


@pytest.mark.parametrize("model", ["last", "best"])
def test_a_release_is_the_same_run_once_more(made: Path, tmp_path: Path, model: str) -> None:
    """By its number or folder; a device knows the settings by their fingerprint."""
    federation = Federation.read(made)
    run = finished_run(made, tmp_path / "a")
    finished_run(made, tmp_path / "b")
    for name in (str(run.number), str(tmp_path / "a"), os.path.relpath(tmp_path / "a")):
        order = runs.order_release(federation, name, model)
        settings = dict(order.settings)
        assert settings.pop("release") == model
        assert settings.pop("out") == str(tmp_path / "a")
        before = dict(Order.read(run.order).settings)
        assert settings == {key: before[key] for key in before.keys() - {"release", "out"}}
        assert fingerprint(order.settings) == fingerprint(before)


def test_only_a_finished_run_of_ours_is_released(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(made, tmp_path / "a", is_finished=False)
    release = ("deploy", "release", "--dir", made)
    for name, words in (
        (str(run.number), "the same submit continues"),
        ("nothing", "fairbloom deploy status shows both"),
    ):
        assert words in captured(capsys, *release, name, code=2).err
    (tmp_path / "a" / "model.safetensors").touch()
    run.order.write_text(run.order.read_text().replace("fairbloom.serverapp:app", "my_app:app"))
    said = captured(capsys, *release, str(run.number), code=2).err
    assert "has no final model of a task" in said
    assert len(orders(made)) == 1
