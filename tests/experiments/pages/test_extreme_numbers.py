"""No number in a table of a run folder keeps its pages from being opened."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairbloom.experiments.results.run import REPORT, load
from fairbloom.protocol.scores import ACCURACY, LOSS_SCORE, Score
from fairbloom.server.run_folder.csv_rows import WORDS
from fairbloom.server.run_folder.files import CLIENTS, COEFFICIENTS, ROUNDS, TableFile
from tests.experiments.made_up import make_comparison, make_run

from ..helpers import as_json, fairbloom

EXTREMES = ("inf", "-inf", "nan", "1.7976931348623157e308", "-1.7976931348623157e308")
EXTREMES += ("1e200", "1e100", "-1", "0", "5e-324", "9007199254740992")

FILES = (CLIENTS, ROUNDS, COEFFICIENTS)

NAMES = ("a", "b", "c", "d")


def put(folder: Path, file: TableFile, number: str, *, last: bool) -> None:
    """Write a number into all cells of numbers, or into those of the last row alone."""
    path = file.path_in(folder)
    head, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    kept = {"round", *WORDS}
    for row in rows[-1:] if last else rows:
        row[:] = [cell if name in kept else number for name, cell in zip(head, row, strict=True)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([head, *rows])
    path.write_text(written.getvalue(), encoding="utf-8")


def open_pages(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Open what a folder holds in all ways; return the text."""
    capsys.readouterr()
    assert fairbloom("show", folder) == 0
    text = capsys.readouterr().out
    assert fairbloom("report", folder) == 0
    assert (folder / REPORT).exists()
    assert fairbloom("show", folder.parent) == 0
    as_json(capsys, "show", folder)
    return text


@pytest.mark.parametrize(
    "score",
    [
        LOSS_SCORE,
        pytest.param(ACCURACY, marks=pytest.mark.slow),
        pytest.param(Score("r2"), marks=pytest.mark.slow),
    ],
    ids=lambda each: each.name,
)
def test_every_page_of_a_run_opens(
    score: Score,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    made = tmp_path / "made"
    make_run(made, "fedavg", 0, NAMES, 4, np.random.default_rng(0), score)
    for number in EXTREMES:
        for last in (True, False):
            with subtests.test(number=number, last=last):
                folder = tmp_path / f"{number}-{last}" / "run"
                shutil.copytree(made, folder)
                for file in FILES:
                    put(folder, file, number, last=last)
                text = open_pages(folder, capsys)
                if last:
                    assert load(folder).final().keys() >= {"a", "b", "c"}
                    assert "inf" not in text.replace(str(folder), "")


@pytest.mark.slow
def test_the_page_of_a_comparison_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    made = tmp_path / "made"
    make_comparison(
        made, ["fedavg", "fedfv"], range(3), NAMES, 4, personal=["fedfv"], score=LOSS_SCORE
    )
    for number in EXTREMES:
        with subtests.test(number=number):
            folder = tmp_path / number / "compared"
            shutil.copytree(made, folder)
            for run in (folder / "runs").iterdir():
                for file in FILES:
                    put(run, file, number, last=True)
            open_pages(folder, capsys)


def test_a_score_that_is_impossible_is_a_dash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    make_run(folder, "fedavg", 0, NAMES, 4, np.random.default_rng(0))
    put(folder, CLIENTS, "5700", last=True)
    assert load(folder).final().keys() == {"a", "b", "c"}
    assert "Without a test accuracy: d." in open_pages(folder, capsys)
