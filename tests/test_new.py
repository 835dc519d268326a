"""`fairbloom new` writes an app that runs: its names, its dependencies, what travels with it, and
what it promises."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.parser import Parser
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import requests
from flwr.cli.auth_plugin.oidc_cli_plugin import OidcCliPlugin
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.supercore import constant
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from packaging.requirements import Requirement

from fairbloom import __version__, load
from fairbloom.protocol.settings import Mark, marked
from fairbloom.rounds.round import Round
from fairbloom.scaffold.new import TEMPLATE
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, FedMGDAPlus
from tests.client.changed import edit
from tests.experiments.helpers import ROOT, captured, fairbloom
from tests.simulation.helpers import table

OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.fixture
def app(here: Path) -> Iterator[Path]:
    assert fairbloom("new", "my-hearts") == 0
    yield here / "my-hearts"
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_hearts"]:
        del sys.modules[name]


def project(app: Path) -> dict:
    return tomllib.loads((app / "pyproject.toml").read_text())


# Names --------------------------------------------------------------------------------------------


def test_the_app_has_its_name_and_nothing_of_the_templates(
    app: Path, subtests: pytest.Subtests
) -> None:
    files = {str(file.relative_to(app)) for file in app.rglob("*") if file.is_file()}
    assert files == {
        *("pyproject.toml", "README.md", "LICENSE", ".gitignore"),
        *(
            f"my_hearts/{name}.py"
            for name in ("__init__", "__main__", "task", "client_app", "server_app")
        ),
    }
    for file in files:
        with subtests.test(file=file):
            assert "my_app" not in (app / file).read_text()
            assert "my-app" not in (app / file).read_text()
    assert [entry.name for entry in app.parent.iterdir()] == ["my-hearts"]


NO_NAME = (
    "is not a valid app name: use up to 32 lower-case letters and digits, words joined by hyphens"
)
WRONG_NAMES = {
    **{
        name: f"{name!r} {NO_NAME}"
        for name in ("", "../app", "My-App", "my_app", "2-apps", "app-", "a" * 33)
    },
    **{name: f"a module {name} is installed already" for name in ("fairbloom", "flwr", "test")},
    "class": (
        "'class' is a keyword of Python, which cannot be the name of a package: choose another"
        " name, for example my-class"
    ),
    "torch": (
        "'torch': a module torch is installed already, and your app would hide it: choose another"
        " name, for example my-torch"
    ),
}


@pytest.mark.parametrize(("name", "said"), WRONG_NAMES.items())
def test_a_name_that_will_not_do_is_said_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert said in captured(capsys, "new", name, code=2).err
    assert not list(here.iterdir())


def test_what_is_there_already_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hearts").write_text("years of work")
    assert (
        "hearts exists already: choose another name"
        in captured(capsys, "new", "hearts", code=2).err
    )
    assert (here / "hearts").read_text() == "years of work"


def test_a_directory_that_takes_no_files_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    assert (
        "hearts cannot be written in this directory: No such file or directory"
        in captured(capsys, "new", "hearts", code=2).err
    )
    os.chdir(here)


# What it asks for, and what travels ---------------------------------------------------------------


def test_its_dependencies_are_pinned_as_ours(subtests: pytest.Subtests) -> None:
    """The version of Flower is the one that real nodes need: an app may be deployed."""
    ours = {Requirement(each).name: Requirement(each) for each in OURS}
    theirs = {
        each.name: each for each in map(Requirement, project(TEMPLATE)["project"]["dependencies"])
    }
    assert theirs.pop("fairbloom").specifier.contains(__version__)
    assert set(theirs) <= set(ours)
    for name, requirement in theirs.items():
        with subtests.test(name=name, requirement=requirement):
            assert requirement.specifier == ours[name].specifier


def test_flower_takes_it_as_it_is(app: Path) -> None:
    _, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_federation_and_runs_in_its_folder_do_not_travel_with_it(app: Path) -> None:
    for place in (
        "federation/operators.toml",
        "operators/operators.toml",
        "runs/my-hearts/config.toml",
    ):
        (app / place).parent.mkdir(parents=True, exist_ok=True)
        (app / place).write_text('secret = "secret"\n')
    names = ZipFile(BytesIO(build_fab_from_disk(app))).namelist()
    assert {name for name in names if not name.startswith("my_hearts/")} == {
        "pyproject.toml",
        "LICENSE",
        ".info/CONTENT",
    }


def test_the_settings_that_a_deployed_client_takes_are_those_that_it_says() -> None:
    settings = list(project(TEMPLATE)["tool"]["flwr"]["app"]["config"])
    assert "the last seven" in (TEMPLATE / "pyproject.toml").read_text()
    assert [key for key in settings if key in marked(Mark.SENT_TO_CLIENTS)] == settings[-7:]


# A bundle, and a hub ------------------------------------------------------------------------------

HUB = importlib.import_module("flwr.cli.app_cmd.publish")


class Account(OidcCliPlugin):
    """An account that is logged in."""

    def __init__(self, host: str) -> None:
        self.access_token = "token"

    def load_tokens(self) -> None:
        """Keep the one that it has."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that reach a hub, which takes all of them."""
    names: list[str] = []
    taken = requests.Response()
    taken.status_code = 200

    def post(url: str, files: list[tuple[str, tuple[str, object, str]]], **_: object) -> object:
        names.extend(name for _, (name, *_) in files)
        return taken

    monkeypatch.setattr(HUB, "load_cli_auth_plugin_from_connection", Account)
    monkeypatch.setattr(HUB.requests, "post", post)
    return names


def test_the_licence_is_apaches_as_ours(app: Path) -> None:
    assert (app / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_flowers_strict_format_knows_the_versions_of_flower(app: Path) -> None:
    (locked,) = re.findall(r"^flwr==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    about = normalize_and_validate_fab_format(project(app))
    assert about.fab_format_version == 1
    assert about.flwr_version_min == "1.39"
    assert about.flwr_version_target == locked


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_the_hub_gets_every_file_of_the_app_and_no_run(
    app: Path, sent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = {str(file.relative_to(app)) for file in app.rglob("*") if file.is_file()}
    for place in ("federation/federation.toml", "runs/my-hearts/config.toml"):
        (app / place).parent.mkdir(parents=True)
        (app / place).write_text('secret = "secret"\n')
    HUB.publish(app)
    assert set(sent) == files
    assert "Validation passed" in capsys.readouterr().out


def test_the_page_has_the_hubs_kinds_of_files_and_limits() -> None:
    page = " ".join((ROOT / "docs" / "publishing.md").read_text().split())
    (kinds,) = re.findall(r"that ends in (.+?), not only", page)
    assert set(re.findall(r"`(.+?)`", kinds)) == {
        pattern.removeprefix("**/*")
        for pattern in constant.APP_PUBLISH_INCLUDE_PATTERNS
        if pattern.startswith("**/*")
    }
    of_a_file, together = (
        limit // 2**20 for limit in (constant.MAX_FILE_BYTES, constant.MAX_TOTAL_BYTES)
    )
    assert (
        f"At most {constant.MAX_FILE_COUNT:,} files are taken,"
        f" of {of_a_file} MB each and {together} MB together"
    ) in page


@pytest.mark.slow
def test_flwr_build_and_pip_take_it_with_the_repository(app: Path, tmp_path: Path) -> None:
    """No index has the name: whoever registers it there would run code on every node."""
    project = tomllib.loads((app / "pyproject.toml").read_text())["project"]
    (dependency,) = (each for each in project["dependencies"] if "fairbloom" in each)
    assert (
        f"pip install {dependency.removeprefix('fairbloom @ ')}\n"
        in (ROOT / "README.md").read_text()
    )
    subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build"], cwd=app, check=True, capture_output=True
    )
    (bundle,) = app.glob("my-name.my-hearts.0-1-0.*.fab")
    assert "LICENSE" in ZipFile(bundle).namelist()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", tmp_path, app], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("my_hearts-*.whl")
    with ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        asked = Parser().parsestr(archive.read(about).decode()).get_all("Requires-Dist", [])
    assert Requirement(dependency) in map(Requirement, asked)


# What it promises ---------------------------------------------------------------------------------


def python_m(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=app, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_a_run_prints_rounds_continues_and_serves_its_worst(
    app: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    out = tmp_path / "run"
    begun = python_m(app, "my_hearts", f"out={out}", "num-rounds=2")
    assert begun.returncode == 0, begun.stderr
    with subtests.test("rounds and clients are printed, and no log"):
        lines = begun.stdout.splitlines()
        assert lines[0] == "2 rounds with 8 clients"
        assert [
            (number, line)
            for number, line in enumerate(lines[1:3], 1)
            if not re.fullmatch(rf"round {number}: accuracy \d+%, worst client \d+%", line)
        ] == []
        assert re.search(r"client-1 +\d+\.\d +67\n", begun.stdout)
        assert "Aggregate" not in begun.stderr + begun.stdout
    rows = table(out / "rounds.csv")
    done = python_m(app, "my_hearts", f"out={out}", "num-rounds=20")
    assert done.returncode == 0, done.stderr
    whole = table(out / "rounds.csv")
    assert (rows, len(whole)) == (whole[:2], 20)
    assert float(whole[-1]["test_accuracy_of_global_model_worst"]) > 70


@pytest.mark.slow
def test_its_methods_are_compared_as_pages_say(
    app: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """With fewer seeds and rounds than there."""
    edit(app / "pyproject.toml", "num-rounds = 20", "num-rounds = 2")
    for page, folder in ((app / "README.md", app), (ROOT / "docs/comparing.md", app.parent)):
        commands = re.findall(
            r"^fairbloom (compare --(?:app|runs runs/app/).*)$", page.read_text(), re.MULTILINE
        )
        methods = re.findall(r"--methods (\S+)", commands[0])[0].split(",")
        monkeypatch.chdir(folder)
        for command in commands:
            with subtests.test(page=page, command=command):
                words = command.replace("my-app", app.name).split()
                few = ("--seeds", "1", "--rounds", "2") if "--app" in words else ()
                assert fairbloom(*words, *few) == 0
                compared = load(words[-1])
                assert [name.lower() for name in compared.methods] == methods
                assert compared.failed == {}


@pytest.mark.slow
def test_its_readme_tells_what_it_shows(
    app: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The clients' accuracies in percent after the app's number of rounds, the mean and the
    worst."""
    import torch
    from flwr.app import ArrayRecord

    monkeypatch.syspath_prepend(app)
    client_app, task = (
        importlib.import_module(f"my_hearts.{name}") for name in ("client_app", "task")
    )
    config = project(app)["tool"]["flwr"]["app"]["config"]
    words = " ".join((app / "README.md").read_text().split())
    for strategy, mean, worst, said in (
        (FedAvg(), 74, 36, "in 74 % of a client's"),
        (FedMGDAPlus(), 83, 73, "to 83 % and 73 %"),
    ):
        with subtests.test(strategy=strategy, mean=mean):
            finished: list[Round] = []
            torch.manual_seed(config["seed"])
            strategy.start(
                InProcessGrid(client_app.app, config, config["clients"]),
                ArrayRecord(task.Net().state_dict()),
                config["num-rounds"],
                on_round=finished.append,
            )
            found = [100 * metrics["accuracy"] for metrics in finished[-1].evaluations.values()]
            assert np.mean(found) == pytest.approx(mean, abs=2)
            assert np.min(found) == pytest.approx(worst, abs=4)
            assert said in words
