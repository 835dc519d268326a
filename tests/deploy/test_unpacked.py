"""A client that runs the bundle of a run: the bundle's own code wins, also over Fairbloom's."""

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fairbloom
from fairbloom.deploy.flower.device import app_process
from fairbloom.deploy.flower.device.unpacked import Unpacked

from .unpacking import NODE, bundle_of, message, reply_of, task_of

INSTALLED = ("fairbloom", "fairbloom.errors", "fairbloom.client", "fairbloom.client.settings", "fairbloom.tasks")
"""What is imported from the installed Fairbloom before a bundle comes."""

APP = """
import importlib
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    found = {}
    for name in message.content["config"]["do"].split():  # imported now, when the app is long loaded
        module = importlib.import_module(name)
        found[name] = f"{getattr(module, 'WHOSE', 'installed')} {module.__spec__.origin}"
    return Message(RecordDict({"found": ConfigRecord(found)}), reply_to=message)
"""


def fairbloom_of(whose: str) -> dict[str, str]:
    """A Fairbloom in the shape of a checkout, of which Flower makes a bundle."""
    mark = f"WHOSE = {whose!r}\n"
    own = Path(fairbloom.__file__).read_text()
    folders = ("strategies", "tasks", "client", "server", "deploy")
    return {
        "fairbloom/__init__.py": own + mark,
        "fairbloom/errors.py": mark,
        **{f"{folder}/__init__.py": mark for folder in folders},
        "client/settings.py": mark,
        "client/later.py": mark,
        "client/app.py": f"from . import settings\nfrom fairbloom import errors\n{mark}{APP}",
    }


def own_app_of(whose: str) -> dict[str, str]:
    """An app without a Fairbloom of its own, whose packages and modules have names that Fairbloom's have, too."""
    mark = f"WHOSE = {whose!r}\n"
    packages = ("client", "strategies", "tasks", "deploy")
    names = (
        *(f"{package}/__init__.py" for package in packages),
        "client/app.py",
        "tasks/digits.py",
        "server.py",
    )
    no_package = ("fairbloom/errors.py", "fairbloom/client/settings.py")  # without fairbloom/__init__.py
    return {**dict.fromkeys((*names, *no_package), mark), "mine.py": APP}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in INSTALLED:
        importlib.import_module(name)
    before = dict(sys.modules)
    yield tmp_path
    for name in [name for name in sys.modules if name not in before]:
        if any(place.startswith(str(tmp_path)) for place in places(sys.modules[name])):
            del sys.modules[name]
    sys.modules.update(before)


def places(module: ModuleType) -> list[str]:
    about = getattr(module, "__dict__", {})
    return [place for place in (about.get("__file__"), *about.get("__path__", ())) if isinstance(place, str)]


@pytest.fixture
def answer(home: Path) -> Any:
    return partial(app_process.answer, Unpacked(), NODE)


def found(answer: Any, bundle: Any, *names: str) -> dict[str, str]:
    """Return whose these modules are in a bundle's app: bundle's or installed."""
    reply = reply_of(answer(task_of(bundle, message(" ".join(names)))))
    if reply.has_error():
        raise ImportError(reply.error.reason)
    return {name: words.split()[0] for name, words in reply.content["found"].items()}


@pytest.mark.slow
def test_a_bundles_own_fairbloom_wins_also_over_what_was_imported_before(answer: Any, home: Path) -> None:
    own = bundle_of(home, "fairbloom.client.app:app", fairbloom_of("first"))
    names = (*INSTALLED, "fairbloom.client.later", "fairbloom.strategies")
    assert found(answer, own, *names) == dict.fromkeys(names, "first")


@pytest.mark.slow
def test_what_a_bundles_own_fairbloom_lacks_is_not_taken_from_the_installed_one(answer: Any, home: Path) -> None:
    own = bundle_of(home, "fairbloom.client.app:app", fairbloom_of("first"))
    with pytest.raises(ImportError, match="ModuleNotFoundError in "):
        found(answer, own, "fairbloom.simulation")


def test_what_runs_the_client_is_never_a_bundles(answer: Any, home: Path) -> None:
    own = bundle_of(home, "fairbloom.client.app:app", fairbloom_of("first"))
    here = ("fairbloom.deploy", "fairbloom.deploy.flower.device.app_process", "fairbloom.deploy.device.bundles")
    assert found(answer, own, *here) == dict.fromkeys(here, "installed")


def test_an_app_with_packages_of_our_names_has_its_own_and_ours_side_by_side(answer: Any, home: Path) -> None:
    mine = bundle_of(home, "mine:app", own_app_of("mine"))
    its = ("client.app", "strategies", "tasks.digits", "deploy", "server")
    ours = (
        "fairbloom.client.app",
        "fairbloom.strategies",
        "fairbloom.tasks.datasets.digits",
        "fairbloom.server.app",
        *INSTALLED,
    )
    assert found(answer, mine, *its, *ours) == {**dict.fromkeys(its, "mine"), **dict.fromkeys(ours, "installed")}


def test_a_bundle_that_cannot_be_imported_is_one_error(answer: Any, home: Path) -> None:
    broken = bundle_of(
        home, "fairbloom.client.app:app", {**fairbloom_of("broken"), "client/app.py": "from . import settings\n1 / 0"}
    )
    for _ in range(2):
        with pytest.raises(ImportError, match=r"ZeroDivisionError in .*app\.py"):
            found(answer, broken, "fairbloom")


@pytest.mark.parametrize("place", ["state-dir", "data-dir"])
def test_where_this_device_keeps_things_wins_over_what_a_run_sets(place: str, home: Path) -> None:
    mine = bundle_of(home, "mine:app", own_app_of("mine"))
    of_device = Context(1, 2, {place: "/of/the/device"}, RecordDict(), {})
    mine[1].override_config = {place: "/of/the/run", "seed": 3}
    _, settings = Unpacked()(*mine, of_device)
    assert settings == {"state-dir": "/of/the/run", place: "/of/the/device", "seed": 3}
