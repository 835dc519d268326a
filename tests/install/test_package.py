"""What a package index is given: a wheel, sources that make the same wheel, and a page whose links
work."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.checkout import ROOT

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
