"""The page on the four hospitals: its commands, and the numbers that are made of their runs."""

import csv
from pathlib import Path

import numpy as np
import pytest

from docs.hospitals import (
    FEW,
    HEADINGS,
    PICTURE,
    SMALL_PICTURE,
    TABLE,
    Served,
    against,
    is_bold,
    picture,
    served,
    small_picture,
    table,
)
from fairbloom import reproduce
from fairbloom.experiments.recipe import load_recipe
from fairbloom.experiments.results.differences import difference_of
from tests.originals import needs

from .pages import ROOT

ORIGINALS = needs("heart-disease/processed.va.data")

BASE = Served(
    "FedAvg", np.array([[80.0, 50.0], [70.0, 60.0], [60.0, 90.0]]), np.array([[0.5, 0.9], [0.6, 0.8], [1.0, 0.0]])
)
FAIR = Served(
    "Fair", np.array([[70.0, 60.0], [65.0, 65.0], [60.0, 60.0]]), np.array([[0.6, 0.7], [0.6, 0.8], [0.7, 0.0]])
)
ALONE = Served("Alone", np.array([[50.0, 50.0], [50.0, 60.0], [50.0, 70.0]]), None)


@pytest.mark.slow
@ORIGINALS
def test_the_commands_make_the_table_and_the_picture(tmp_path: Path) -> None:
    """A few rows with two splits and two rounds; the page's commands have all rows, splits and rounds."""
    rows = ["FedAvg (w", "Local", "Pooled"]
    found = reproduce(
        "heart-disease", seeds=2, rows=rows, settings={"num-rounds": 2}, out=tmp_path, jobs=1, progress=False
    )
    methods = served(found)
    assert [each.name for each in methods] == [
        "FedAvg (weighting=examples)",
        "FedAvg (weighting=uniform)",
        "Local",
        "Pooled training (pooled=true)",
    ]
    assert {each.scores.shape for each in methods} == {(2, 4)}
    assert [each.losses is None for each in methods] == [False, False, True, False]
    assert len(table(methods)) == 5
    picture(methods).savefig(tmp_path / "picture.png")
    small_picture(methods).savefig(tmp_path / "small.png")


def test_differences_are_taken_split_by_split() -> None:
    values, base = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, 3.0, 1.0, 1.0])
    found = against(values, base)
    assert (found.mean, found.better, found.worse) == (1.0, 2, 1)
    assert found.error == pytest.approx(np.sqrt((1 + 4 + 4 + 1) / 3) / 2)
    assert not is_bold(found)
    turned = against(values, base, lower_is_better=True)
    assert (turned.mean, turned.better, turned.worse) == (-1.0, 1, 2)


def test_the_correction_enlarges_errors_as_the_page_says() -> None:
    differences = np.random.default_rng(0).normal(8.3, 6.7, 20)
    ratio = difference_of(differences, test_share=0.34 / 0.66).error / difference_of(differences).error
    assert f"makes each error {ratio:.1f} times as large" in (ROOT / "docs" / "hospitals.md").read_text()


def test_the_table_has_the_worst_hospital_of_each_split() -> None:
    _, first, fair, alone = (" | ".join(row) for row in table([BASE, FAIR, ALONE]))
    assert first == "FedAvg | 56.7 ± 3.3 | – | – | 0.900 ± 0.058 | – | – | 68.3 ± 3.3"
    assert fair == "Fair | 61.7 ± 1.7 | +5.0 ± 2.9 | 2, 0 | 0.733 ± 0.033 | −0.167 ± 0.088 | 2, 0 | 63.3 ± 1.7"
    assert alone.split(" | ")[1:7] == ["50.0 ± 0.0", "−6.7 ± 3.3", "0, 2", "–", "–", "–"]


def test_a_difference_of_more_than_two_standard_errors_is_bold() -> None:
    clear = Served("Clear", BASE.scores + 5.0, BASE.losses)
    (_, _, row) = table([BASE, clear])
    assert "**+5.0 ± 0.0**" in row
    assert row[5:7] == ("+0.000 ± 0.000", "0, 0")


def test_the_page_has_every_row_of_the_recipe_and_its_picture() -> None:
    page = (ROOT / "docs" / "hospitals.md").read_text()
    with TABLE.open(newline="") as file:
        heads, *rows = csv.reader(file)
    assert tuple(heads) == HEADINGS
    assert [row[0] for row in rows] == [case.name for case in load_recipe("heart-disease").cases()]
    assert f":file: data/hospitals/{TABLE.name}" in page
    assert f"images/{PICTURE.name}" in page
    assert PICTURE.exists()


def test_the_small_picture_has_each_hospital_and_method() -> None:
    scores = np.array([[81.0, 72.0, 63.0, 54.0], [79.0, 70.0, 61.0, 52.0]])
    methods = [Served(name, scores + place, None) for place, name in enumerate([*FEW, "another method"])]
    (axes,) = small_picture(methods).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*reversed(FEW.values())]
    cleveland = axes.collections[0].get_offsets()
    assert np.asarray(cleveland)[:, 0].tolist() == [80.0 + place for place in reversed(range(len(FEW)))]


def test_the_first_page_shows_some_rows_of_the_recipe() -> None:
    assert {*FEW} <= {case.name for case in load_recipe("heart-disease").cases()}
    assert f"images/{SMALL_PICTURE.name}" in (ROOT / "docs" / "index.md").read_text()
    assert SMALL_PICTURE.exists()
