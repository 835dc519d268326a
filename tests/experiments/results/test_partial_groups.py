"""A score over all clients says which clients it leaves out, at its number."""

from pathlib import Path
from typing import Any

import pytest

import fairbloom

SCHEMA = """
target = "target"
positive = "ill"
groups = ["sex"]
[fields.age]
type = "number"
[fields.sex]
type = "string"
categories = ["F", "M"]
[fields.target]
type = "string"
categories = ["ill", "well"]
"""


def site(ill: int, well: int) -> str:
    """Return a table in which each sex has as many ill and well patients."""
    rows = [(k % 9, "FM"[k % 2], "ill") for k in range(2 * ill)]
    rows += [((k + 4) % 9, "FM"[k % 2], "well") for k in range(2 * well)]
    return "age,sex,target\n" + "".join(f"{age},{sex},{target}\n" for age, sex, target in rows)


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three sites, of which the last tests too few ill patients of a sex to report their rate."""
    (tmp_path / "data").mkdir()
    for name, ill, well in (("a", 60, 60), ("b", 60, 60), ("few", 8, 90)):
        (tmp_path / "data" / f"{name}.csv").write_text(site(ill, well))
    return tmp_path


def test_a_rate_that_leaves_a_client_out_says_so(
    sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"data_dir": sites / "data", "schema": SCHEMA, "progress": False}
    run = fairbloom.run("csv", rounds=3, out=sites / "run", **given)
    report = run.by_group()
    assert report is not None
    for group in report.of("all clients", "sex"):
        counts = {each.client: each.count for each in report.groups if each.group == group.group}
        assert group.without == {"true-positive-rate": {"few": counts["few"]}}
        assert group.count == sum(counts.values())
    run.show()
    shown = capsys.readouterr().out
    table = shown[shown.index("Groups over all clients") :].splitlines()[3:5]
    assert [line.count("†") for line in table] == [1, 1]
    assert all(line.rstrip().endswith("†") for line in table)
    few = report.of("few", "sex")[0].count
    every = report.of("all clients", "sex")[0].count
    words = f"sex, true positive rate (ill) of F: without few ({few} of {every} examples)"
    assert words in " ".join(shown.split())
    gaps = (
        run.gaps.query("client == 'all clients'").set_index("score")["without"].fillna("").to_dict()
    )
    assert gaps == {"accuracy": "", "selection-rate": "", "true-positive-rate": "few"}


def test_groups_that_leave_nobody_out_have_no_mark(
    sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"data_dir": sites / "data", "schema": SCHEMA, "progress": False}
    settings = {"smallest-group": 1}
    run = fairbloom.run("csv", rounds=1, out=sites / "run", settings=settings, **given)
    run.show()
    assert "†" not in capsys.readouterr().out
