"""A bundle with other code than is installed, submitted with the credential: no client runs, imports or unpacks it."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.deploy.device.client import APP
from tests.checkout import ROOT, copy_packages
from tests.deploy.federation import Deployment, federation, names, rounds
from tests.simulation.helpers import table

pytestmark = pytest.mark.slow

CLIENTS = names(2)
MARK = """
import os, pathlib
pathlib.Path({folder!r}, f"{{os.getpid()}}-{name}").touch()
"""
EVIL_APP = MARK + "from fairbloom.client.app import app as theirs\napp = theirs\n"
CHANGED = (
    "fairbloom/__init__.py",
    "client/__init__.py",
    "client/app.py",
    "client/settings.py",
    "tasks/datasets/digits.py",
)
"""Files of ours that a bundle brings in place of the installed ones."""

NEW = (
    *("fairbloom/evil.py", "fairbloom/client/app.py", "server/evil.py", "strategies/evil.py", "evil/__init__.py"),
    *("evil/app.py", "evil.py", "sitecustomize.py"),
)
"""Files that a bundle brings beside ours."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with two clients of the default kind."""
    with federation(tmp_path_factory.mktemp("bundles") / "home", len(CLIENTS)) as runtime:
        runtime.start_clients(*CLIENTS)
        yield runtime


def project(folder: Path, *, app: str = APP, version: str = "0.1.0", settings: str = "") -> Path:
    """Fairbloom's app, with some things changed in its pyproject.toml."""
    about = (ROOT / "pyproject.toml").read_text()
    patterns = tomllib.loads(about)["tool"]["flwr"]["app"]["fab-include"]
    copy_packages((pattern.partition("/")[0] for pattern in patterns), folder)
    about = about.replace('clientapp = "fairbloom.clientapp:app"', f'clientapp = "{app}"').replace(
        'version = "0.1.0"', f'version = "{version}"'
    )
    about = about.replace("fab-include = [", 'fab-include = ["*.py", "evil/*.py", "fairbloom/client/*.py", ')
    (folder / "pyproject.toml").write_text(about.replace('state-dir = ""', f'state-dir = "{settings}"'))
    shutil.copy(ROOT / "LICENSE", folder)
    for file in ("evil/__init__.py", "plain.py", "fairbloom/client/empty.py"):  # Flower asks that each pattern be met
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    return folder


def clients_of(there: Deployment) -> set[str]:
    """The ids of the clients' processes."""
    return {str(pid) for process in there.clients.values() for pid in (process.pid, *there.offspring(process))}


@pytest.mark.parametrize("app", ["fairbloom.server.evil:app", "server.evil:app", "fairbloom.evil:app", "evil.app:app"])
def test_a_bundle_with_its_own_client_app_runs_the_installed_one(there: Deployment, tmp_path: Path, app: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    bundle = project(tmp_path / "app", app=app, settings=str(tmp_path / "stolen"))
    for file in NEW:
        (bundle / file).write_text(EVIL_APP.format(folder=str(marks), name=file.replace("/", ".")))
    for file in CHANGED:
        with (bundle / file).open("a") as code:
            code.write(MARK.format(folder=str(marks), name=file.replace("/", ".")))
    out = there.home / f"run-{app.partition(':')[0]}"
    settings = {"clients": 2, "fraction": 1.0, "num-rounds": 1, "method": "ditto", "device": "cpu", "out": str(out)}
    submitted = there.submitting(settings, bundle)
    there.wait_for_end(submitted)
    assert [row["replies_used"] for row in rounds(out)] == ["2"]
    assert len(table(out / "clients.csv")) == 2
    touched = [mark.name.partition("-") for mark in marks.iterdir()]
    assert "fairbloom.__init__.py" in {file for _, _, file in touched}  # on the server, which runs what is submitted
    assert not {pid for pid, _, _ in touched} & clients_of(there)
    assert not (tmp_path / "stolen").exists()  # personal models are in the device's own folder
    for name in CLIENTS:
        state = there.home / f"state-{name}"
        assert list(state.rglob("*.safetensors"))
        assert not list(state.rglob("evil*"))
        assert not (state / "flower" / "apps").exists()  # nothing was unpacked


def test_a_bundle_of_another_version_runs_the_installed_code(there: Deployment, tmp_path: Path) -> None:
    """What fits is said by the number in each message; a version that a bundle names decides nothing."""
    out, marks = there.home / "run-version", tmp_path / "marks"
    marks.mkdir()
    bundle = project(tmp_path / "app", version="6.6.6")
    with (bundle / "client" / "app.py").open("a") as code:
        code.write(MARK.format(folder=str(marks), name="client.app.py"))
    settings = {"clients": 2, "fraction": 1.0, "num-rounds": 1, "device": "cpu", "out": str(out)}
    there.submit(settings, bundle)
    assert [row["replies_used"] for row in rounds(out)] == ["2"]
    assert not {mark.name.partition("-")[0] for mark in marks.iterdir()} & clients_of(there)
    assert there.online() >= set(CLIENTS)
