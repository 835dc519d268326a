"""What is built: a wheel, sources that make the same wheel, and a page whose links work; what is
installed of it runs."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.docs.pages import PAGES, blocks
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


def test_the_sources_make_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    subprocess.run(
        [*BUILD, "-t", "wheel", "-d", tmp_path], cwd=folder, check=True, capture_output=True
    )
    (here,) = built.glob("*.whl")
    (there,) = tmp_path.glob("*.whl")
    assert names_in(here) == names_in(there)
    assert {
        f"fairbloom/{package}/__init__.py" for package in ("strategies", "tasks", "deploy")
    } <= names_in(here)


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
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    links = re.findall(r"\]\(([^)]+)\)", prose)
    ours = [found for link in links for found in HOSTS.findall(link)]
    assert not [link for link in links if not link.startswith("https://")]
    assert len(ours) > 10
    assert not [path for path in ours if not (ROOT / path).is_file()]
    assert {"Source", "Documentation", "Changelog", "Issues"} <= {
        url.partition(",")[0] for url in about.get_all("Project-URL", [])
    }


def test_no_page_takes_fairbloom_from_a_package_index() -> None:
    """Extras may be added to a Fairbloom that is installed."""
    repository = f"git+{PROJECT['urls']['Source']}"
    asked = {
        word
        for page in PAGES
        for line in re.findall(r"pip install ([^\n`]+)", (ROOT / page).read_text())
        for word in shlex.split(line)
        if "fairbloom" in word
    }
    whole = {word for word in asked if not word.startswith("fairbloom[")}
    assert whole == {repository, "../fairbloom"}
    assert [block.commands for block in blocks("README.md") if "pip install" in block.text] == [
        [f"pip install {repository}"]
    ]


# Installed ----------------------------------------------------------------------------------------


def demo() -> list[str]:
    """Return the words of the command of `make demo`."""
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(
        r"^demo: .*\n\t\$\(BIN\)/(fairbloom (?:.*\\\n)*.*)", makefile, re.MULTILINE
    )
    return shlex.split(command.replace("\\\n", " ").replace("$(DEMO)", "runs/demo"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wheel", "sources", "repository"])
def test_what_is_installed_runs_the_demo(built: Path, form: str, tmp_path: Path) -> None:
    """With fewer seeds and rounds, in an environment that has nothing of this checkout; the
    repository is as of its last commit.

    PyTorch and the other libraries would take minutes and a network to install: they are those of
    the Python that tests.
    """
    (wheel,) = built.glob("*.whl")
    (sources,) = built.glob("*.tar.gz")
    if form == "repository" and not (ROOT / ".git").exists():
        pytest.skip("this checkout is no repository")
    source = {"wheel": wheel, "sources": sources, "repository": f"git+file://{ROOT}"}[form]
    scripts = installed_wheel(tmp_path, source)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    name, *words = demo()
    for command in (
        [scripts / "python", "-c", "import fairbloom; print(fairbloom.__file__)"],
        [scripts / name, *words, "--seeds", "2", "--rounds", "5"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        if command[1] == "-c":
            assert Path(done.stdout.strip()).is_relative_to(scripts.parent)
    assert "FedMGDAPlus" in done.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
