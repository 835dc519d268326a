"""Fairbloom from its wheel, beside an app whose modules have the names of our packages: each finds its own."""

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import PACKAGES, ROOT, copy_packages
from tests.deploy.federation import Deployment, federation, names, rounds
from tests.deploy.flower import flower

from .wheel import installed_wheel

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "own_app"
OURS, LIVE = names(2)
"""A client that runs the app that is installed on it, and one that runs the bundle that comes."""

TRAINED = [1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return shutil.copytree(APP, tmp_path / "own_app", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, scripts: Path) -> Iterator[Deployment]:
    """A federation of wheels; one client has the app in a folder on its path, the other has nothing of it."""
    home = tmp_path_factory.mktemp("wheels") / "home"
    with federation(home, 2, scripts) as runtime:
        device = shutil.copytree(APP, home / "device", ignore=shutil.ignore_patterns("__pycache__"))
        runtime.environment["PYTHONPATH"] = str(device)
        runtime.start_client(OURS, "--app", "client:app")
        del runtime.environment["PYTHONPATH"]
        runtime.start_client(LIVE, "--bundles", "any")
        runtime.wait_for_clients(OURS, LIVE)
        yield runtime


def assert_each_is_found(places: dict[str, str], own: Path, scripts: Path) -> None:
    """The app's modules lie in `own`, and Fairbloom's where its wheel was installed."""
    for name, place in places.items():
        home = scripts.parent if name.partition(".")[0] == "fairbloom" else own
        assert Path(place).is_relative_to(home), f"{name} is {place}"


def test_plain_python_finds_both(app: Path, scripts: Path) -> None:
    code = "import json, deploy; print(json.dumps(deploy.places()))"
    done = subprocess.run([scripts / "python", "-c", code], cwd=app, capture_output=True, text=True)
    assert_each_is_found(json.loads(done.stdout), app, scripts)


def test_the_wheel_puts_one_name_on_the_path(tmp_path: Path, scripts: Path) -> None:
    code = "import importlib.util, sys; print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    command = [scripts / "python", "-c", code, "fairbloom", *PACKAGES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["fairbloom"]


def test_flwr_run_finds_both(app: Path, scripts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with flower(tmp_path / "home", scripts) as runtime:
        options = "num-supernodes=2 client-resources-num-cpus=1"
        assert runtime.run("local", {"out": str(out)}, options, app) == "finished:completed"
        written = json.loads(out.read_text())
        assert written["weight"] == TRAINED
        assert_each_is_found(written["places"], tmp_path / "home" / "apps", scripts)


def run_own_app(there: Deployment, app: Path, out: Path) -> None:
    """Run the app, and see that server and clients found each module where it belongs."""
    scripts, unpacked = there.scripts, there.home / "apps"
    submitted = there.submitting({"out": str(out)}, app)
    there.wait_for_end(submitted)
    written = json.loads(out.read_text())
    assert written["weight"] == TRAINED
    assert_each_is_found(written["places"], there.folder / "state", scripts)
    for name, own in ((OURS, there.home / "device"), (LIVE, unpacked)):
        assert_each_is_found(json.loads((there.home / f"state-{name}" / "places.json").read_text()), own, scripts)


def test_server_and_clients_of_both_kinds_find_both(there: Deployment, app: Path, tmp_path: Path) -> None:
    run_own_app(there, app, tmp_path / "out.json")


def test_a_changed_fairbloom_that_is_submitted_runs_once(there: Deployment, app: Path, tmp_path: Path) -> None:
    """The server runs it, and the client that runs what comes; all else that was imported is as before."""
    changed, marks, out = tmp_path / "changed", tmp_path / "marks", there.home / "run"
    marks.mkdir()
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    copy_packages({pattern.partition("/")[0] for pattern in about["fab-include"]}, changed)
    for file in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / file, changed)
    of_both, of_server = ("fairbloom/__init__.py", "client/__init__.py", "client/app.py"), ("server/app.py",)
    for name in (*of_both, *of_server):
        mark = str(marks / name.replace("/", "-"))
        with (changed / name).open("a") as file:
            file.write(f"\nimport os, pathlib\npathlib.Path({mark!r} + '-' + str(os.getpid())).touch()\n")
    settings = {"clients": 2, "fraction": 1.0, "num-rounds": 1, "evaluate-every": 0, "device": "cpu", "out": str(out)}
    submitted = there.submitting(settings, changed)
    there.wait_for_end(submitted)
    assert [row["replies_used"] for row in rounds(out)] == ["2"]  # the other one adds one to whatever it gets
    (node,) = there.offspring(there.clients[LIVE])
    touched = {mark.name for mark in marks.iterdir()}
    assert {mark for mark in touched if mark.endswith(f"-{node}")} == {
        f"{name.replace('/', '-')}-{node}" for name in of_both
    }
    others = {mark.rpartition("-")[0] for mark in touched if not mark.endswith(f"-{node}")}
    assert {"fairbloom-__init__.py", "server-app.py"} <= others
    run_own_app(there, app, tmp_path / "out.json")
