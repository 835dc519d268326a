"""Table 1 is exact: of all rows together, and of each client's."""

import csv
from pathlib import Path

import numpy as np
import pandas
import pytest

from tests.experiments.helpers import captured, fairbloom as command, refusal

from .helpers import Folder, csv_of, inferred


def written(folder: Path, *words: object) -> dict[tuple[str, str], dict[str, str]]:
    """Return the cells of Table 1 by field and value."""
    file = folder.parent / "table1.csv"
    assert command("data", folder, *words, "--table", file) == 0
    with file.open() as lines:
        return {(row["field"], row["value"]): row for row in csv.DictReader(lines)}


def test_each_cell_is_that_of_the_rows(folder: Folder) -> None:
    tables = {name: csv_of(60 + 20 * k, k, shift=5.0 * k) for k, name in enumerate("abc")}
    lines = tables["b"].splitlines()
    lines[1:9] = [f",{line.partition(',')[2]}" for line in lines[1:9]]  # eight without an age
    there = folder(**{**tables, "b": "\n".join(lines)})
    found = written(there, "--set", "csv.missing=fill")
    frames = {name: pandas.read_csv(there / f"{name}.csv") for name in tables}
    frames["all"] = pandas.concat(frames.values())
    for name, frame in frames.items():
        low, middle, high = frame["age"].quantile([0.25, 0.5, 0.75])
        median = found["age", "median [25 %, 75 %]"][name]
        shown = [
            float(each)
            for each in median.replace("[", "").replace("]", "").replace(",", "").split()
        ]
        np.testing.assert_allclose(shown, [middle, low, high], rtol=0.005)
        gone = int(frame["age"].isna().sum())
        assert found["age", "n"][name] == str(len(frame))
        assert found["age", "missing, n (%)"][name] == f"{gone} ({100 * gone / len(frame):.1f})"
        for ward, count in frame["ward"].value_counts().items():
            share = 100 * count / len(frame)
            assert found["ward", f"{ward}, n (%)"][name] == f"{count} ({share:.1f})"
    medians = {name: frames[name]["age"].median() for name in "abc"}
    apart = []
    for name in "abc":
        rest = pandas.concat([frames[other] for other in "abc" if other != name])["age"]
        low, middle, high = rest.quantile([0.25, 0.5, 0.75])
        apart.append(abs(medians[name] - middle) / (high - low))
    assert found["age", "median [25 %, 75 %]"]["largest difference, in IQR"] == f"{max(apart):.2f}"


def test_a_page_draws_who_stands_out(folder: Folder, tmp_path: Path) -> None:
    there = folder(a=csv_of(60), b=csv_of(60, 1), c=csv_of(60, 2, shift=400.0))
    page = tmp_path / "data.html"
    assert command("data", there, "--page", page) == 0
    html = page.read_text()
    assert "In 1 of 4 fields some sites stand out." in html
    assert "c: median 4" in html
    assert '"picture-age"' in html
    assert '"picture-dose"' not in html
    assert len(html) < 1_000_000


@pytest.mark.parametrize("option", ["--page", "--table"])
def test_a_picture_has_no_table(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = refusal(capsys, "data", "--task", "digits", option, tmp_path / "out")
    assert "--page and --table are of tables, which --task csv reads" in words
    assert not (tmp_path / "out").exists()


def test_the_terminal_shows_ten_and_counts_the_rest(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    def table(factor: float, seed: int) -> str:
        random = np.random.default_rng(seed)
        names = [f"x{k}" for k in range(13)]
        rows = [[f"{factor * each:.1f}" for each in random.normal(100, 9, 13)] for _ in range(40)]
        lines = [",".join([*row, str(k % 2)]) for k, row in enumerate(rows)]
        return "\n".join([",".join([*names, "target"]), *lines])

    there = folder(a=table(1.0, 0), b=table(1.0, 1), c=table(10.0, 2))
    printed = captured(capsys, "data", there).out
    assert printed.count("a shifted decimal point") == 10
    assert "and 3 more, which --every-client prints, and --page draws" in printed
    assert (
        captured(capsys, "data", there, "--every-client").out.count("a shifted decimal point") == 13
    )
    assert inferred(there).count("a shifted decimal point") == 13


def test_a_site_may_be_called_all(folder: Folder) -> None:
    there = folder(**{"all": csv_of(60), "b": csv_of(80, 1)})
    target = there.parent / "one.csv"
    assert command("data", there, "--table", target) == 0
    headings, sizes, *_ = csv.reader(target.read_text().splitlines())
    assert headings[2:5] == ["all", "all", "b"]
    assert sizes[2:5] == ["140", "60", "80"]
