"""The page on the newer methods: what its sentences and its first table say is what the workloads' tables hold."""

import csv
import re

import pytest

from .pages import ROOT

PAGE = (ROOT / "docs" / "newer-methods.md").read_text()
WORKLOADS = ("digits", "one-class", "dirichlet", "adult", "hospitals")
LABELS = {
    "Adam on the server": "FedAvg (adam, lr 0.1)",
    "FedAvgM": "FedAvg (avgm, lr 0.3)",
    "AAggFF": "AAggFF (rule=ons)",
}


def table_of(workload: str) -> list[dict[str, str]]:
    """Return the rows of a workload's table, or of the summary, each of which is a file of its own."""
    with (ROOT / "docs" / "data" / "newer-methods" / f"{workload}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_tuned(method: str) -> str:
    """Return a label without the step sizes that a workload has of its own."""
    return re.sub(r", (lipschitz|server-lr)=[\d.]+| \((server-lr)=[\d.]+\)", "", method)


SUMMARY = {row["method"]: row for row in table_of("summary")}
VERDICTS = re.findall(
    r"^- \*\*\[([^]]+)\]\((?:methods|server).*?\*\*(.*?)(?=\n\n|\n- )", PAGE, re.DOTALL | re.MULTILINE
)
SAID = [
    (method, number, workload, "mean" if "mean" in between else "worst")
    for method, text in VERDICTS
    for number, between, workload in re.findall(r"([+-]\d+\.\d)( on | for the mean of )`([\w-]+)`", text)
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_first_table_has_the_gains_of_the_workloads_tables(workload: str) -> None:
    for row in table_of(workload):
        method = without_tuned(row["method"])
        if method == "FedAvg" or row["mean"] == "not run":
            continue
        (gain,) = (value for column, value in row.items() if column.startswith("gain, worst"))
        assert re.sub(r" \(.*\)", "", gain) == SUMMARY[method][f"`{workload}`"], method


@pytest.mark.parametrize(("method", "number", "workload", "of"), SAID)
def test_a_sentence_has_the_number_of_the_table(method: str, number: str, workload: str, of: str) -> None:
    label = LABELS.get(method, method)
    (row,) = (each for each in table_of(workload) if each["method"] == label)
    (gain,) = (value for column, value in row.items() if column.startswith(f"gain, {of}"))
    assert re.match(r"\**([+-][\d.]+)", gain)[1] == number  # type: ignore[index]


def test_the_page_shows_the_table_of_each_workload() -> None:
    for workload in ("summary", *WORKLOADS):
        assert f":file: data/newer-methods/{workload}.csv\n" in PAGE


def test_every_newer_method_has_numbers_or_a_verdict() -> None:
    assert {method for method, *_ in SAID} >= {"FedLF", "FedMDFG", "FedDyn", "AAggFF", "SCAFFOLD", "FedAvgM"}
