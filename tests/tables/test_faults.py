"""What `fairbloom data` finds in a folder of tables: every fault, and spellings."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tables.reasons import MAX_FAULTS
from fairbloom.tasks import describe_data

from .helpers import SCHEMA, Folder, config, csv_of, schema_with


def faults(folder: Path, schema: str = "") -> list[dict[str, Any]]:
    return [dict(row) for row in describe_data(RunSettings.of(config(folder, schema)))["faults"]]


def change(text: str, column: str, **values: str) -> str:
    """Return a table with other values in a column, by the numbers of rows as in row3='x'."""
    rows = list(csv.reader(io.StringIO(text)))
    for row, value in values.items():
        rows[int(row.removeprefix("row"))][rows[0].index(column)] = value
    return "\n".join(map(",".join, rows)) + "\n"


# Every fault --------------------------------------------------------------------------------------


def test_data_shows_every_fault_of_a_file(folder: Folder) -> None:
    text = change(change(csv_of(30), "age", row3="old", row7="x1"), "dose", row9="?")
    text = change(text, "ward", row4="nort", row5="nort").replace("age", "Age", 1)
    found = faults(folder(a=text, b=csv_of(30, 1)), SCHEMA)
    assert [(row["line"], row["column"], row["value"]) for row in found] == [
        (4, "age", "old"),
        (8, "age", "x1"),
        (10, "dose", "?"),
        (5, "ward", "nort"),
    ]
    assert {(row["client"], row["file"]) for row in found} == {("a", "a.csv")}
    assert all(row["problem"] and row["remedy"] for row in found)
    assert "1 more row" in found[3]["problem"]
    assert "north" in found[3]["remedy"]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("minimum = 50", "below the minimum, 50"),
        ("maximum = 50", "above the maximum, 50"),
        ("enum = [1, 2]", "allowed are 1, 2"),
    ],
)
def test_values_outside_of_what_is_allowed_are_faults(
    folder: Folder, limit: str, words: str
) -> None:
    text = schema_with(('type = "number"', f'type = "number"\nconstraints = {{{limit}}}'))
    found = faults(folder(a=csv_of(30), b=csv_of(30, 1)), text)
    assert {row["client"] for row in found} == {"a", "b"}
    assert words in found[0]["problem"]


def test_whole_numbers_and_values_may_be_required(folder: Folder) -> None:
    (first, _) = faults(
        folder(a=csv_of(30), b=csv_of(30, 1)), schema_with(('"number"', '"integer"'))
    )
    assert "not a whole number" in first["problem"]
    (gap,) = faults(
        folder(a=change(csv_of(30), "age", row2="NA")),
        schema_with(('"number"', '"number"\nmissing = "drop"\nconstraints = {required = true}')),
    )
    assert (gap["line"], gap["value"]) == (3, "NA")


def test_a_summary_counts_the_faults_of_an_unreadable_file(folder: Folder) -> None:
    lines = csv_of(30).splitlines()
    there = folder(a="\n".join([*lines[:9], *(f"{line},1" for line in lines[9:11])]), b=csv_of(30))
    found = describe_data(RunSettings.of(config(there, SCHEMA)), every=False)
    (fault,) = found["faults"]
    assert fault["client"] == "a"
    assert "line 10 has" in str(fault["problem"])
    assert "(and 1 more like this)" in str(fault["problem"])
    assert [row["client"] for row in found["clients"] if "problem" in row] == ["a"]


def test_columns_that_do_not_fit_are_faults(folder: Folder) -> None:
    found = faults(folder(a=csv_of(30).replace("dose", "doze", 1), b=csv_of(30)), SCHEMA)
    assert [(row["column"], row["line"]) for row in found] == [("dose", ""), ("doze", "")]
    assert "did you mean doze?" in found[0]["remedy"]
    assert "ignore" in found[1]["remedy"]


def test_data_shows_all_rows_of_the_wrong_length(folder: Folder) -> None:
    lines = csv_of(30).splitlines()
    for number in (4, 9, 17):
        lines[number] += ",1"
    found = faults(folder(a="\n".join(lines), b=csv_of(30, 1)))
    assert [row["problem"].split(" has ")[0].rsplit(" ", 1)[1] for row in found] == [
        "5",
        "10",
        "18",
    ]


def test_the_list_of_faults_is_bounded(folder: Folder) -> None:
    text = csv_of(200)
    for row in range(1, 60):
        text = change(text, "age", **{f"row{row}": f"x{row}"})
    assert len(faults(folder(a=text, b=csv_of(30, 1)))) == MAX_FAULTS


# What it advises ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "cell"),
    [("No,Yes", "1"), ("no,yes", "ja"), ("no,yes", "Y"), ("ill,well", "unwell"), ("0,1", "Yes")],
)
def test_a_remedy_puts_no_spelling_into_a_class(folder: Folder, classes: str, cell: str) -> None:
    names = classes.split(",")
    schema = schema_with(
        ('type = "integer"\ncategories = [0, 1]', f'type = "string"\ncategories = {names}')
    )
    rows = csv_of(30).splitlines()
    text = "\n".join([rows[0], *(row[:-1] + names[k % 2] for k, row in enumerate(rows[1:]))])
    (fault,) = faults(folder(a=change(text, "target", row5=cell)), schema)
    remedy = str(fault["remedy"])
    assert f"which of {', '.join(names)} it means" in remedy
    assert f"fields.target.spellings = {{CATEGORY = [{cell!r}]}}" in remedy
    assert not any(f"{name}' = [" in remedy for name in names)
    assert "did you mean" not in remedy


def test_a_new_category_is_one_row_of_all_its_clients(folder: Folder) -> None:
    there = folder(
        a=change(csv_of(30), "ward", row5="ja", row9="ja"),
        b=change(csv_of(30, 1), "ward", row4="nort", row7="ja"),
    )
    found = describe_data(RunSettings.of(config(there, SCHEMA)), every=False)["faults"]
    assert [(row["client"], row["file"], row["line"], row["value"]) for row in found] == [
        ("a, b", "a.csv and 1 more", "6 to 10, 1 more", "ja"),
        ("b", "b.csv", "5", "nort"),
    ]
    strange = folder(a=csv_of(30).replace("dose", "x"), b=csv_of(30).replace("dose", "x"))
    rows = describe_data(RunSettings.of(config(strange, SCHEMA)), every=False)["faults"]
    assert [row["client"] for row in rows] == ["a", "a", "b", "b"]
    new, near = (str(row["remedy"]) for row in found)
    assert new.startswith("add it to categories of fields.ward if it is a new one, or say which of")
    assert "north, south, west it means: fields.ward.spellings = {CATEGORY = ['ja']}" in new
    assert near.startswith("did you mean north? correct it, or say which of")


def test_no_hint_joins_columns_of_other_brackets(folder: Folder) -> None:
    """(systolic) is not (diastolic); a name that is only misspelt is hinted at."""
    rows = "\n".join(f"{k},{'ab'[k % 2]}" for k in range(40))
    for own, hinted in (("pressure (diastolic)", False), ("presure (systolic)", True)):
        there = folder(a=f"pressure (systolic),target\n{rows}", b=f"{own},target\n{rows}")
        schema = 'target = "target"\n[fields."pressure (systolic)"]\ntype = "number"\n'
        schema += '[fields.target]\ntype = "string"\ncategories = ["a", "b"]\n'
        remedies = [row["remedy"] for row in faults(there, schema)]
        assert len(remedies) > 1
        assert any("did you mean" in each for each in remedies) == hinted
