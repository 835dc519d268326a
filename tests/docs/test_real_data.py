"""What README.md and the pages say of data sets, recipes, models and searches: it works, and its
numbers are true."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from docs.hospitals import picture, served, table
from fairbloom import reproduce
from fairbloom.experiments import api
from fairbloom.experiments.recipe import load_recipe, names
from fairbloom.tasks import TASKS
from fairbloom.tasks.models import MODELS
from tests.commands import forked
from tests.originals import needs

from .pages import ROOT, Block, blocks
from .reader import PROGRAMS, Reader, follow

README, MEASURED, DATA_SETS, YOUR_MODEL = (
    (ROOT / name).read_text()
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in ("measured", "data-sets", "your-model")),
    )
)

SHIPPED = [info for info in TASKS.values() if not info.reads]
"""The data sets that are known by name, without those tasks that read a user's own files."""


def cells(page: str, heading: str = "") -> list[list[str]]:
    """Return the rows of the tables of a page, or of one of its sections, without bold marks."""
    text = page.partition(f"# {heading}\n")[2].partition("\n## ")[0] if heading else page
    lines = [line.replace("**", "") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows_of(name: str) -> list[list[str]]:
    """Return the rows of a table that the page on measurements shows or links, its heads first."""
    assert f"data/reproducing/{name}.csv" in MEASURED
    with (ROOT / "docs" / "data" / "reproducing" / f"{name}.csv").open(newline="") as file:
        return [*csv.reader(file)]


def section(page: str, heading: str) -> Block:
    (block,) = (each for each in blocks(page) if each.section == heading)
    return block


# Commands -----------------------------------------------------------------------------------------


@pytest.mark.slow
@needs("FashionMNIST/raw/train-images-idx3-ubyte")
@needs("adult/adult.data")
@pytest.mark.usefixtures("folder")
def test_the_commands_on_clients_that_come_with_the_data_work() -> None:
    reader = Reader()
    found = [
        block
        for block in blocks("docs/data-sets.md")
        if block.section == "Clients that come with the data"
    ]
    for block in found:
        reader.shell(block)
    reader.check_failed()
    assert found


@pytest.mark.slow
@needs("heart-disease/processed.va.data")
def test_the_commands_make_the_hospitals_table_and_picture(tmp_path: Path) -> None:
    """A few rows with two splits and two rounds; the page's commands have all rows, splits and
    rounds."""
    rows = ["FedAvg (w", "Local", "Pooled"]
    found = reproduce(
        "heart-disease",
        seeds=2,
        rows=rows,
        settings={"num-rounds": 2},
        out=tmp_path,
        jobs=1,
        progress=False,
    )
    methods = served(found)
    assert {each.scores.shape for each in methods} == {(2, 4)}
    assert [each.losses is None for each in methods] == [False, False, True, False]
    assert len(table(methods)) == 5
    picture(methods).savefig(tmp_path / "picture.png")


@pytest.mark.slow
def test_an_own_model_helps_an_unlike_client(tmp_path: Path) -> None:
    """The client that is served worst; with two seeds in place of ten."""
    block = section("docs/measured.md", "Few clients")
    assert block.text.count("--seeds 10 ") == 2
    (tmp_path / "page.md").write_text(
        f"```sh\n{block.text.replace('--seeds 10 ', '--seeds 2 ')}```\n"
    )
    done = forked(tmp_path, follow, str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    gains = {}
    for name in ("alike", "unlike"):
        values = api.load(tmp_path / "runs" / name).values
        own, shared = (
            sum(min(scores.values()) for scores in values[each]) for each in ("Local", "FedAvg")
        )
        gains[name] = (own - shared) / len(values["Local"])
    assert gains["unlike"] > 5.0 > gains["alike"]


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_optuna_asks_for_the_points_of_a_search() -> None:
    pytest.importorskip(
        "optuna", reason="Optuna is not installed: the reader of the page installs it"
    )
    names: dict[str, object] = {}
    exec(section("docs/comparing.md", "Larger spaces").text, names)  # noqa: S102 (a page of ours)
    assert len(list(Path("runs/optuna").iterdir())) == 3


@pytest.mark.slow
@needs("FashionMNIST/raw/train-images-idx3-ubyte")
@needs("adult/adult.data")
def test_the_recipes_are_listed_and_one_is_run(folder: Path) -> None:
    """A row of it, cut short; the pages' command has all rows, seeds and rounds."""
    shown = [block for page in ("README.md", "docs/measured.md") for block in blocks(page)]
    lines = [
        line
        for block in shown
        for line in block.commands
        if line.startswith("fairbloom reproduce fed")
    ]
    assert len(lines) == 2
    (command,) = {shlex.join(shlex.split(line, comments=True)) for line in lines}
    command += " --quick --seeds 1 --rows FedFV --jobs 1"
    code, printed = PROGRAMS["fairbloom"](command, shlex.split(command))
    assert (code, len(re.findall(r"(?m)^FedFV \(alpha=.*\bno +1$", printed))) == (0, 6), printed
    assert "FedFV, Table 3" in printed
    assert (
        len([*(folder / "runs" / "reproduce" / "fedfv-table3-quick" / "runs").glob("fedfv-*")]) == 6
    )
    code, printed = PROGRAMS["fairbloom"]("", ["fairbloom", "reproduce", "--list"])
    assert (code, [name for name in names() if name not in printed]) == (0, [])


# Numbers ------------------------------------------------------------------------------------------


def test_the_readme_has_the_numbers_of_the_page_on_measurements(subtests: pytest.Subtests) -> None:
    table = {row[0]: row for row in rows_of("fedfv-table3")}
    shown = cells(README, "Reproduce a paper's table")[1:]
    assert {row[3][:3] for row in shown} == {"yes", "no:"}
    for name, printed, measured, agrees in shown:
        with subtests.test(name=name, printed=printed):
            _, mean, mean_here, std, std_here, row_agrees = table[name]
            assert [printed, measured] == [f"{mean}, {std}", f"{mean_here}, {std_here}"]
            assert (agrees == "yes") == (row_agrees == "yes")


def test_the_page_on_measurements_prints_what_the_recipe_has() -> None:
    _, *table = rows_of("fedfv-table3")
    recipe = load_recipe("fedfv-table3")
    assert [row[0] for row in table] == [recipe.name_of(row) for row in recipe.rows]
    at = [recipe.measures.index(measure) for measure in ("mean", "std")]
    printed = [[row.published[i].replace("± ", "±") for i in at] for row in recipe.rows]
    assert [[row[1], row[3]] for row in table] == printed


def test_the_page_on_measurements_prints_the_recipe_of_table_7() -> None:
    _, *table = rows_of("fedmgda-table7")
    published = [row.published for row in load_recipe("fedmgda-table7").rows]
    assert [[row[1], row[3], row[5]] for row in table] == [
        [n.replace("± ", "±") for n in row] for row in published
    ]
    assert {row[7] for row in table} == {"yes"}


# Names --------------------------------------------------------------------------------------------


def test_the_page_on_measurements_has_every_recipe() -> None:
    _, *table = rows_of("recipes")
    assert sorted(row[0] for row in table) == sorted(f"`{name}`" for name in names())


def test_the_page_on_data_sets_has_all_with_their_models(subtests: pytest.Subtests) -> None:
    rows = {
        row[0].strip("`"): row
        for row in cells(DATA_SETS)
        if len(row) == 4 and row[3].startswith("`")
    }
    assert rows.keys() == {info.name for info in SHIPPED}
    for info in SHIPPED:
        with subtests.test(info=info):
            assert re.findall(r"`(.+?)`", rows[info.name][3]) == [*info.models]
            assert all(file.path.split("/")[0] in DATA_SETS for file in info.files)
    dealt = {
        name for row in cells(DATA_SETS, "Who gets what") for name in re.findall(r"`(.+?)`", row[0])
    }
    others = {"--partition", "my_module:deal"}
    assert dealt == others | {name for info in SHIPPED for name in info.partitions}


def test_the_page_on_models_has_every_one_with_its_parameters(subtests: pytest.Subtests) -> None:
    rows = [row for row in cells(YOUR_MODEL, "Models by name") if len(row) == 4][1:]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])} == MODELS.keys()
    for row in rows:
        with subtests.test(row=row):
            for name in re.findall(r"`([\w-]+)`", row[0]):
                counts = re.findall(r"\d+,\d+(?:,\d+)?|\b200\b", row[2])
                assert counts
                assert [count for count in counts if count not in str(MODELS[name].__doc__)] == []
