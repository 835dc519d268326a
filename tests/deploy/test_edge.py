"""Scripts and unit of an edge device: checked by tools, and complete in the guide."""

import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.fleet.federation import server_unit
from fairbloom.tasks.permit import SYSTEM_FOLDER

ROOT = Path(__file__).parents[2]
EDGE = ROOT / "deploy" / "edge"
SCRIPTS = sorted(EDGE.glob("*.sh"))
UNIT = "fairbloom-client.service"


def needs(command: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"{command} is not installed")


@needs("shellcheck")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_read_and_run(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert script.stat().st_mode & 0o111


def test_help_names_every_option() -> None:
    printed = subprocess.run(
        [EDGE / "install.sh", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert set(
        re.findall(r"--[a-z-]+(?= \||\))", (EDGE / "install.sh").read_text().partition("opt=")[0])
    ) - {"--help"} <= set(re.findall(r"--[a-z-]+", printed))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--colour", "red"], "unknown option --colour"),
        (["--bundle"], "--bundle needs a value"),
        (["--wheels", "/nowhere"], "--wheels /nowhere has no wheel of fairbloom"),
        (["--bundle", "x.tar.gz"], "say where Fairbloom comes from"),
        (["--python", "/bin/false", "--source", "."], "Python 3.11 or later is needed"),
    ],
)
def test_install_stops_before_it_changes_anything(
    words: list[str], message: str, tmp_path: Path
) -> None:
    if os.getuid() != 0 and message not in ("unknown option --colour", "--bundle needs a value"):
        pytest.skip("only root comes that far")
    done = subprocess.run(
        [EDGE / "install.sh", "--root", tmp_path, *words], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


# Bundles on a device ------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.getuid() != 0, reason="the installation is root's")
GOOD = {
    "ca.crt": b"authority",
    "certificate": b"certificate",
    "key": b"private",
    "client.toml": b'server = "a:1"\n',
    UNIT: b"[Unit]\n",
}


def entry(name: str, content: bytes = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for attribute, value in changes.items():
        setattr(made, attribute, value)
    return made, content


def bundle_with(file: Path, *more: tuple[tarfile.TarInfo, bytes], without: str = "") -> Path:
    """Write a bundle as enroll does, with additional entries."""
    with tarfile.open(file, "w:gz") as bundle:
        good = [
            entry(f"site-a/{name}", content) for name, content in GOOD.items() if name != without
        ]
        for made, content in [*good, *more]:
            bundle.addfile(made, io.BytesIO(content))
    return file


def install(
    home: Path, step: str, bundle: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run one step of install.sh with all its files below a folder of this test."""
    words = ["--root", str(home / "device"), *(["--bundle", str(bundle)] if bundle else [])]
    words += [word for key, value in settings.items() for word in (f"--{key}", value)]
    program = f'source "$1"; shift; read_options "$@"; user=$(id -un); {step}'
    return subprocess.run(
        ["bash", "-c", program, "test", EDGE / "install.sh", *words],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


def etc(home: Path) -> dict[str, bytes]:
    folder = home / "device" / "etc" / "fairbloom"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def installed(**changes: bytes) -> dict[str, bytes]:
    return {name: content for name, content in GOOD.items() if name != UNIT} | changes


SECRET = b"for root alone"

HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a link": lambda at: bundle_with(
        at,
        entry("site-a/ca.crt", type=tarfile.SYMTYPE, linkname=str(at.parent / "secret")),
        without="ca.crt",
    ),
    "a hard link": lambda at: bundle_with(
        at,
        entry("site-a/key", type=tarfile.LNKTYPE, linkname=str(at.parent / "secret")),
        without="key",
    ),
    "a link to a folder": lambda at: bundle_with(
        at, entry("site-a", type=tarfile.SYMTYPE, linkname=str(at.parent))
    ),
    "a link that a file follows": lambda at: bundle_with(
        at,
        entry("site-a/x", type=tarfile.SYMTYPE, linkname=str(at.parent)),
        entry("site-a/x/stolen", b"x"),
    ),
    "an absolute path": lambda at: bundle_with(at, entry(str(at.parent / "stolen"), b"x")),
    "a path upwards": lambda at: bundle_with(at, entry("site-a/../../stolen", b"x")),
    "a folder upwards": lambda at: bundle_with(at, entry("../key", b"x"), without="key"),
    "a second folder": lambda at: bundle_with(at, entry("site-b/key", b"x"), without="key"),
    "no folder": lambda at: bundle_with(at, entry("key", b"x"), without="key"),
    "a file twice": lambda at: bundle_with(at, entry("site-a/key", b"x")),
    "a device": lambda at: bundle_with(
        at, entry("site-a/key", type=tarfile.CHRTYPE, devmajor=1, devminor=5), without="key"
    ),
    "a pipe": lambda at: bundle_with(at, entry("site-a/key", type=tarfile.FIFOTYPE), without="key"),
    "a folder for a file": lambda at: bundle_with(
        at, entry("site-a/key", type=tarfile.DIRTYPE), without="key"
    ),
    "another file": lambda at: bundle_with(at, entry("site-a/authorized_keys", b"x")),
    "a huge file": lambda at: bundle_with(
        at, entry("site-a/key", bytes(200 * 2**20)), without="key"
    ),
    "a huge header": lambda at: bundle_with(
        at, entry("site-a/key", b"x", pax_headers={"comment": "x" * 2**27}), without="key"
    ),
    "a sparse file": lambda at: sparse(at),
    "no certificate": lambda at: bundle_with(at, without="ca.crt"),
    "no settings": lambda at: bundle_with(at, without="client.toml"),
    "no archive": lambda at: Path(shutil.copy(ROOT / "README.md", at)),
    "half an archive": lambda at: cut(bundle_with(at)),
}


def sparse(at: Path) -> Path:
    """Return a sparse file that claims a terabyte; the archive has none of it."""
    sizes = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**40), "GNU.sparse.numblocks": "1"}
    return bundle_with(at, entry("site-a/key", pax_headers=sizes), without="key")


def cut(bundle: Path) -> Path:
    bundle.write_bytes(bundle.read_bytes()[:-40])
    return bundle


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("kind", HOSTILE)
def test_of_a_malicious_bundle_nothing_is_installed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    bundle = HOSTILE[kind](tmp_path / "site-a.tar.gz")
    before = sorted(tmp_path.rglob("*"))
    limits = "ulimit -v 400000"  # kB: a huge entry must be refused before it fills memory
    checked = install(tmp_path, f"{limits}; check_bundle", bundle)
    assert checked.returncode == 1
    assert "is not a client's bundle" in checked.stderr
    assert "Traceback" not in checked.stderr
    assert sorted(tmp_path.rglob("*")) == before
    done = install(tmp_path, f"{limits}; make_folders; install_bundle", bundle)
    assert done.returncode == 1
    assert "is not a client's bundle" in done.stderr
    assert etc(tmp_path) == {}
    assert not (tmp_path / "stolen").exists()


@as_root
def test_a_bundle_is_installed_with_a_key_for_the_service_alone(tmp_path: Path) -> None:
    done = install(
        tmp_path,
        "check_bundle; make_folders; install_bundle",
        bundle_with(tmp_path / "site-a.tar.gz"),
    )
    assert done.returncode == 0, done.stderr
    assert etc(tmp_path) == installed()
    assert stat.S_IMODE((tmp_path / "device" / "etc" / "fairbloom" / "key").stat().st_mode) == 0o600


@as_root
def test_a_bundle_as_enroll_makes_it_is_taken(tmp_path: Path) -> None:
    # with an entry for the folder, as tar writes it
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as bundle:
        bundle.addfile(*entry("site-a", type=tarfile.DIRTYPE)[:1])
        for name, content in GOOD.items():
            made, _ = entry(f"site-a/{name}", content)
            bundle.addfile(made, io.BytesIO(content))
    assert install(tmp_path, "check_bundle", tmp_path / "x.tar.gz").returncode == 0


@as_root
@pytest.mark.parametrize("make", [bundle_with, HOSTILE["a link"]])
def test_nothing_of_an_unpacked_bundle_is_left_over(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    (tmp_path / "tmp").mkdir()
    install(
        tmp_path,
        f"export TMPDIR='{tmp_path / 'tmp'}'; make_folders; install_bundle",
        make(tmp_path / "bundle.tar.gz"),
    )
    assert not list((tmp_path / "tmp").iterdir())


def python_of(home: Path) -> None:
    """Link this Python to the place of the installation's Python."""
    venv = home / "device" / "opt" / "fairbloom" / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    (venv / "python").chmod(0o755)


@as_root
def test_a_key_of_the_device_stays_with_a_bundle_without_one(tmp_path: Path) -> None:
    bundle = bundle_with(tmp_path / "site-a.tar.gz", without="key")
    folder = tmp_path / "device" / "etc" / "fairbloom"
    early = install(tmp_path, "check_bundle", bundle)
    assert "has no key, and this device has none: make it first, by --keys NAME" in early.stderr
    python_of(tmp_path)
    made = install(tmp_path, "check; make_folders; make_keys", keys="site-a")
    assert made.returncode == 0, made.stderr
    request = (folder / "site-a.request").read_text()
    assert made.stdout.startswith(request)
    assert pki.read_request(request, "stdout")[1] == "site-a"
    key = (folder / "key").read_bytes()
    assert b"PRIVATE KEY" in key
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    done = install(tmp_path, "check_bundle; make_folders; install_bundle", bundle)
    assert done.returncode == 0, done.stderr
    assert etc(tmp_path) == installed(key=key) | {"site-a.request": request.encode()}
    again = install(tmp_path, "check; make_keys", keys="site-a")
    assert again.returncode == 1
    assert "key is there already" in again.stderr
    assert (folder / "key").read_bytes() == key


def test_what_a_device_needs_goes_with_the_wheels() -> None:
    """The installation runs from the folder that wheels.sh has gathered."""
    used = set(re.findall(r"\$here/([a-z]+\.py)", (EDGE / "install.sh").read_text()))
    assert used | {"install.sh"} <= set(
        re.findall(r"\$here/([a-z]+\.(?:py|sh))", (EDGE / "wheels.sh").read_text())
    )


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["fairbloom-client.service", "fairbloom-server.service"])
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    client = (
        (EDGE / "fairbloom-client.service")
        .read_text()
        .replace("/opt/fairbloom/venv/bin/python", sys.executable)
    )
    (tmp_path / name).write_text(client if "client" in name else server_unit(tmp_path))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True
    )
    assert name not in done.stderr, done.stderr


def test_a_client_starts_without_the_servers_libraries() -> None:
    """The client's command loads neither PyTorch nor Flower nor a server's library."""
    program = (
        "import sys; sys.argv[1:] = ['client', 'x/client.toml']; import runpy\ntry:"
        " runpy.run_module('fairbloom.deploy', run_name='__main__')\nexcept SystemExit as end:"
        " print(end.code, *sorted({'torch', 'flwr', 'pydantic', 'cvxopt'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["2"]
    assert "x/client.toml cannot be read" in done.stderr


# The device's data --------------------------------------------------------------------------------


@as_root
def test_the_devices_data_folder_is_in_its_settings_whole(tmp_path: Path) -> None:
    data = tmp_path / "our data"
    bundle = bundle_with(tmp_path / "site-a.tar.gz")
    data.mkdir()
    words = {"data-dir": f"{data}/../our data"}
    done = install(tmp_path, "check_data; make_folders; install_bundle", bundle, **words)
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(etc(tmp_path)["owner.toml"].decode()) == {"data-dir": str(data)}


@pytest.mark.parametrize(
    ("name", "words"),
    [("nowhere", "folder not found"), ("file", "folder not found")]
    + [(name, "cannot hold a path with these signs") for name in ('a"b', "a\\b", "a%b")],
)
def test_a_data_folder_that_cannot_be_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    if name not in ("nowhere", "file"):
        (tmp_path / name).mkdir()
    done = install(tmp_path, "check_data", **{"data-dir": str(tmp_path / name)})
    assert done.returncode == 1
    assert words in done.stderr


# A second bundle ----------------------------------------------------------------------------------


@as_root
def test_a_second_bundle_replaces_only_the_operators_file(tmp_path: Path) -> None:
    """Otherwise, the device would train without its data or refuse its task."""
    folder = tmp_path / "device" / "etc" / "fairbloom"
    first = bundle_with(tmp_path / "1.tar.gz")
    assert install(tmp_path, "check_bundle; make_folders; install_bundle", first).returncode == 0
    (folder / "owner.toml").write_text('# ward 3\nallow = ["mylab.hearts:load"]\n')
    before = etc(tmp_path)
    settings = b'server = "b:2"\npartition-id = 2\n'
    second = bundle_with(
        tmp_path / "2.tar.gz", entry("site-a/client.toml", settings), without="client.toml"
    )
    done = install(tmp_path, "check_bundle; make_folders; install_bundle", second)
    assert done.returncode == 0, done.stderr
    assert etc(tmp_path) == before | {"client.toml": settings}
    refused = install(tmp_path, "check_data", **{"data-dir": str(tmp_path)})
    assert refused.returncode == 1
    assert "owner.toml is there and is yours: write data-dir into it" in refused.stderr


def test_the_service_may_write_the_folder_of_accounts() -> None:
    assert f"StateDirectory=fairbloom {SYSTEM_FOLDER.name}\n" in (EDGE / UNIT).read_text()
