"""The table and the picture of the four hospitals."""

import csv
from pathlib import Path

import numpy as np
import pytest

from docs.hospitals import FEW, HEADINGS, PICTURE, TABLE, Served, against, is_bold, picture, served, table
from fairbloom import reproduce
from fairbloom.experiments.recipe import load_recipe
from tests.originals import needs

from .pages import ROOT

MEASURED = (ROOT / "docs" / "measured.md").read_text()
BASE = Served(
    "FedAvg", np.array([[80.0, 50.0], [70.0, 60.0], [60.0, 90.0]]), np.array([[0.5, 0.9], [0.6, 0.8], [1.0, 0.0]])
)
FAIR = Served(
    "Fair", np.array([[70.0, 60.0], [65.0, 65.0], [60.0, 60.0]]), np.array([[0.6, 0.7], [0.6, 0.8], [0.7, 0.0]])
)
ALONE = Served("Alone", np.array([[50.0, 50.0], [50.0, 60.0], [50.0, 70.0]]), None)
CLEAR = Served("Clear", BASE.scores + 5.0, BASE.losses)


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


def test_differences_are_taken_split_by_split() -> None:
    values, base = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, 3.0, 1.0, 1.0])
    found = against(values, base)
    assert (found.mean, found.better, found.worse) == (1.0, 2, 1)
    assert found.error == pytest.approx(np.sqrt((1 + 4 + 4 + 1) / 3) / 2)
    assert not is_bold(found)
    turned = against(values, base, lower_is_better=True)
    assert (turned.mean, turned.better, turned.worse) == (-1.0, 1, 2)


def test_the_table_has_the_worst_hospital_of_each_split() -> None:
    _, first, fair, alone, clear = (" | ".join(row) for row in table([BASE, FAIR, ALONE, CLEAR]))
    assert first == "FedAvg | 56.7 ± 3.3 | – | – | 0.900 ± 0.058 | – | – | 68.3 ± 3.3"
    assert fair == "Fair | 61.7 ± 1.7 | +5.0 ± 2.9 | 2, 0 | 0.733 ± 0.033 | −0.167 ± 0.088 | 2, 0 | 63.3 ± 1.7"
    assert alone.split(" | ")[1:7] == ["50.0 ± 0.0", "−6.7 ± 3.3", "0, 2", "–", "–", "–"]
    assert "**+5.0 ± 0.0**" in clear


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


def test_the_picture_has_each_hospital_and_method() -> None:
    scores = np.array([[81.0, 72.0, 63.0, 54.0], [79.0, 70.0, 61.0, 52.0]])
    methods = [Served(name, scores + place, None) for place, name in enumerate([*FEW, "another method"])]
    (axes,) = picture(methods).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*reversed(FEW.values())]
    cleveland = axes.collections[0].get_offsets()
    assert np.asarray(cleveland)[:, 0].tolist() == [80.0 + place for place in reversed(range(len(FEW)))]
