"""The documentation as it is built: without a warning, complete, and readable where there is no
network."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

from fairbloom.rounds.options import OPTIONS
from fairbloom.strategies import METHODS

from .pages import ROOT

inventory = pytest.importorskip("sphinx.util.inventory", reason="make docs installs Sphinx")
mathml = pytest.importorskip("docs.mathml").mathml
for package in ("furo", "myst_parser"):
    pytest.importorskip(package)

pytestmark = pytest.mark.slow

PUBLIC = ("fairbloom", "fairbloom.strategies", "fairbloom.tasks")
"""What these modules say is theirs has an entry in the reference."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything as a clean checkout has it, and a page of a method that is no more."""
    folder = tmp_path_factory.mktemp("checkout")
    copytree(
        ROOT / "docs", folder / "docs", ignore=ignore_patterns("_build", "methods", "__pycache__")
    )
    for file in ("CHANGELOG.md", "CITATION.cff", "benchmarks/federations/sources.csv"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / file, folder / file)
    (folder / "docs" / "methods").mkdir()
    (folder / "docs" / "methods" / "fedold.md").write_text("# A method that is no more")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "docs", "built"]
    done = subprocess.run(
        build, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "built"


def test_each_method_has_a_page(built: Path, subtests: pytest.Subtests) -> None:
    written = {file.name for file in (built.parent / "docs" / "methods").iterdir()}
    assert written == {f"{name}{end}" for name in [*METHODS] for end in (".md", ".svg")} | {
        "index.md",
        "torchjd.svg",
    }
    compared = (built / "methods" / "index.html").read_text()
    for name in METHODS:
        with subtests.test(name=name):
            html = (built / "methods" / f"{name}.html").read_text()
            assert METHODS[name].__name__ in html
            assert f'href="{name}.html"' in compared
    assert "torchjd:upgrad" in compared


def test_every_public_name_is_in_the_reference(built: Path) -> None:
    """A name that several modules export is there once."""
    entries = inventory.InventoryFile.loads((built / "objects.inv").read_bytes(), uri="").data
    kinds = ("class", "function", "data", "exception")
    documented = {name.rpartition(".")[2] for kind in kinds for name in entries[f"py:{kind}"]}
    public = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert {name for name in public if not name.startswith("_")} <= documented


def test_the_reference_has_ranges_and_defaults_of_options(
    built: Path, subtests: pytest.Subtests
) -> None:
    text = re.sub(r"<[^>]*>", "", (built / "api" / "methods.html").read_text())
    for name, option in OPTIONS.items():
        with subtests.test(name=name, option=option):
            if option.kind is not str:
                assert f"{name} ({option.range}, default {option.default}) –" in text, name


def test_no_page_needs_a_network(built: Path) -> None:
    loaded = r"""<(?:script|img|iframe)[^>]*\ssrc="(\w+:)?//|<link[^>]*rel="stylesheet"[^>]*href="(\w+:)?//"""
    pages = [*built.rglob("*.html")]
    assert len(pages) > len(METHODS)
    assert [page.name for page in pages if re.search(loaded, page.read_text())] == []


def test_formulas_are_written_as_mathml(built: Path) -> None:
    html = (built / "methods" / "fedmgda.html").read_text()
    assert html.count("<math") >= 1
    assert "\\frac" not in html


def test_a_bracket_of_any_size_has_a_side() -> None:
    """Docutils knows no size of a bracket but those that say whether it opens or closes."""
    assert mathml(r"\big(x\big)", block=False) == mathml(r"\bigl(x\bigr)", block=False)
    assert mathml(r"\Big\lVert x \Big\rVert", block=True) == mathml(
        r"\Bigl\lVert x \Bigr\rVert", block=True
    )


def test_a_command_that_cannot_be_written_is_named() -> None:
    with pytest.raises(
        Exception, match=r"The formula '\\\\nonsense x' cannot be written as MathML: .*nonsense"
    ):
        mathml(r"\nonsense x", block=False)
