"""What pages, the citation and links say of the project is what its own files say.

Every code block of README.md and docs/ is run as it is printed, by the reader or by a test that
is named.

Figures of the pages: the demo draws the first, and all follow dark mode.

The documentation as it is built: without a warning, complete, and readable where there is no
network.
"""

import csv
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from shutil import copy, copytree, ignore_patterns

import pytest
import typer
import yaml

from benchmarks.methods import GIVEN
from docs.demo import COMMAND, IMAGES, draw
from docs.figures import INK, dark_rules, follow_dark_mode
from docs.hospitals import FEW, HEADINGS, PICTURE, TABLE
from fairbloom.cli.device import DEFAULT, WithDefault
from fairbloom.cli.main import LateCommand, app
from fairbloom.errors import RELEASED
from fairbloom.experiments import api
from fairbloom.experiments.arms import parse_arms
from fairbloom.experiments.recipe import load_recipe
from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds.options import OPTIONS
from fairbloom.server.run_folder.csv_rows import OPTIONAL, ClientRows, round_columns
from fairbloom.server.run_folder.files import ENTRIES
from fairbloom.strategies import METHODS, SCAFFOLD, VRed
from tests.checkout import BESIDE, INSIDE
from tests.commands import forked

from .pages import ELSEWHERE, FENCE, PAGES, ROOT, blocks
from .reader import follow
from .test_gallery import EXAMPLES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
BIBTEX = (ROOT / "docs" / "citation.bib").read_text()
DATA = ROOT / "docs" / "data"
MEASURED, RUNS = ((ROOT / "docs" / name).read_text() for name in ("measured.md", "runs.md"))
OUTSIDE = [*sorted(page.name for page in ROOT.glob("*.md")), "tests/README.md"]
TARGETS = {*re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)}


# What the pages quote of docs/data ----------------------------------------------------------------


def test_the_table_of_shared_noise_is_its_data() -> None:
    names = ("digits", "digits-5", "digits-3", "chem97", "contraception")
    quoted = ("20 × 72 digits", "5 × 72 digits", "3 × 72 digits", "30 districts, exams")
    federations = dict(zip((*quoted, "30 districts, contraception"), names, strict=True))
    with (DATA / "private-shared.csv").open(encoding="utf-8", newline="") as file:
        measured = {tuple(row[:4]): row[4:] for row in csv.reader(file)}
    page = (ROOT / "docs" / "private.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (FedAvg|TERM) \| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 12
    for clients, method, honest, cells in rows:
        expected = []
        for epsilon in "831":
            for shared in ("1", honest):
                key = (federations[clients], epsilon, shared, method.lower())
                mean, tenth = (number.partition(" ")[0] for number in measured[key])
                expected.append(f"{mean} / {tenth}")
        assert cells.split(" | ") == expected


# The project --------------------------------------------------------------------------------------


def test_the_page_of_theorems_names_each_test_once() -> None:
    """Tests of definitions lie with what they define."""
    theorems = ROOT / "tests" / "strategies" / "test_theorems.py"
    named = re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "theorems.md").read_text())
    assert len(named) == len({*named})
    every = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert (
        {*names_of_tests(theorems.read_text())} <= {*named} <= {*names_of_tests("\n".join(every))}
    )


def names_of_tests(code: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", code, re.MULTILINE)


def test_version_and_date_of_a_release_are_the_same_everywhere() -> None:
    version, date = re.findall(
        r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[0]
    assert [version, date] == [PROJECT["version"], str(CITATION.get("date-released", "unreleased"))]
    assert re.findall(r"(?:version|url) += \{(.+)\}", BIBTEX) == [version, CITATION["url"]]
    assert ("year    = " in BIBTEX) == ("date-released" in CITATION) == RELEASED


def test_the_citation_is_of_the_project() -> None:
    assert "cite the methods that you use" in CITATION["message"]
    assert CITATION["repository-code"] == CITATION["url"] == PROJECT["urls"]["Source"]
    assert CITATION | {key: PROJECT[key] for key in ("version", "license", "keywords")} == CITATION


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_pages_say_what_writes_the_generated_ones(page: str) -> None:
    assert "`make docs` writes into" in " ".join((ROOT / page).read_text().split())


def test_the_page_on_the_installation_has_every_extra() -> None:
    """And says which of them `all` leaves out; those of images and devices it explains below its
    table."""
    rows = re.findall(
        r"^\| (`fairbloom\[.+?) \| (.+) \|$",
        (ROOT / "docs" / "install.md").read_text(),
        re.MULTILINE,
    )
    listed = {name: what for cell, what in rows for name in re.findall(r"\[(\w+)\]", cell)}
    extras = PROJECT["optional-dependencies"]
    part_of_all = set(re.findall(r"\w+", extras["all"][0])) - {"fairbloom"}
    assert listed.keys() == extras.keys() - {"client", "server"}
    assert {name for name, what in listed.items() if "not part of `all`" not in what} == {
        "all",
        *part_of_all,
    }


# The rooms ----------------------------------------------------------------------------------------


def test_the_drawing_of_the_rooms_names_packages_and_engines() -> None:
    drawing = (ROOT / "docs" / "_static" / "rooms.svg").read_text()
    named = re.findall(r'class="name"[^>]*>([^<]+)<', drawing)
    rooms = {name for names in named for name in names.split(", ")}
    assert {"client", "rounds", "strategies"} < rooms <= {*BESIDE, *INSIDE}
    assert f"auto, {re.findall('loop[^<]*', drawing)[0]}" == SETTINGS["engine"].range


# Run folders --------------------------------------------------------------------------------------


def test_the_table_of_files_has_those_that_are_declared() -> None:
    assert sorted(
        re.findall("^`([^/`]+)", (DATA / "run-folder.csv").read_text(), re.MULTILINE)
    ) == sorted(entry.name for entry in ENTRIES)
    assert ":file: data/run-folder.csv\n" in RUNS


def test_the_page_names_every_column() -> None:
    """Those of the measures of a score are in a table of their own."""
    of_clients = ClientRows(
        validated=True, personal=True, disparity=True, accounts=True, simulated=True
    ).columns
    of_rounds = (
        *round_columns(VRed(), also=OPTIONAL),
        *round_columns(SCAFFOLD()),
    )
    assert {*of_clients, *(each for each in of_rounds if not each.startswith("test_"))} <= {
        *re.findall(r"`(\w+)`", RUNS)
    }


# Links that Sphinx does not see -------------------------------------------------------------------


@pytest.mark.parametrize("page", OUTSIDE)
def test_linked_files_exist(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == [], page


@pytest.mark.parametrize("page", [*OUTSIDE, "docs/rooms.md"])
def test_files_and_targets_that_pages_name_exist(page: str) -> None:
    """A path begins with a folder of the checkout; <name> is any name; some are not kept."""
    text = (ROOT / page).read_text()
    root = (ROOT / page).parent if page in OUTSIDE else ROOT
    named = re.findall(r"(?<![\w./:-])[\w<-][\w.<>-]*(?:/[\w.<>-]*)+(?<!\.)", text)
    paths = {each for each in named if "_build" not in each and not each.startswith("runs/")} & {
        each for each in named for folder in (ROOT, root) if (folder / each.split("/")[0]).is_dir()
    }
    patterns = {each: re.sub("<.*?>", "*", each) for each in paths}
    assert [
        each
        for each, pattern in patterns.items()
        if not any([*ROOT.glob(pattern), *root.glob(pattern)])
    ] == []
    inline = re.findall(r"`[^`]+`", FENCE.sub("", text))
    shown = [*inline, *(block.text for block in blocks(page))]
    assert {*re.findall(r"\bmake\s+([a-z][a-z-]*)", " ".join(shown))} <= TARGETS


def test_what_is_linked_in_flowers_reference_is_there_in_flower() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    reference = r"https://flower\.ai/docs/framework/ref-api/(.+?)\.html"
    named = {name for page in pages for name in re.findall(reference, page.read_text())}
    assert {"flwr.serverapp.ServerApp", "flwr.clientapp.ClientApp"} <= named
    assert [name for name in named if resolve_name(name).__name__ != name.rpartition(".")[2]] == []


# Measurements -------------------------------------------------------------------------------------


def test_the_default_methods_are_those_that_the_page_recommends() -> None:
    assert f"`--methods {api.METHODS}`" in (DATA / "which-method" / "try.txt").read_text()


def test_the_table_of_what_clients_keep_has_each_arm() -> None:
    with (DATA / "own.csv").open(newline="") as file:
        names = [row["method"] for row in csv.DictReader(file)]
    assert [name.replace(", personal)", ")") for name in names] == [
        arm.label for arm in parse_arms(GIVEN["own"].arms, GIVEN["own"].settings)
    ]
    assert ":file: data/own.csv\n" in MEASURED


def test_the_pages_have_the_hospitals_rows_and_picture() -> None:
    with TABLE.open(newline="") as file:
        heads, *rows = csv.reader(file)
    recipe = load_recipe("heart-disease")
    assert tuple(heads) == HEADINGS
    assert [row[0] for row in rows] == [recipe.name_of(row) for row in recipe.rows]
    assert f":file: data/hospitals/{TABLE.name}" in MEASURED
    assert {*FEW} <= {row[0] for row in rows}
    assert f"images/{PICTURE.name}" in (ROOT / "docs" / "index.md").read_text()
    assert PICTURE.exists()


READ = [page for page in PAGES if any(not block.elsewhere for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", READ)
def test_what_a_page_shows_works(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page takes for granted, the reader's own data and modules, lies in given/, and its
    apps beside it."""
    copytree(ROOT / "docs" / "apps", tmp_path, dirs_exist_ok=True)
    if (given := Path(__file__).parent / "given" / Path(page).stem).is_dir():
        copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", "120")  # tables are as wide as on a screen
    done = forked(tmp_path, follow, page)
    assert done.returncode == 0, done.stderr[-5000:]


# What runs elsewhere ------------------------------------------------------------------------------


@pytest.mark.parametrize(("section", "test"), ELSEWHERE.items())
def test_another_test_does_what_a_section_says(section: str, test: str) -> None:
    page, _, title = section.partition("#")
    file, _, name = test.partition("::")
    assert [block for block in blocks(page) if title in ("", block.section)], (
        f"{section} has no block"
    )
    module = importlib.import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}")
    assert callable(getattr(module, name))


@pytest.mark.parametrize(
    "page", [*dict.fromkeys([*PAGES, *OUTSIDE]), "fairbloom/scaffold/template/README.md"]
)
def test_commands_have_the_options_that_pages_give_them(page: str) -> None:
    """All commands of ours, those in the midst of a sentence too."""
    inline = re.findall(r"(?<!`)`(fairbloom [a-z][^`]*)`", (ROOT / page).read_text())
    shown = {
        line
        for block in blocks(page)
        for line in block.commands
        if re.match(r"fairbloom [a-z]", line)
    }
    for line in sorted({*shown, *inline}):
        words = shlex.split(line, comments=True)[1:]
        command: typer.core.click.Command = typer.main.get_command(app)
        while words and isinstance(command, typer.core.TyperGroup):
            known_word = words[0] in command.commands or not isinstance(command, WithDefault)
            command = command.commands[words.pop(0) if known_word else DEFAULT]
            command = command.imported() if isinstance(command, LateCommand) else command
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (
            page,
            line,
        )


def test_the_tutorial_deploys_files_that_can_be_read() -> None:
    shown = [each for each in blocks("docs/tutorial.md") if each.section == "When a file is wrong"]
    assert ("sixty" in shown[0].text, shown[-1].commands) == (True, ["python make_hospitals.py"])


def test_the_readme_starts_a_federation_as_its_guide_does() -> None:
    shown, guide = (
        [block.commands for block in blocks(page) if block.section == section]
        for page, section in (
            ("README.md", "You operate a federation"),
            ("docs/docker.md", "In containers"),
        )
    )
    assert shown == [["docker compose up"]]
    assert guide[0] == shown[0]


def test_the_readme_has_at_most_1000_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


@pytest.mark.slow
def test_the_demo_draws_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty folder, with fewer rounds, seeds and clients."""
    monkeypatch.chdir(tmp_path)
    briefly = {"--rounds": "2", "--seeds": "2", "--clients": "6"}
    words = shlex.split(COMMAND)
    words = [briefly.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    svg = draw(shlex.join(words)).decode()
    assert svg.count("<text") > 3
    assert "prefers-color-scheme" in svg


@pytest.mark.parametrize("file", [*IMAGES.iterdir()])
def test_figures_of_the_pages_are_small_and_follow_dark_mode(file: Path) -> None:
    svg = file.read_text()
    assert file.suffix == ".svg"
    assert len(svg) < 100_000, file
    assert dark_rules() in svg, (
        f"{file}: python -m docs.demo and python -m docs.hospitals draw the figures"
    )
    assert INK in svg


def test_make_demo_runs_the_command_of_the_first_figure() -> None:
    (demo,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = demo.replace("\\\n", "").replace("$(DEMO)", "runs/demo")
    assert sorted(shlex.split(made)[1:]) == sorted(shlex.split(COMMAND)[1:])


def test_a_figures_numbers_keep_their_digits() -> None:
    small = follow_dark_mode(
        b'<svg><defs></defs><path d="M 1.23456 2.5"/><text x="1.23456">0.12345</text></svg>'
    ).decode()
    assert 'd="M 1.23 2.5"' in small
    assert ">0.12345<" in small


# What these modules say is theirs has an entry in the reference.
PUBLIC = ("fairbloom", "fairbloom.strategies", "fairbloom.tasks")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything as a clean checkout has it, and a page of a method that is no more."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="make docs installs Sphinx")
    folder = tmp_path_factory.mktemp("checkout")
    copytree(
        ROOT / "docs",
        folder / "docs",
        ignore=ignore_patterns("_build", "methods", "examples", "runs", "__pycache__"),
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
    # the examples log what runs log
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return folder / "built"


@pytest.mark.slow
def test_each_method_has_a_page(built: Path, subtests: pytest.Subtests) -> None:
    assert {file.name for file in (built.parent / "docs" / "methods").iterdir()} == {
        f"{name}{end}" for name in [*METHODS] for end in (".md", ".svg")
    } | {
        "index.md",
        "torchjd.svg",
    }
    compared = (built / "methods" / "index.html").read_text()
    for name in METHODS:
        with subtests.test(name=name):
            assert METHODS[name].__name__ in (built / "methods" / f"{name}.html").read_text()
            assert f'href="{name}.html"' in compared
    assert "torchjd:upgrad" in compared


@pytest.mark.slow
def test_each_example_has_a_page_with_a_picture_and_a_notebook(
    built: Path, subtests: pytest.Subtests
) -> None:
    pages = {page.stem for page in (built / "examples").glob("plot_*.html")}
    assert pages == {example.stem for example in EXAMPLES}
    for page in pages:
        with subtests.test(page=page):
            assert dark_rules() in (built / "_images" / f"sphx_glr_{page}_001.svg").read_text()
            (notebook,) = (built / "_downloads").rglob(f"{page}.ipynb")
            assert (
                f"{notebook.parent.name}/{notebook.name}"
                in (built / "examples" / f"{page}.html").read_text()
            )


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(built: Path) -> None:
    """A name that several modules export is there once."""
    inventory = importlib.import_module("sphinx.util.inventory")
    entries = inventory.InventoryFile.loads((built / "objects.inv").read_bytes(), uri="").data
    kinds = ("class", "function", "data", "exception")
    documented = {name.rpartition(".")[2] for kind in kinds for name in entries[f"py:{kind}"]}
    public = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert {name for name in public if not name.startswith("_")} <= documented


@pytest.mark.slow
def test_the_reference_has_ranges_and_defaults_of_options(
    built: Path, subtests: pytest.Subtests
) -> None:
    text = re.sub(r"<[^>]*>", "", (built / "api" / "methods.html").read_text())
    for name, option in OPTIONS.items():
        with subtests.test(name=name, option=option):
            if option.kind is not str:
                assert f"{name} ({option.range}, default {option.default}) –" in text, name


@pytest.mark.slow
def test_no_page_needs_a_network(built: Path) -> None:
    loaded = r"""<(?:script|img|iframe)[^>]*\ssrc="(\w+:)?//|<link[^>]*rel="stylesheet"[^>]*href="(\w+:)?//"""
    pages = [*built.rglob("*.html")]
    assert len(pages) > len(METHODS)
    assert [page.name for page in pages if re.search(loaded, page.read_text())] == []


@pytest.mark.slow
def test_formulas_are_written_as_mathml(built: Path) -> None:
    html = (built / "methods" / "fedmgda.html").read_text()
    assert html.count("<math") >= 1
    assert "\\frac" not in html


@pytest.mark.slow
def test_a_bracket_of_any_size_has_a_side() -> None:
    """Docutils knows no size of a bracket but those that say whether it opens or closes."""
    mathml = pytest.importorskip("docs.mathml", reason="make docs installs Sphinx").mathml
    assert mathml(r"\big(x\big)", block=False) == mathml(r"\bigl(x\bigr)", block=False)
    assert mathml(r"\Big\lVert x \Big\rVert", block=True) == mathml(
        r"\Bigl\lVert x \Bigr\rVert", block=True
    )


@pytest.mark.slow
def test_a_command_that_cannot_be_written_is_named() -> None:
    mathml = pytest.importorskip("docs.mathml", reason="make docs installs Sphinx").mathml
    with pytest.raises(
        Exception, match=r"The formula '\\\\nonsense x' cannot be written as MathML: .*nonsense"
    ):
        mathml(r"\nonsense x", block=False)
