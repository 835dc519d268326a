"""Runs on a federation: submitted, watched, stopped; with an answering machine in place of Flower."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata, load_and_validate
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.client.app import app as client_app
from fairbloom.client.settings import SettingRefusedError, accepted_settings
from fairbloom.deploy.device.bundles import Installed, config_of
from fairbloom.deploy.device.client import APP
from fairbloom.deploy.operator import run_bundle
from fairbloom.deploy.operator import submit as runs
from fairbloom.protocol.settings import OWN_SETTINGS, Value, expand_own_settings
from fairbloom.server.settings import Settings, default_config
from tests.experiments.helpers import ROOT, fairbloom

from .commands import Machine

# Runs ---------------------------------------------------------------------------------------------------------------


def submitted_settings(machine: Machine) -> dict[str, Any]:
    """Return the settings of the run that was submitted last, as Flower reads their file."""
    last = [words for words in machine.asked if words[0] == "run"][-1]
    return tomllib.loads(last[last.index("--run-config") + 1])


def listed(status: str) -> dict[str, Any]:
    return {"success": True, "runs": [{"run-id": "9", "status": status}]}


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("stopped", 1)])
def test_submit_streams_the_log_once_and_tells_the_truth(
    made: Path,
    machine: Machine,
    status: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lists = [listed("running"), listed(f"finished:{status}")]
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\nround 2\n"}, list=lists)
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.01)
    capsys.readouterr()
    assert fairbloom("deploy", "submit", "--set", "method=fedfv", "--set", "num-rounds=2") == code
    assert capsys.readouterr().out == f"run 9\nround 1\nround 2\nrun 9: finished:{status}\n"
    assert machine.asked[0][0] == "run"
    assert submitted_settings(machine) == {"method": "fedfv", "num-rounds": 2}


def test_a_run_that_the_superlink_has_forgotten_is_not_looked_for(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after its database was lost: submit looked for the run for ten minutes."""
    another = {"success": True, "runs": [{"run-id": "8", "status": "running"}]}
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\n"}, list=another)
    assert fairbloom("deploy", "submit") == 2
    said = capsys.readouterr().err
    assert "does not know run 9: was its database lost" in said
    assert "The same submit continues the run after its last finished round" in said


@pytest.mark.parametrize("key", ["state-dir", "data-dir"])
def test_a_path_of_devices_is_no_setting_of_a_run(
    made: Path, machine: Machine, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--set", f"{key}=/etc") == 2
    assert f"{key} = '/etc' has no effect on devices: each has its own, {key} in its client.toml" in (
        capsys.readouterr().err
    )
    assert machine.asked == []


def test_sizes_that_clients_were_enrolled_with_go_along(made: Path, machine: Machine) -> None:
    machine.answers(run={"success": True, "run-id": "9"}, register={"success": True, "node-id": "77"})
    assert fairbloom("deploy", "enroll", "b", "--examples", "300") == 0
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    assert fairbloom("deploy", "enroll", "unknown") == 0
    assert fairbloom("deploy", "enroll", "gone", "--examples", "7") == 0
    assert fairbloom("deploy", "revoke", "gone") == 0
    assert fairbloom("deploy", "submit", "--detach") == 0
    assert submitted_settings(machine) == {"enrolled-sizes": "a=1200 b=300"}
    assert fairbloom("deploy", "submit", "--detach", "--set", "enrolled-sizes=a=5") == 0
    assert submitted_settings(machine) == {"enrolled-sizes": "a=5"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("task=os:system", "task = 'os:system': os belongs to Python and holds no task, so no device allows it"),
        ("task=os.path:join", "task = 'os.path:join': os belongs to Python"),
        ("model=subprocess:run", "model = 'subprocess:run': subprocess belongs to Python and holds no model"),
        ("device=/dev/sda", "device = '/dev/sda': devices accept auto, cpu, cuda, cuda:1 or mps"),
    ],
)
def test_what_no_device_takes_is_refused_before_it_is_sent(
    made: Path, machine: Machine, setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--set", *setting.split()) == 2
    assert said in capsys.readouterr().err
    assert machine.asked == []


def test_what_devices_must_allow_is_said(
    made: Path, machine: Machine, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers(run={"success": True, "run-id": "9"})
    assert fairbloom("deploy", "submit", "--detach", "--set", f"task={own}:points", "--set", "learning-rate=0.2") == 0
    said = capsys.readouterr().err
    value = f"{own}:points"
    assert f"task = '{value}' is accepted only by devices with owners who allow it (allow = ['{value}'] in" in said
    assert said.count("is accepted only by devices") == 1
    with pytest.raises(SettingRefusedError, match="allow, in client"):
        accepted_settings({"task": value})
    accepted_settings({"task": value, "learning-rate": 0.2}, allow=[value])  # as the remedy says


def test_partitions_beyond_the_clients_are_said(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers(run={"success": True, "run-id": "9"}, register={"success": True, "node-id": "77"})
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "a") == 0
    for settings, said in (
        (["clients=2"], "client c has partition 2, and clients = 2 deals data to partitions 0 to 1: set clients=3"),
        (["clients=3"], ""),
        ([], ""),  # of the digits, twenty are dealt
        (["task=csv", "clients=2"], ""),  # clients come with the data: so many are waited for
    ):
        capsys.readouterr()
        assert fairbloom("deploy", "submit", "--detach", *(word for each in settings for word in ("--set", each))) == 0
        found = capsys.readouterr().err
        assert said in found
        assert ("partition" in found) == bool(said)
    assert fairbloom("deploy", "revoke", "c") == 0
    assert fairbloom("deploy", "enroll", "c") == 0
    assert fairbloom("deploy", "submit", "--detach", "--set", "clients=2") == 0
    assert "partition" not in capsys.readouterr().err


@pytest.mark.parametrize("details", ["nothing was learned", ""])
def test_submit_says_in_its_last_line_why_a_run_failed(
    made: Path, machine: Machine, details: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"run-id": "9", "status": "finished:failed", "status-details": details}
    ended = {"success": True, "runs": [run]}
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": ""}, list=ended)
    assert fairbloom("deploy", "submit") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "run 9: finished:failed" + (f": {details}" if details else "")


# Which app -----------------------------------------------------------------------------------------------------------

flower_warns = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

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
def hers(tmp_path: Path, machine: Machine) -> Path:
    """Somebody's own app, in a folder of the current directory."""
    folder = tmp_path / "hers"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(HERS)
    return folder


@pytest.mark.parametrize("options", [["--app", "hers"], []])
def test_an_app_of_somebody_else_is_submitted_with_the_settings_of_its_own(
    made: Path, machine: Machine, hers: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.answers(run={"success": True, "run-id": "9"}, register={"success": True, "node-id": "77"})
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    if not options:  # it is the current directory's
        monkeypatch.chdir(hers)
        options = ["--dir", str(made)]
    words = ("--set", "rounds=5", "--set", "net.rate=1", "--set", "name=second")
    assert fairbloom("deploy", "submit", "--detach", *options, *words) == 0
    assert Path(machine.asked[-1][1]).resolve() == hers
    assert submitted_settings(machine) == {"rounds": 5, "net.rate": 1.0, "name": "second"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "round=5",
            "unknown setting round = 5: did you mean rounds? [tool.flwr.app.config] in hers/pyproject.toml has",
        ),
        ("fraction=1", "unknown setting fraction = 1: [tool.flwr.app.config] in hers/pyproject.toml has rounds, name"),
        ("state-dir=x", "unknown setting state-dir = 'x': "),
        ("rounds=many", "rounds = 'many': it must be of type int, as its default in [tool.flwr.app.config] in"),
        ("rounds=true", "rounds = True: it must be of type int"),
        ("name=5", "name = 5: it must be of type str"),
    ],
)
def test_a_setting_that_an_app_of_somebody_else_does_not_take_is_named(
    made: Path, machine: Machine, hers: Path, setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--app", "hers", "--set", setting) == 2
    assert said in capsys.readouterr().err
    assert machine.asked == []


@pytest.mark.parametrize(
    ("line", "travels"),
    [
        ("", True),
        ('fab-include = ["hers/*.py"]', False),
        ('fab-exclude = ["federation"]', False),
        ('fab-include = ["**/*.yaml"]', True),
    ],
)
@flower_warns
def test_a_federation_in_the_apps_folder_does_not_travel_with_its_secrets(
    made: Path, machine: Machine, line: str, travels: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers(run={"success": True, "run-id": "9"})
    Path("pyproject.toml").write_text(HERS.replace("[tool.flwr.app]\n", f"[tool.flwr.app]\n{line}\n"))
    Path("hers").mkdir()
    Path("hers", "__init__.py").touch()
    assert fairbloom("deploy", "submit", "--detach") == (2 if travels else 0)
    said = "federation lies in the app's folder, and its secrets would go to every client with the run: move it"
    assert (said in capsys.readouterr().err) is travels
    assert bool(machine.asked) is not travels


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--app other holds no Flower app: name a folder whose pyproject.toml has [tool.flwr.app]"),
        ('[project]\nname = "other"\n', "--app other holds no Flower app"),
        ("[project\n", "other/pyproject.toml cannot be read: "),
    ],
)
def test_a_folder_without_an_app_is_named(
    made: Path, machine: Machine, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("other").mkdir()
        Path("other", "pyproject.toml").write_text(text)
    assert fairbloom("deploy", "submit", "--app", "other") == 2
    assert said in capsys.readouterr().err
    assert machine.asked == []


def test_a_project_in_the_current_directory_that_is_no_app_is_no_obstacle(made: Path, machine: Machine) -> None:
    machine.answers(run={"success": True, "run-id": "9"})
    Path("pyproject.toml").write_text('[project]\nname = "analysis"\n')
    assert fairbloom("deploy", "submit", "--detach", "--set", "clients=2") == 0
    folder = Path(machine.asked[-1][1])
    assert folder.name.startswith("fairbloom-")
    assert not folder.exists()  # it was made for this run


# The installed Fairbloom as a bundle ---------------------------------------------------------------------------------


@pytest.fixture
def ours() -> Iterator[Path]:
    with run_bundle.temporary_app() as folder:
        yield folder


@flower_warns
def test_flower_takes_the_bundle_of_the_installed_fairbloom(ours: Path) -> None:
    _, warnings = load_and_validate(ours / "pyproject.toml")  # finds both apps
    assert warnings == []
    fab = build_fab_from_disk(ours)
    assert dict(config_of(fab)) == default_config()
    chosen = runs.app_in(ours)
    assert chosen is not None
    assert chosen.ours
    assert chosen.config == default_config()


def test_a_bundle_of_the_installed_fairbloom_has_none_of_its_modules(ours: Path) -> None:
    names = {str(file.relative_to(ours)) for file in ours.rglob("*") if file.is_file()}
    assert names == {"pyproject.toml", *(f"fairbloom_run/{name}.py" for name in ("__init__", "server", "client"))}
    for name in ("server", "client"):
        tree = ast.parse((ours / "fairbloom_run" / f"{name}.py").read_text())
        (imported,) = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert imported == f"fairbloom.{name}app"


@flower_warns
def test_a_client_takes_the_bundle_of_the_installed_fairbloom(ours: Path) -> None:
    fab = build_fab_from_disk(ours)
    fab_id, version = get_fab_metadata(fab)
    run = SimpleNamespace(fab_id=fab_id, fab_version=version, override_config={"batch-size": 7})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    bundles = Installed.of(APP, ())
    assert bundles.distribution is not None
    app, settings = bundles(fab, run, context)
    assert app is client_app
    assert settings["batch-size"] == 7


@pytest.mark.slow
@flower_warns
def test_a_checkout_and_the_bundle_of_it_installed_are_of_one_app(ours: Path) -> None:
    assert get_fab_metadata(build_fab_from_disk(ours)) == get_fab_metadata(build_fab_from_disk(ROOT))


# Settings of a user's own --------------------------------------------------------------------------------------------

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
    raise NotImplementedError("nobody loads data to submit a run")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of hers in the current directory."""
    (tmp_path / "hers_alone.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "hers_alone"
    sys.modules.pop("hers_alone", None)


def test_settings_of_her_method_and_task_go_where_flower_takes_them(made: Path, machine: Machine, own: str) -> None:
    machine.answers(run={"success": True, "run-id": "9"})
    words = ["method=hers_alone:WorstHalf", "worsthalf.share=0.25", 'worsthalf.words=it\'s "two words"']
    words += ["task=hers_alone:points", "points.noise=0.3", 'points.kind="5"', "max-growth=inf", "batch-size=4"]
    assert fairbloom("deploy", "submit", "--detach", *(each for word in words for each in ("--set", word))) == 0
    sent = submitted_settings(machine)
    assert set(sent) == {"method", "task", "batch-size", "max-growth", OWN_SETTINGS}
    assert set(sent) <= set(default_config())
    received = Settings.of({**default_config(), **sent})
    assert received.parameters == {
        "worsthalf.share": 0.25,
        "worsthalf.words": 'it\'s "two words"',
        "points.noise": 0.3,
        "points.kind": "5",
    } | {key: value for key, value in received.parameters.items() if key in default_config()}
    assert received.max_growth == float("inf")


def test_her_own_settings_go_beside_words_of_own_settings(own: str) -> None:
    packed = runs.pack_own_settings({OWN_SETTINGS: "points.noise=0.3", "worsthalf.share": 0.5})
    assert packed == {OWN_SETTINGS: "points.noise=0.3 worsthalf.share=0.5"}


VALUES = st.booleans() | st.integers() | st.floats() | st.text()


@given(st.dictionaries(st.sampled_from(["own.a", "own.b-c"]), VALUES))
def test_any_value_of_her_own_setting_arrives(settings: dict[str, Value]) -> None:
    arrived = expand_own_settings(runs.pack_own_settings(settings))
    assert {key: repr(value) for key, value in arrived.items()} == {key: repr(value) for key, value in settings.items()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=hers_alone:WorstHalf", "worsthalf.shere=0.5"], "unknown setting worsthalf.shere = 0.5; did you mean"),
        (["worsthalf.share=0.5"], "unknown setting worsthalf.share = 0.5"),
        (["task=hers_alone:point"], "hers_alone has no point"),
        (["task=hers_gone:points"], "there is no module hers_gone"),
    ],
)
def test_a_mistake_about_her_own_is_said_before_anything_is_sent(
    made: Path, machine: Machine, own: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", *(each for word in words for each in ("--set", word))) == 2
    assert said in capsys.readouterr().err
    assert machine.asked == []


# Watching ------------------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_starts_is_said_once_and_waited_for(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "WAITING_SECONDS", 0.2)
    waiting = {"success": True, "runs": [{"run-id": "9", "status": "pending"}]}
    done = {"success": True, "runs": [{"run-id": "9", "status": "finished:completed"}]}
    monkeypatch.setattr(runs, "LOOK_SECONDS", 0.15)
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": ""}, list=[waiting] * 5 + [done])
    assert fairbloom("deploy", "submit") == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("run 9 has been waiting for 0 s because no SuperExec is running")
    assert said.endswith("(fairbloom deploy doctor)")


@pytest.mark.parametrize(
    ("mine", "other", "alone"),
    [
        ("pending", "finished:failed", True),
        ("pending", "pending", True),
        ("pending", "running", False),
        ("pending", "starting", False),
        ("starting", "pending", None),
        ("running", "running", None),
        ("finished:completed", "pending", None),
    ],
)
def test_a_run_waits_alone_while_no_other_goes_on(mine: str, other: str, alone: bool | None) -> None:
    listed = [{"run-id": "9", "status": mine}, {"run-id": "8", "status": other}]
    assert runs.waits_for_nobody(listed, "9") is alone


UNAVAILABLE = {"success": False, "error-message": "Connection to the SuperLink is unavailable. Please check"}


def test_a_superlink_that_is_down_is_one_line_until_it_is_back(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.01)
    running, over = listed("running"), listed("finished:completed")
    answers = [UNAVAILABLE] * 3 + [running, running, UNAVAILABLE, UNAVAILABLE, over]
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\n"}, list=answers)
    assert fairbloom("deploy", "submit") == 0
    printed = capsys.readouterr()
    assert printed.out.count("round 1") == 1
    away, back, away_again, back_again = printed.err.splitlines()
    assert away == away_again
    assert away.startswith("lost sight of run 9: the SuperLink's control API at 127.0.0.1:8000 cannot be reached: ")
    assert (back, back_again) == ("run 9 is back in sight: running", "run 9 is back in sight: finished:completed")


def test_a_credential_that_is_no_longer_accepted_ends_the_watch(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"success": False, "error-message": "Authentication failed. Please run `flwr login` to authenticate"}
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": ""}, list=refused)
    assert fairbloom("deploy", "submit") == 2
    message = "the control API at 127.0.0.1:8000 does not accept the credential in federation/operator.token"
    assert message in capsys.readouterr().err


def test_stop_stops_what_has_not_ended(made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    going = [{"run-id": "9", "status": "running"}, {"run-id": "8", "status": "finished:completed"}]
    machine.answers(list={"success": True, "runs": going}, stop={"success": True})
    capsys.readouterr()
    assert fairbloom("deploy", "stop") == 0
    assert capsys.readouterr().out == "run 9 is stopped\n"
    assert [words[:2] for words in machine.asked] == [["list", "federation"], ["stop", "9"]]
    machine.answers(list={"success": True, "runs": going[1:]}, stop={"success": False, "error-message": "has ended"})
    assert fairbloom("deploy", "stop") == 0
    assert fairbloom("deploy", "stop", "8") == 2
    printed = capsys.readouterr()
    assert printed.out == "no run is going on\n"
    assert "flwr stop 8: has ended" in printed.err


def test_an_impossible_setting_is_named_before_anything_is_sent(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--set", "fraction=2") == 2
    assert "fraction" in capsys.readouterr().err
    assert fairbloom("deploy", "submit", "--set", "fedfv.alpha=0.2") == 2
    assert "fedfv.alpha has no effect with method = 'fedavg'" in capsys.readouterr().err
    assert not (machine.folder / "asked.jsonl").exists()
