"""Fairbloom from its wheel, and an app with modules of the same names: each finds its own."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.deployment import Deployment, federation, names
from benchmarks.flower import flower
from tests.checkout import BESIDE, INSIDE

from .wheel import installed_wheel

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "own_app"
(CLIENT,) = names(1)
TRAINED = [1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return shutil.copytree(APP, tmp_path / "own_app", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, scripts: Path) -> Iterator[Deployment]:
    """A federation of wheels; the client has the app in a folder on its path."""
    home = tmp_path_factory.mktemp("wheels") / "home"
    with federation(home, 1, scripts) as runtime:
        device = shutil.copytree(APP, home / "device", ignore=shutil.ignore_patterns("__pycache__"))
        runtime.environment["PYTHONPATH"] = str(device)
        runtime.start_client(CLIENT, "--app", "client:app")
        del runtime.environment["PYTHONPATH"]
        runtime.wait_for_clients(CLIENT)
        yield runtime


def assert_each_is_found(places: dict[str, str], own: Path, scripts: Path) -> None:
    """The app's modules are in `own`, and Fairbloom's in the environment with its wheel."""
    for name, place in places.items():
        home = scripts.parent if name.partition(".")[0] == "fairbloom" else own
        assert Path(place).is_relative_to(home), f"{name} is {place}"


def test_plain_python_finds_both(app: Path, scripts: Path) -> None:
    code = "import json, deploy; print(json.dumps(deploy.places()))"
    done = subprocess.run([scripts / "python", "-c", code], cwd=app, capture_output=True, text=True)
    assert_each_is_found(json.loads(done.stdout), app, scripts)


def test_the_wheel_puts_one_name_on_the_path(tmp_path: Path, scripts: Path) -> None:
    code = (
        "import importlib.util, sys; print(*[name for name in sys.argv[1:] if"
        " importlib.util.find_spec(name)])"
    )
    command = [scripts / "python", "-c", code, "fairbloom", *BESIDE, *INSIDE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["fairbloom"]


def test_flwr_run_finds_both(app: Path, scripts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with flower(tmp_path / "home", scripts) as runtime:
        runtime.start_local()
        options = "num-supernodes=2 client-resources-num-cpus=1"
        assert runtime.run("local", {"out": str(out)}, options, app) == "finished:completed"
        written = json.loads(out.read_text())
        assert written["weight"] == TRAINED
        assert_each_is_found(written["places"], tmp_path / "home" / "apps", scripts)


def test_server_and_client_find_both(there: Deployment, app: Path, tmp_path: Path) -> None:
    scripts = there.scripts
    out = tmp_path / "out.json"
    there.wait_for_end(there.submitting({"out": str(out)}, app))
    written = json.loads(out.read_text())
    assert written["weight"] == TRAINED
    assert_each_is_found(written["places"], app, scripts)
    places = there.home / f"state-{CLIENT}" / "places.json"
    assert_each_is_found(json.loads(places.read_text()), there.home / "device", scripts)
