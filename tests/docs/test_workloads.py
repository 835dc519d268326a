"""The table of all methods at their best has what each workload's own table has."""

import csv
import re

from benchmarks.methods import TRIED, WORKLOADS
from fairbloom.strategies import METHODS

from .pages import ROOT

PAGE = (ROOT / "docs" / "measured.md").read_text()


def table_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a workload's table, or of the summary, each of which is a file of its own."""
    with (ROOT / "docs" / "data" / "tuned" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_summary_has_the_gains_of_each_method() -> None:
    summary = {row["method"]: row for row in table_of("summary")}
    assert [*summary] == [METHODS[name].__name__ for name in TRIED]
    for workload in WORKLOADS:
        gains = {}
        for row in table_of(workload):  # a method's personal models come after its global one
            (gains[re.sub(r" \(.*", "", row["method"])],) = (
                row[head] for head in row if head.startswith("gain, worst")
            )
        assert gains == {method: row[workload] for method, row in summary.items()}


def test_the_page_shows_the_summary_and_links_the_tables() -> None:
    assert ":file: data/tuned/summary.csv\n" in PAGE
    assert [name for name in WORKLOADS if f"[{name}](data/tuned/{name}.csv)" not in PAGE] == []
