"""What the page on measurements says of five workloads is what the workloads' tables hold."""

import csv
import re

from .pages import ROOT

PAGE = (ROOT / "docs" / "measured.md").read_text()
WORKLOADS = ("digits", "one-class", "dirichlet", "adult", "hospitals")


def table_of(workload: str) -> list[dict[str, str]]:
    """Return the rows of a workload's table, or of the summary, each of which is a file of its own."""
    with (ROOT / "docs" / "data" / "newer-methods" / f"{workload}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_tuned(method: str) -> str:
    """Return a label without the step sizes that a workload has of its own."""
    return re.sub(r", (lipschitz|server-lr)=[\d.]+| \((server-lr)=[\d.]+\)", "", method)


SUMMARY = {row["method"]: row for row in table_of("summary")}


def test_the_first_table_has_the_gains_of_the_workloads_tables() -> None:
    for workload in WORKLOADS:
        for row in table_of(workload):
            method = without_tuned(row["method"])
            if method != "FedAvg" and row["mean"] != "not run":
                (gain,) = (value for column, value in row.items() if column.startswith("gain, worst"))
                assert re.sub(r" \(.*\)", "", gain) == SUMMARY[method][f"`{workload}`"], method


def test_the_page_shows_or_links_the_table_of_each_workload() -> None:
    assert ":file: data/newer-methods/summary.csv\n" in PAGE
    assert [name for name in WORKLOADS if f"[{name}](data/newer-methods/{name}.csv)" not in PAGE] == []
