"""What is built: a wheel, sources that make the same wheel, and a page whose links work; what is
installed of it runs.

Imported libraries are declared: another library that needs one today may drop it.
"""

import ast
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email.parser import Parser
from functools import cache
from importlib.metadata import packages_distributions
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fairbloom import __version__
from tests.checkout import BESIDE, ROOT
from tests.runtimes.wheel import installed_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = [sys.executable, "-m", "hatchling", "build"]
HOSTS = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com)/fairbloom/fairbloom/(?:blob/main|main)/([^)#]+)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both files."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([*BUILD, "-d", folder], cwd=ROOT, check=True, capture_output=True)
    return folder


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def tracked_files() -> set[str]:
    """The files that git knows of the packages, by their paths in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "fairbloom", *BESIDE], cwd=ROOT, capture_output=True, check=True
    )
    files = [Path(name) for name in listed.stdout.decode().splitlines()]
    return {
        str(path if path.parts[0] == "fairbloom" else Path("fairbloom", path))
        for path in files
        if not (ROOT / path).is_symlink()
    }


def copy_of_checkout(folder: Path) -> Path:
    """Copy what git knows, with a text file in place of each link, as pip does from a zip."""
    whole = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(whole)) as archive:
        archive.extractall(folder, filter="data")
    for name in BESIDE:
        (folder / "fairbloom" / name).unlink()
        (folder / "fairbloom" / name).write_text(f"../{name}")
    return folder


def unpacked_sources(built: Path, folder: Path) -> Path:
    """Unpack the archive of sources."""
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    return folder / sources.name.removesuffix(".tar.gz")


def modules_in(wheel: Path) -> set[str]:
    """The files of a wheel without its own."""
    return {name for name in names_in(wheel) if ".dist-info/" not in name}


def test_a_wheel_of_a_checkout_has_every_tracked_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    files = tracked_files()
    assert len(files) > 400
    assert modules_in(wheel) == files


def test_the_archive_of_sources_has_each_file_once(built: Path, tmp_path: Path) -> None:
    folder = unpacked_sources(built, tmp_path)
    found = [path for room in ("fairbloom", *BESIDE) for path in (folder / room).rglob("*")]
    assert sum(path.is_file() for path in found) == len(tracked_files())


@pytest.mark.parametrize("source", ["a zip without links", "the archive of sources"])
def test_other_sources_make_the_same_wheel(built: Path, tmp_path: Path, source: str) -> None:
    if source == "the archive of sources":
        folder = unpacked_sources(built, tmp_path)
    else:
        folder = copy_of_checkout(tmp_path / "zip")
    subprocess.run(
        [*BUILD, "-t", "wheel", "-d", tmp_path], cwd=folder, check=True, capture_output=True
    )
    (here,) = built.glob("*.whl")
    (there,) = tmp_path.glob("*.whl")
    assert names_in(here) == names_in(there)


def test_a_checkout_without_links_is_imported(tmp_path: Path) -> None:
    folder = copy_of_checkout(tmp_path / "zip")
    done = subprocess.run(
        [sys.executable, "-c", "import fairbloom.server as found; print(found.__file__)"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(folder / "server" / "__init__.py"), done.stderr


def test_twine_finds_nothing_wrong(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()], capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode()


def test_links_and_pictures_lead_to_files_of_the_repository(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = Parser().parsestr(archive.read(name).decode())
    page = about.get_payload()
    assert isinstance(page, str)
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))
    ours = [found for link in links for found in HOSTS.findall(link)]
    assert not [link for link in links if not link.startswith("https://")]
    assert len(ours) > 10
    assert not [path for path in ours if not (ROOT / path).is_file()]
    assert {"Source", "Documentation", "Changelog", "Issues"} <= {
        url.partition(",")[0] for url in about.get_all("Project-URL", [])
    }


# Installed ----------------------------------------------------------------------------------------


def demo() -> list[str]:
    """Return the words of the command of `make demo`."""
    (command,) = re.findall(
        r"^demo: .*\n\t\$\(BIN\)/(fairbloom (?:.*\\\n)*.*)",
        (ROOT / "Makefile").read_text(),
        re.MULTILINE,
    )
    return shlex.split(command.replace("\\\n", " ").replace("$(DEMO)", "runs/demo"))


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the digest of each file in a folder, but what Python compiles."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


@pytest.mark.slow
def test_what_is_installed_runs_the_demo(
    built: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """With fewer seeds and rounds, in an environment that has nothing of this checkout; the
    repository is as of its last commit. What has the same files as another form runs no second
    time.

    PyTorch and the other libraries would take minutes and a network to install: they are those of
    the Python that tests.
    """
    (wheel,) = built.glob("*.whl")
    (sources,) = built.glob("*.tar.gz")
    forms: dict[str, Path | str] = {"wheel": wheel, "sources": sources}
    if (ROOT / ".git").exists():
        forms["repository"] = f"git+file://{ROOT}"
    tried = list[dict[str, bytes]]()
    name, *words = demo()
    for form, source in forms.items():
        with subtests.test(form=form):
            folder = tmp_path / form
            scripts = installed_wheel(folder, source)
            place = printed_by(folder, scripts / "python", "-c", FIND).strip()
            assert Path(place).is_relative_to(scripts.parent)
            assert __version__ in printed_by(folder, scripts / name, "--version")
            content = content_of(Path(place).parent)
            if content not in tried:
                tried.append(content)
                few = ("--seeds", "2", "--rounds", "5")
                assert "FedMGDAPlus" in printed_by(folder, scripts / name, *words, *few)
                assert (folder / "runs" / "demo" / "report.html").is_file()


FIND = "import fairbloom; print(fairbloom.__file__)"


def printed_by(folder: Path, *command: Path | str) -> str:
    """Return what a command prints that has nothing of this checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]

PACKAGES = ROOT / "fairbloom"

# The modules that a device and a server start with.
STARTS = {
    "client": ("cli.device", "deploy.fleet.client", "deploy.fleet.app_process", "client.app"),
    "server": ("cli.deploy", "deploy.fleet.daemon", "deploy.fleet.run_process", "server.app"),
}

# `deploy submit --refit` reads a comparison on the machine that has made it with a whole install.
COMPARISON = "experiments.studies.compare"

# Extras for one feature each. The import happens in use, and its error names the extra.
OPTIONAL = ("ray", "excel", "torchjd", "images", "vision")

# Functions that take the name of a module as a string.
LATE = ("import_module", "find_spec")


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by their dotted names within the package."""
    folders = [path for path in PACKAGES.iterdir() if path.is_dir()]
    files = [*PACKAGES.glob("*.py"), *(path for room in folders for path in room.rglob("*.py"))]
    found = {}
    for path in files:
        parts = path.relative_to(PACKAGES).with_suffix("").parts
        if "template" in parts:  # a user's app
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


@cache
def imports(name: str) -> list[str]:
    """Return the full names that a module imports, at its top or within functions."""
    return [*imported_by(modules()[name], name)]


def imported_by(path: Path, name: str) -> Iterator[str]:
    package = ["fairbloom", *name.split(".")] if name else ["fairbloom"]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in LATE:
            named = node.args[0]
            if isinstance(named, ast.Constant) and not named.value.startswith("."):
                yield named.value


def ours(imported: str) -> Iterator[str]:
    """Yield the modules of Fairbloom that importing a name loads."""
    parts = imported.split(".")[1:]
    for count in range(1, len(parts) + 1):
        if (name := ".".join(parts[:count])) in modules():
            yield name


def reached(starts: Iterable[str]) -> set[str]:
    """Return all modules that these import, directly or indirectly, but for a comparison's."""
    found = {COMPARISON}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for imported in imports(name):
                if imported.startswith("fairbloom."):
                    waiting += ours(imported)
    return found


@cache
def installed() -> Mapping[str, list[str]]:
    """Return the distributions of each package that can be imported."""
    return packages_distributions()


def libraries(names: Iterable[str]) -> set[str]:
    """Return the distributions that these modules import."""
    # torchvision is in no lock, and need not be installed.
    providers = {"torchvision": ["torchvision"], **installed()}
    found = set[str]()
    for name in names:
        for imported in imports(name):
            top = imported.partition(".")[0]
            if top != "fairbloom" and top not in sys.stdlib_module_names:
                # Several distributions share `google`.
                found.add("protobuf" if top == "google" else canonicalize_name(providers[top][0]))
    return found


def declared(lines: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_a_bare_install_declares_exactly_its_imports() -> None:
    optional = set().union(*(declared(EXTRAS[extra]) for extra in OPTIONAL))
    imported = libraries(modules())
    bare = declared(PROJECT["dependencies"])
    assert imported - optional - {"ray"} <= bare
    assert bare <= imported


@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_declares_the_imports_of_its_processes(extra: str) -> None:
    asked = declared(EXTRAS["client"]) | declared(EXTRAS[extra])
    optional = declared([*EXTRAS["torchjd"], *EXTRAS["vision"], *EXTRAS["excel"]])
    assert libraries(reached(STARTS[extra])) - optional <= asked
    assert declared(EXTRAS["client"]) <= declared(PROJECT["dependencies"]) | declared(
        EXTRAS["images"]
    )
