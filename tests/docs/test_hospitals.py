"""The table and the picture of the four hospitals."""

import csv
from pathlib import Path

import pytest

from docs.hospitals import FEW, HEADINGS, PICTURE, TABLE, picture, served, table
from fairbloom import reproduce
from fairbloom.experiments.recipe import load_recipe
from tests.originals import needs

from .pages import ROOT

MEASURED = (ROOT / "docs" / "measured.md").read_text()


@pytest.mark.slow
@needs("heart-disease/processed.va.data")
def test_the_commands_make_the_table_and_the_picture(tmp_path: Path) -> None:
    """A few rows with two splits and two rounds; the page's commands have all rows, splits and rounds."""
    rows = ["FedAvg (w", "Local", "Pooled"]
    found = reproduce(
        "heart-disease", seeds=2, rows=rows, settings={"num-rounds": 2}, out=tmp_path, jobs=1, progress=False
    )
    methods = served(found)
    assert {each.scores.shape for each in methods} == {(2, 4)}
    assert [each.losses is None for each in methods] == [False, False, True, False]
    assert len(table(methods)) == 5
    picture(methods).savefig(tmp_path / "picture.png")


def test_the_pages_have_every_row_and_the_picture() -> None:
    with TABLE.open(newline="") as file:
        heads, *rows = csv.reader(file)
    recipe = load_recipe("heart-disease")
    assert tuple(heads) == HEADINGS
    assert [row[0] for row in rows] == [recipe.name_of(row) for row in recipe.rows]
    assert f":file: data/hospitals/{TABLE.name}" in MEASURED
    assert {*FEW} <= {row[0] for row in rows}
    assert f"images/{PICTURE.name}" in (ROOT / "docs" / "index.md").read_text()
    assert PICTURE.exists()
