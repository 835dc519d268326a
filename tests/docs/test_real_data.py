"""What README.md and the pages say of data sets, recipes and models: it is all there, and its numbers are the same."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from fairbloom.experiments.recipe import load_recipe, names
from fairbloom.tasks import TASKS
from fairbloom.tasks.models import MODELS

from .pages import ROOT, blocks
from .reader import PROGRAMS, Reader

README, MEASURED, DATA_SETS, YOUR_MODEL = (
    (ROOT / name).read_text()
    for name in ("README.md", *(f"docs/{page}.md" for page in ("measured", "data-sets", "your-model")))
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


# Commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("originals", "folder")
def test_the_commands_on_clients_that_come_with_the_data_work() -> None:
    reader = Reader()
    found = [block for block in blocks("docs/data-sets.md") if block.section == "Clients that come with the data"]
    for block in found:
        reader.shell(block)
    reader.check_failed()
    assert found


@pytest.mark.slow
@pytest.mark.usefixtures("originals")
def test_the_recipes_are_listed_and_one_is_run(folder: Path) -> None:
    """A row of it, cut short; the pages' command has all rows, seeds and rounds."""
    shown = [block for page in ("README.md", "docs/measured.md") for block in blocks(page)]
    lines = [line for block in shown for line in block.commands if line.startswith("fairbloom reproduce fed")]
    assert len(lines) == 2
    (command,) = {shlex.join(shlex.split(line, comments=True)) for line in lines}
    command += " --quick --seeds 1 --rows FedFV --jobs 1"
    code, printed = PROGRAMS["fairbloom"](command, shlex.split(command))
    assert (code, len(re.findall(r"(?m)^FedFV \(alpha=.*\bno +1$", printed))) == (0, 3), printed
    assert "FedFV, Table 3" in printed
    assert len([*(folder / "runs" / "reproduce" / "fedfv-table3-quick" / "runs").glob("fedfv-*")]) == 3
    code, printed = PROGRAMS["fairbloom"]("", ["fairbloom", "reproduce", "--list"])
    assert (code, [name for name in names() if name not in printed]) == (0, [])


# Numbers --------------------------------------------------------------------------------------------------------------


def test_the_readme_has_the_numbers_of_the_page_on_measurements() -> None:
    table = {row[0]: row for row in rows_of("fedfv-table3")}
    shown = cells(README, "Reproduce a paper's table")[1:]
    assert {row[3][:3] for row in shown} == {"yes", "no:"}
    for name, printed, measured, agrees in shown:
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
    assert [[row[1], row[3], row[5]] for row in table] == [[n.replace("± ", "±") for n in row] for row in published]
    assert {row[7] for row in table} == {"yes"}


# Names ----------------------------------------------------------------------------------------------------------------


def test_the_page_on_measurements_has_every_recipe() -> None:
    _, *table = rows_of("recipes")
    assert sorted(row[0] for row in table) == sorted(f"`{name}`" for name in names())


def test_the_page_on_data_sets_has_all_with_their_models() -> None:
    rows = {row[0].strip("`"): row for row in cells(DATA_SETS) if len(row) == 4 and row[3].startswith("`")}
    assert rows.keys() == {info.name for info in SHIPPED}
    for info in SHIPPED:
        assert re.findall(r"`(.+?)`", rows[info.name][3]) == [*info.models]
        assert all(file.path.split("/")[0] in DATA_SETS for file in info.files)
    dealt = {name for row in cells(DATA_SETS, "Who gets what") for name in re.findall(r"`(.+?)`", row[0])}
    others = {"--partition", "my_module:deal"}
    assert dealt == others | {name for info in SHIPPED for name in info.partitions}


def test_the_page_on_models_has_every_one_with_its_parameters() -> None:
    rows = [row for row in cells(YOUR_MODEL, "Models by name") if len(row) == 4][1:]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])} == MODELS.keys()
    for row in rows:
        for name in re.findall(r"`([\w-]+)`", row[0]):
            counts = re.findall(r"\d+,\d+(?:,\d+)?|\b200\b", row[2])
            assert counts
            assert [count for count in counts if count not in str(MODELS[name].__doc__)] == []
