"""Subgroups in a report: scores and gaps are those of the clients' records, and say over how many seeds they are."""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from fairbloom.experiments.results.run import REPORT
from fairbloom.server.run_folder.files import GROUPS
from tests.tasks.tables import grouped
from tests.tasks.test_groups import patients

from ..helpers import fairbloom
from .parsed import Parsed

SEEDS = range(3)

ByGroup = dict[str, tuple[float, int]]
"""By group, the number of examples of it that are right, and the number of examples."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites where not many women are ill: with some seeds too few for a true positive rate."""
    folder = tmp_path_factory.mktemp("subgroups")
    (folder / "sites").mkdir()
    ill = {"target": lambda k: "1" if k % 10 in (0, 4) or k % 4 == 1 else "0"}
    for name, rows in (("a", 140), ("b", 90)):
        (folder / "sites" / f"{name}.csv").write_text(patients(rows, **ill))
    (folder / "schema.toml").write_text(grouped(folder / "sites", "sex"))
    words = ("compare", "--task", "csv", "--data-dir", folder / "sites", "--rounds", 2, "--seeds", len(SEEDS))
    words = (*words, "--methods", "fedavg,fedfv", "--schema", folder / "schema.toml", "--set", "device=cpu")
    assert fairbloom(*words, "--out", folder / "out") == 0
    return folder / "out"


@pytest.fixture(scope="module")
def page(folder: Path) -> Parsed:
    return Parsed.of((folder / REPORT).read_text(encoding="utf-8"))


def last_by_group(folder: Path, seed: int, over: str, score: str) -> ByGroup:
    """Return the score of each group over all clients, by what each client has written of the last round."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with GROUPS.path_in(folder / "runs" / f"fedavg-seed{seed}").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["round"] == "2" and row[score]:
            found[row["group"]].append((float(row[score]) * int(row[over]), int(row[over])))
    return {
        group: (sum(right for right, _ in each) / sum(of for _, of in each), sum(of for _, of in each))
        for group, each in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "over"), [("accuracy", "count"), ("selection_rate", "count"), ("true_positive_rate", "positives")]
)
def test_gaps_are_those_of_the_clients_records_with_the_seeds_that_have_them(
    folder: Path, page: Parsed, score: str, over: str
) -> None:
    by_seed = [last_by_group(folder, seed, over, score) for seed in SEEDS]
    rates = [[rate for rate, _ in each.values()] for each in by_seed]
    gaps = [max(each) - min(each) for each in rates if len(each) > 1]
    title = f"{score.replace('_', ' ')}, %"
    found = [row for row in page.rows("gaps") if row["method"] == "FedAvg" and row["score"] == title]
    if not gaps:
        assert found == []
        return
    (row,) = found
    assert float(row["gap"].partition(" ")[0]) == pytest.approx(statistics.fmean(gaps), abs=0.051)
    assert int(row["seeds"]) == len(gaps)


@pytest.mark.parametrize(
    ("title", "measure"), [("accuracy gap", "group-gap:accuracy"), ("selection rate gap", "group-gap:selection-rate")]
)
def test_differences_of_gaps_are_those_of_the_terminal_and_of_the_file(
    folder: Path, page: Parsed, capsys: pytest.CaptureFixture[str], title: str, measure: str
) -> None:
    with (folder / "differences.csv").open(newline="") as file:
        (expected,) = [row for row in csv.DictReader(file) if row["measure"] == measure]
    (row,) = [row for row in page.rows("differences") if row["measure"] == title]
    assert [row["seeds better"], row["seeds worse"]] == [expected["better"], expected["worse"]]
    capsys.readouterr()
    assert fairbloom("show", folder) == 0
    printed = " ".join(capsys.readouterr().out.split())
    mean, low, high = (float(expected[key]) for key in ("mean", "low", "high"))
    written = f"{mean:+.1f} ({low:.1f} to {high:.1f})"
    assert row["difference"] == written
    assert written in printed


def test_not_every_gap_has_all_seeds_here(page: Parsed) -> None:
    """Else the test above would not see a number of seeds that is made up."""
    seeds = [int(row["seeds"]) for row in page.rows("gaps")]
    assert max(seeds) == len(SEEDS) > min(seeds)


def test_the_page_has_the_groups_of_all_methods(page: Parsed) -> None:
    assert {(row["method"], row["group"]) for row in page.rows("groups")} == {
        (method, group) for method in ("FedAvg", "FedFV") for group in "FM"
    }
