"""The parts of a run that a client accepts: some settings, and never code."""

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.guard.limits import Limits
from fairbloom.deploy.device.accepted import (
    Installed,
    RunDescription,
    RunRefusedError,
    distribution_of,
)
from fairbloom.deploy.device.client import APP
from fairbloom.deploy.processes import load_app
from tests.client.hospital import SCHEMA

VERSION = version("fairbloom")
SETTINGS = {"clients": 3, "device": "cpu"}


def run_of(
    *, distribution: str = "fairbloom", version: str = VERSION, **settings: Any
) -> RunDescription:
    said = {key.replace("_", "-"): value for key, value in settings.items()}
    return RunDescription(1, distribution, version, {**SETTINGS, **said})


def context(**node: Any) -> Context:
    return Context(1, 2, {"partition-id": 1, **node}, RecordDict(), {})


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed(APP, distribution=("Fairbloom", VERSION))


# Versions and settings ----------------------------------------------------------------------------


def test_another_app_or_version_is_refused_with_both_named(subtests: pytest.Subtests) -> None:
    hearts = Installed(APP, distribution=("hearts", "1.0"))
    for distribution, number in (
        ("hearts", "1.1"),
        ("other", "1.0"),
        ("fairbloom", "1.0"),
        ("hearts", "1.0.post1"),
    ):
        with subtests.test(distribution=distribution, number=number):
            with pytest.raises(RunRefusedError) as error:
                hearts.accept(run_of(distribution=distribution, version=number), context())
            assert (
                str(error.value)
                == f"the run is of {distribution} {number}, this client has hearts 1.0 installed:"
                " install the same version on both"
            )
    hearts.accept(run_of(distribution="Hearts", version="1.0"), context())


def test_a_run_of_another_version_of_ours_is_taken(
    installed: Installed, subtests: pytest.Subtests
) -> None:
    """Each message has the number of its protocol, which shows whether both versions fit."""
    for number in ("0.0.9", f"{VERSION}.post1", "7.0"):
        with subtests.test(number=number):
            app, _ = installed.accept(run_of(version=number), context())
            assert app is sys.modules["fairbloom.client.app"].app
    with pytest.raises(RunRefusedError, match="the run is of other"):
        installed.accept(run_of(distribution="other"), context())


def test_the_app_gets_the_short_list_and_the_devices_own_places(
    installed: Installed, tmp_path: Path
) -> None:
    run = run_of(state_dir="/etc", out="/root", data_dir="/home", method="fedfv")
    _, settings = installed.accept(run, context(**{"state-dir": str(tmp_path), "name": "site-a"}))
    assert settings["state-dir"] == str(tmp_path)
    assert not {"out", "data-dir", "fraction"} & set(settings)
    assert settings["method"] == "fedfv"  # the owner may limit this setting
    assert settings["clients"] == SETTINGS["clients"]
    _, settings = installed.accept(run, context())
    assert not {"state-dir", "data-dir"} & set(settings)
    _, settings = installed.accept(run, context(**{"data-dir": "/of/the/device"}))
    assert settings["data-dir"] == "/of/the/device"


def test_a_setting_of_another_kind_is_refused(installed: Installed) -> None:
    with pytest.raises(RunRefusedError, match="the run's setting seed is neither a number, a text"):
        installed.accept(run_of(seed=[1]), context())


def test_an_import_string_is_refused_unless_the_owner_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without permission, the module is not even imported; with it, its settings are known."""
    (tmp_path / "hers_on_device.py").write_text("def load(setup, *, noise: float = 0.1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = "hers_on_device:load"
    run = run_of(task=task, **{"own-settings": "load.noise=0.3"})
    with pytest.raises(
        RunRefusedError, match=f"the run sets task = '{task}', and this client allows no"
    ):
        Installed.of(APP, ()).accept(run, context())
    assert "hers_on_device" not in sys.modules
    _, settings = Installed.of(APP, (task,)).accept(run, context())
    assert settings["task"] == task
    assert settings["load.noise"] == 0.3
    del sys.modules["hers_on_device"]


# The app that is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("fairbloom.client.app", "fairbloom"),
        ("numpy", "numpy"),
        ("typing_extensions", "typing_extensions"),
        ("flwr", "flwr"),
        ("sklearn", "scikit-learn"),
    ],
)
def test_an_installed_module_is_found_in_its_distribution(module: str, name: str) -> None:
    assert distribution_of(module) == (name, version(name))


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An app on the path that was never installed."""
    (tmp_path / "loose_app.py").write_text(
        "from flwr.clientapp import ClientApp\napp = ClientApp()\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "loose_app"
    sys.modules.pop("loose_app", None)


def test_an_editable_app_is_found_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among folders of modules, and distributions that list no files."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_many").mkdir()
    for name, url in (("other", ""), ("mine", f"{tmp_path.as_uri()}/src")):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if url:
            (about / "direct_url.json").write_text(
                f'{{"url": "{url}", "dir_info": {{"editable": true}}}}'
            )
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_on_device.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "src")
    assert Installed.of("mine_on_device:app", ()).distribution == ("mine", "1.0")
    assert distribution_of("of_many") is distribution_of("no_such_module") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "digits"}, "the run sets task = 'digits', and this device allows 'csv'"),
        ({"task": "csv", "schema": SCHEMA}, "the run's schema is not one that this device's owner"),
    ],
)
def test_a_run_beyond_its_owners_limits_is_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    limited = Installed(APP, limits=Limits.of({"tasks": ["csv"]}))
    with pytest.raises(RunRefusedError, match=words):
        limited.accept(run_of(**settings), context(**{"state-dir": str(tmp_path)}))
    free = Installed(APP, limits=Limits.of({"schema": "any"}))
    assert free.accept(run_of(**settings), context())[1]["task"] == settings["task"]


def test_an_app_that_was_never_installed_has_no_version(loose: str) -> None:
    mine = Installed.of(f"{loose}:app", ())
    assert mine.distribution is None
    app, _ = mine.accept(run_of(distribution="loose", version="3"), context())
    assert app is sys.modules[loose].app


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("loose_app:nothing", "has no attribute 'nothing'"),
        ("loose_app:number", "is of type int, not ClientApp"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_named(loose: str, app: str, words: str) -> None:
    with pytest.raises(ImportError, match=words) as error:
        load_app(app, ClientApp, "this client")
    assert f"app = '{app}' of this client" in str(error.value)
