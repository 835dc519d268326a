"""What of a run's bundle reaches a client that runs installed code: settings, and nothing else that it tries."""

import hashlib
import io
import re
import stat
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run

from fairbloom.deploy.apps import load_app
from fairbloom.deploy.device import bundles
from fairbloom.deploy.device.bundles import BundleRefusedError, Installed, config_of, distribution_of
from fairbloom.deploy.device.client import APP, ClientSettings
from fairbloom.deploy.flower.device import app_process
from fairbloom.deploy.flower.device.worker import Worker

from .apps import message, reply_of, task_of
from .apps import run_of as run_of_bundle

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
VERSION = version("fairbloom")
SETTINGS = {"clients": 3, "device": "cpu"}


def packed(files: dict[str, bytes | str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in files.items():
            bundle.writestr(name, text)
    return content.getvalue()


def listed(files: dict[str, str]) -> dict[str, bytes | str]:
    """Return files with the list that Flower asks for before it runs them."""
    lines = [f"{name},{hashlib.sha256(text.encode()).hexdigest()},{len(text) * 8}" for name, text in files.items()]
    return {**files, ".info/CONTENT": "\n".join(lines)}


def run_of(content: bytes, *, fab_id: str = "fairbloom/fairbloom", fab_version: str = VERSION, **settings: Any) -> Run:
    run = run_of_bundle(content)
    run.fab_id, run.fab_version = fab_id, fab_version
    run.override_config = {**SETTINGS, **{key.replace("_", "-"): value for key, value in settings.items()}}
    return run


def answered(installed: Installed, content: bytes, run: Run) -> Any:
    """Return a client's reply to the question who it is."""
    task = task_of((content, run), message("", "query"))
    return reply_of(app_process.answer(installed, {"partition-id": 1}, task))


def context(**node: Any) -> Context:
    return Context(1, 2, {"partition-id": 1, **node}, RecordDict(), {})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    return tmp_path


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed.of(APP, ())


# Bundles that name other code ---------------------------------------------------------------------------------------


def evil(mark: Path) -> str:
    return f"""
import pathlib; pathlib.Path({str(mark)!r}).touch()
from fairbloom.client.app import app as theirs
app = theirs
"""


def project(clientapp: str) -> str:
    changed = PROJECT.replace('clientapp = "fairbloom.clientapp:app"', f'clientapp = "{clientapp}"')
    assert tomllib.loads(changed)["tool"]["flwr"]["app"]["components"]["clientapp"] == clientapp
    return changed


ATTACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "in server/": ("fairbloom.server.evil:app", ("server/evil.py", "fairbloom/server/evil.py")),
    "in strategies/": ("fairbloom.strategies.evil:app", ("strategies/evil.py", "fairbloom/strategies/evil.py")),
    "in fairbloom/": ("fairbloom.evil:app", ("fairbloom/evil.py", "fairbloom/errors.py", "fairbloom.py")),
    "in place of fairbloom": ("fairbloom:app", ("fairbloom/__init__.py",)),
    "under a name of ours alone": ("server.evil:app", ("server/__init__.py", "server/evil.py")),
    "in a new folder": ("brandnew.evil:app", ("brandnew/__init__.py", "brandnew/evil.py")),
    "in a top-level module": ("evil:app", ("evil.py",)),
    "in place of ours": (
        "fairbloom.client.app:app",
        ("client/__init__.py", "client/app.py", "client/settings.py", "tasks/__init__.py", "fairbloom/client/app.py"),
    ),
    "by a .pth": ("fairbloom.client.app:app", ("evil.pth", "site-packages/evil.pth")),
    "by sitecustomize": ("fairbloom.client.app:app", ("sitecustomize.py", "usercustomize.py")),
    "by hiding a library": (
        "fairbloom.client.app:app",
        ("torch/__init__.py", "numpy.py", "sklearn/__init__.py", "json.py"),
    ),
    "by a path upwards": ("fairbloom.client.app:app", ("../../evil.py", "../apps/evil.py", "client/../../../evil.py")),
    "by an absolute path": ("fairbloom.client.app:app", ("/tmp/fairbloom-evil/evil.py",)),
    "as compiled code": ("evil:app", ("evil.pyc", "__pycache__/evil.cpython-311.pyc", "evil.so")),
    "as the settings' own backend": ("fairbloom.client.app:app", ("setup.py", "conftest.py", "client.toml")),
}


@pytest.mark.parametrize("how", ATTACKS)
def test_code_of_a_bundle_is_neither_unpacked_nor_imported(how: str, installed: Installed, home: Path) -> None:
    clientapp, files = ATTACKS[how]
    mark = home / "mark"
    fab = packed(listed({"pyproject.toml": project(clientapp), **dict.fromkeys(files, evil(mark))}))
    paths, modules = list(sys.path), {name for name in sys.modules if "evil" in name or "brandnew" in name}

    reply = answered(installed, fab, run_of(fab))

    assert reply.content["client"]["name"] == "client-1"
    assert not mark.exists()
    assert not list(home.rglob("*evil*"))
    assert not Path("/tmp/fairbloom-evil").exists()
    assert not (home / "flower").exists()
    assert sys.path == paths
    assert {name for name in sys.modules if "evil" in name or "brandnew" in name} == modules


@pytest.mark.slow
def test_a_workers_process_runs_none_of_it_either(home: Path) -> None:
    mark = home / "mark"
    files = {name: evil(mark) for _, names in ATTACKS.values() for name in names}
    fab = packed({"pyproject.toml": project("fairbloom.evil:app"), **files})
    worker = Worker(ClientSettings(superlink="a:1", insecure=True, partition_id=1))
    runs = (run_of(fab), run_of(fab, fab_id="mylab/other"))
    reply, refusal = (reply_of(worker.answer(task_of((fab, run), message("", "query")), "1/one")) for run in runs)
    worker.end()
    assert reply.content["client"]["name"] == "client-1"
    assert not mark.exists()
    assert not (home / "flower").exists()
    assert "install the same version on both" in refusal.error.reason


def test_links_in_a_bundle_lead_nowhere(installed: Installed, home: Path) -> None:
    (home / "secret").write_text("secret")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        link = zipfile.ZipInfo("pyproject.toml")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        bundle.writestr(link, str(home / "secret"))
    fab = content.getvalue()
    reason = answered(installed, fab, run_of(fab)).error.reason
    assert "settings of the run's bundle cannot be read: TOMLDecodeError" in reason


# Bundles that cannot be read ----------------------------------------------------------------------------------------


def twice() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr("pyproject.toml", PROJECT)
        with pytest.warns(UserWarning, match="Duplicate name"):
            bundle.writestr("pyproject.toml", project("evil:app"))
    return content.getvalue()


def bomb() -> bytes:
    """300 MB that are packed into 300 kB."""
    content = io.BytesIO()
    with (
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle,
        bundle.open("pyproject.toml", "w") as member,
    ):
        for _ in range(300):
            member.write(b"#" * 2**20)
    return content.getvalue()


def otherwise_packed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as bundle:
        bundle.writestr("pyproject.toml", PROJECT)
    return content.getvalue()


def damaged() -> bytes:
    content = bytearray(packed({"pyproject.toml": PROJECT}))
    content[200] ^= 0xFF
    return bytes(content)


def encrypted() -> bytes:
    content = packed({"pyproject.toml": PROJECT})
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")


UNREADABLE: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a zip": (lambda: b"no bundle", "BadZipFile"),
    "empty": (lambda: b"", "BadZipFile"),
    "cut off": (lambda: packed({"pyproject.toml": PROJECT})[:-30], "BadZipFile"),
    "damaged": (damaged, "cannot be read"),
    "encrypted": (encrypted, "RuntimeError"),
    "without settings": (lambda: packed({"client/app.py": ""}), "0 files pyproject.toml"),
    "settings in a folder": (lambda: packed({"x/pyproject.toml": PROJECT, "./pyproject.toml": PROJECT}), "0 files"),
    "settings twice": (twice, "2 files pyproject.toml"),
    "a zip bomb": (bomb, "more than 262144 bytes"),
    "packed by LZMA": (otherwise_packed, "packed in a way that is not read"),
    "too large": (lambda: bytes(bundles.LARGEST_BUNDLE + 1), "10485760 are the most"),
    "too many files": (lambda: packed(dict.fromkeys(map(str, range(10_001)), "")), "more than 10000 files"),
    "no TOML": (lambda: packed({"pyproject.toml": "a = "}), "TOMLDecodeError"),
    "no text": (lambda: packed({"pyproject.toml": b"\xff\xfe"}), "UnicodeDecodeError"),
    "no app": (lambda: packed({"pyproject.toml": "[project]"}), "KeyError"),
    "settings that are none": (lambda: packed({"pyproject.toml": "[tool.flwr.app]\nconfig = 3"}), "AttributeError"),
    "a list": (lambda: packed({"pyproject.toml": "[tool.flwr.app.config]\nseed = [1]"}), "setting seed is neither"),
    "deep": (lambda: packed({"pyproject.toml": f"a = {'[' * 100_000}"}), "RecursionError"),
    "deep settings": (lambda: packed({"pyproject.toml": f"[tool.flwr.app.config{'.a' * 50_000}]"}), "RecursionError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_bundle_that_cannot_be_read_is_refused(kind: str) -> None:
    make, words = UNREADABLE[kind]
    with pytest.raises(BundleRefusedError, match=words) as error:
        config_of(make())
    assert "the run's" in str(error.value)
    assert len(str(error.value)) < 400


def test_a_zip_bomb_fills_no_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(bomb())
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from fairbloom.deploy.device.bundles import BundleRefusedError, config_of
        content = Path(sys.argv[1]).read_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            config_of(content)
        except BundleRefusedError:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "bomb"], cwd=ROOT, capture_output=True, text=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 20e6, done.stderr


def test_the_settings_are_those_that_flower_reads(installed: Installed) -> None:
    from flwr.common.config import get_fused_config_from_fab

    fab = packed({"pyproject.toml": PROJECT})
    run = run_of(fab, seed=7)
    assert {**config_of(fab), **run.override_config} == get_fused_config_from_fab(fab, run)


@pytest.mark.parametrize("kind", ["not a zip", "a zip bomb", "settings twice", "deep"])
def test_a_bad_bundle_is_one_error_reply_and_the_next_message_is_answered(
    kind: str, installed: Installed, home: Path
) -> None:
    bad, good = (
        answered(installed, fab, run_of(fab)) for fab in (UNREADABLE[kind][0](), packed({"pyproject.toml": PROJECT}))
    )
    assert bad.error.code == ErrorCode.INVALID_FAB
    assert re.search(UNREADABLE[kind][1], bad.error.reason)
    assert not good.has_error()
    assert not (home / "flower" / "apps").exists()


# Versions and settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fab_id", "fab_version"),
    [("mylab/hearts", "1.1"), ("mylab/other", "1.0"), ("fairbloom/fairbloom", "1.0"), ("mylab/hearts", "1.0.post1")],
)
def test_another_app_or_version_is_refused_with_both_named(fab_id: str, fab_version: str) -> None:
    fab, hearts = packed({"pyproject.toml": PROJECT}), Installed(APP, distribution=("hearts", "1.0"))
    with pytest.raises(BundleRefusedError) as error:
        hearts(fab, run_of(fab, fab_id=fab_id, fab_version=fab_version), context())
    assert str(error.value) == (
        f"the run is of {fab_id} {fab_version}, this client has hearts 1.0 installed: install the same version on both"
    )
    hearts(fab, run_of(fab, fab_id="mylab/hearts", fab_version="1.0"), context())


@pytest.mark.parametrize("fab_version", ["0.0.9", f"{VERSION}.post1", "7.0"])
def test_a_run_of_another_version_of_ours_is_taken(installed: Installed, fab_version: str) -> None:
    """The protocol number, which each message has, says whether the two fit."""
    fab = packed({"pyproject.toml": PROJECT})
    app, _ = installed(fab, run_of(fab, fab_version=fab_version), context())
    assert app is sys.modules["fairbloom.client.app"].app
    with pytest.raises(BundleRefusedError, match="the run is of fairbloom/other"):
        installed(fab, run_of(fab, fab_id="fairbloom/other"), context())


def test_the_installed_app_gets_the_short_list_and_the_devices_own_places(installed: Installed, tmp_path: Path) -> None:
    fab = packed({"pyproject.toml": PROJECT})
    run = run_of(fab, state_dir="/etc", out="/root", data_dir="/home", method="fedfv")
    where = context(**{"state-dir": str(tmp_path), "name": "site-a"})
    _, settings = installed(fab, run, where)
    assert settings["state-dir"] == str(tmp_path)
    assert not {"out", "data-dir", "fraction"} & set(settings)
    assert settings["method"] == "fedfv"  # which an owner may limit
    assert settings["clients"] == SETTINGS["clients"]
    _, settings = installed(fab, run, context())
    assert not {"state-dir", "data-dir"} & set(settings)
    _, settings = installed(fab, run, context(**{"data-dir": "/of/the/device"}))
    assert settings["data-dir"] == "/of/the/device"


def test_a_runs_import_string_is_refused_unless_the_devices_owner_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without her leave the module is not even imported; with it, its settings are known."""
    (tmp_path / "hers_on_device.py").write_text("def load(setup, *, noise: float = 0.1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    fab = packed({"pyproject.toml": PROJECT})
    task = "hers_on_device:load"
    run = run_of(fab, task=task, **{"own-settings": "load.noise=0.3"})
    with pytest.raises(BundleRefusedError, match=f"the run sets task = '{task}', and this client allows no"):
        Installed.of(APP, ())(fab, run, context())
    assert "hers_on_device" not in sys.modules
    _, settings = Installed.of(APP, (task,))(fab, run, context())
    assert settings["task"] == task
    assert settings["load.noise"] == 0.3
    del sys.modules["hers_on_device"]


# The app that is installed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [("fairbloom.client.app", "fairbloom"), ("numpy", "numpy"), ("flwr", "flwr"), ("sklearn", "scikit-learn")],
)
def test_an_installed_module_is_found_in_its_distribution(module: str, name: str) -> None:
    assert distribution_of(module) == (name, version(name))


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An app that lies on the path without having been installed."""
    (tmp_path / "loose_app.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\nnumber = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "loose_app"
    sys.modules.pop("loose_app", None)


def test_an_app_that_was_never_installed_has_no_version_to_compare(loose: str) -> None:
    fab = packed({"pyproject.toml": PROJECT})
    mine = Installed.of(f"{loose}:app", ())
    assert mine.distribution is None
    app, _ = mine(fab, run_of(fab, fab_id="mylab/loose", fab_version="3"), context())
    assert app is sys.modules[loose].app


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("loose_app:nothing", "has no attribute 'nothing'"),
        ("loose_app:number", "is of type int, no ClientApp"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_named(loose: str, app: str, words: str) -> None:
    with pytest.raises(ImportError, match=words) as error:
        load_app(app, ClientApp, "this client")
    assert f"app = '{app}' of this client" in str(error.value)
