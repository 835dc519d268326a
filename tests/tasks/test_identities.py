"""Columns that may say who a row is about are used only where somebody allows it by name."""

import json
from typing import Any

import numpy as np
import pytest

from fairbloom.client.settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task
from fairbloom.tasks.files.reading.headers import doubtful_place
from fairbloom.tasks.files.reading.identities import is_date, is_identifier, look_like_identifiers, nearly_all_differ
from fairbloom.tasks.files.reasons import REASONS, DataError, Heading

from .tables import Folder, agreed, config, csv_of, told_by

DATES = (
    *("2024-03-17", "2024/3/17", "2024-03", "17.03.2024", "17.3.24", "3/17/2024", "17-03-24", "2024-03-17T08:15:00Z"),
    *("2024-03-17 08:15", "17.03.2024 8:15:30.5", "17 March 2024", "17-Mar-24", "March 17th, 2024", "17. Mai 2024"),
    *("3/17/2024 8:15 PM", "2024-03-17T08:15:00+01:00"),
)
NO_DATES = ("40-49", "10-12", "1.5", "3/4", "I25.1", "T2", "2024", "2019-2020", "10-2", "A-1-2", "stage 3", "may", "")
IDENTIFIERS = (
    *("P-00123", "MRN0047110", "4711/B", "a1b2c3d4", "8c5e4f7a-92c1-4f27-9d55-0c6f7f1c2b3a", "anna@clinic.example"),
    *("123-45-6789", "+46 70 123 45 67", "(555) 123-4567-8", "0171-1234567", "patient_2024_0001", "19800317-1234"),
)
NO_IDENTIFIERS = (
    *(
        "40-49",
        "1000-2000",
        "50000-100000",
        "100000-150000",
        "I25.1",
        "S72.001A",
        "stage 3",
        "grade-2",
        "T1N0M0",
        "north",
    ),
    *("facade", "deadbeef", "Q3", "<5", ">=100", "A", "B+", "type 2", "C09AA05", "other", "New York", "bed"),
)


@pytest.mark.parametrize("text", DATES)
def test_a_date_is_one_however_it_is_written(text: str) -> None:
    assert is_date(text)


@pytest.mark.parametrize("text", NO_DATES)
def test_ranges_codes_and_numbers_are_no_dates(text: str) -> None:
    assert not is_date(text)


@pytest.mark.parametrize("text", IDENTIFIERS)
def test_numbers_of_persons_and_addresses_look_like_identifiers(text: str) -> None:
    assert is_identifier(text)


@pytest.mark.parametrize("text", NO_IDENTIFIERS)
def test_categories_do_not_look_like_identifiers(text: str) -> None:
    assert not is_identifier(text)


def test_one_code_among_words_makes_no_column_of_identifiers() -> None:
    assert not look_like_identifiers(["none", "covid2019", "flu"])
    assert look_like_identifiers(["P-00123", "P-00124", "unknown"])


@pytest.mark.parametrize(
    ("different", "rows", "so"), [(20, 20, True), (18, 20, True), (17, 20, False), (19, 19, False)]
)
def test_texts_nearly_all_differ_from_twenty_rows_on(different: int, rows: int, so: bool) -> None:
    assert nearly_all_differ(different, rows) is so


def with_column(name: str, cells: list[str]) -> str:
    header, *lines = csv_of(len(cells)).splitlines()
    return "\n".join([f"{name},{header}", *(f"{cell},{line}" for cell, line in zip(cells, lines, strict=True))]) + "\n"


PERSONAL = {
    "names": ([f"person {chr(97 + k)}" for k in range(20)], "20 different texts in 20 rows"),
    "dates": ([f"2024-03-{1 + k % 3:02}" for k in range(12)], "dates"),
    "numbers": ([f"P-{1000 + k % 2}" for k in range(12)], "look like numbers of persons"),
    "mails": ([f"anna{k % 2}@clinic.example" for k in range(12)], "look like numbers of persons"),
}


@pytest.mark.parametrize("deployed", [False, True])
@pytest.mark.parametrize("case", PERSONAL)
def test_an_identifying_column_is_refused_until_allowed(folder: Folder, case: str, deployed: bool) -> None:
    cells, words = PERSONAL[case]
    there = folder(a=with_column("who", cells), b=with_column("who", cells))
    with pytest.raises(DataError) as refusal:
        told_by(config(there) | {"deployed": deployed})
    for word in (words, repr(cells[0]), "a.csv, column 'who'", "csv.ignore=who", "csv.categories=who"):
        assert word in str(refusal.value)
    assert cells[0] not in refusal.value.reportable
    assert "column 'who'" in refusal.value.reportable
    assert "who" not in told_by(config(there, ignore="who") | {"deployed": deployed})["a"]["columns"]
    allowed = told_by(config(there, categories="Who", smallest_category=1) | {"deployed": deployed, "floor": 1})
    assert set(allowed["a"]["categories"]["who"]) <= set(cells)


def test_nineteen_names_are_no_identifiers(folder: Folder) -> None:
    text = with_column("who", [f"person {chr(97 + k)}" for k in range(19)])
    chosen = config(folder(a=text, b=text))
    assert len(told_by(chosen)["a"]["categories"]["who"]) == 16
    assert told_by(chosen | {"deployed": True})["a"]["categories"]["who"] == ["other"]


def test_an_identifying_target_is_refused_without_its_classes(folder: Folder) -> None:
    names = [f"person {chr(97 + k)}" for k in range(20)]
    chosen = {"target": "who", "ignore": "target"}
    there = folder(a=with_column("who", names), b=with_column("who", names))
    with pytest.raises(DataError, match=r"20 different values in 20 rows, as 'person a'.* csv.classes") as refusal:
        told_by(config(there, **chosen))
    assert "person" not in refusal.value.reportable
    assert told_by(config(there, **chosen, classes=",".join(names)))["a"]["target"]["classes"] == names


def test_a_text_among_target_numbers_is_refused_as_no_class(folder: Folder) -> None:
    text = csv_of(20).replace(",1\n", ",Anna Svensson\n", 1)
    there = folder(a=text, b=text)
    with pytest.raises(DataError, match="line 3, column 'target' holds 'Anna Svensson'") as refusal:
        told_by(config(there))
    assert "Anna" not in refusal.value.reportable
    assert "csv.kind=classification" in refusal.value.reportable
    assert "Anna Svensson" in told_by(config(there, kind="classification"))["a"]["target"]["classes"]


# Categories of few rows -----------------------------------------------------------------------------------------------


def wards(**counts: int) -> str:
    """Return a table whose column `ward` has each category so often."""
    cells = [name for name, count in counts.items() for _ in range(count)]
    header = "ward,age,target"
    return "\n".join([header, *(f"{cell},{30 + k},{k % 2}" for k, cell in enumerate(cells))]) + "\n"


def test_a_device_tells_a_category_of_few_training_rows_as_other(folder: Folder) -> None:
    there = folder(a=wards(north=30, south=30, hospice=4), b=wards(north=30, south=30))
    told = told_by(config(there) | {"deployed": True})
    assert told["a"]["categories"] == {"ward": ["north", "other", "south"]}
    assert told["a"]["others"] == ["ward"]
    assert told["b"]["categories"] == {"ward": ["north", "south"]}
    assert told["b"]["others"] == []
    assert "hospice" not in json.dumps(told)


@pytest.mark.parametrize(
    ("smallest", "limits"), [(1, {}), (5, {}), (50, {}), (1, {"deployed": True, "floor": 1})], ids=str
)
def test_in_process_or_switched_off_every_category_is_told(
    folder: Folder, smallest: int, limits: dict[str, Any]
) -> None:
    there = folder(a=wards(north=30, south=30, hospice=4), b=wards(north=30, south=30))
    told = told_by(config(there, smallest_category=smallest) | limits)
    assert told["a"]["categories"] == {"ward": ["hospice", "north", "south"]}
    assert told["a"]["others"] == []


@pytest.mark.parametrize(("smallest", "floor", "sent"), [(1, 20, False), (1, 2, True), (30, 1, False)])
def test_no_run_lowers_the_floor_of_a_device(folder: Folder, smallest: int, floor: int, sent: bool) -> None:
    there = folder(a=wards(north=60, south=60, hospice=6), b=wards(north=60, south=60))
    told = told_by(config(there, smallest_category=smallest) | {"deployed": True, "floor": floor})
    assert ("hospice" in told["a"]["categories"]["ward"]) is sent


@pytest.mark.parametrize("count", range(21, 30))
def test_the_count_is_of_training_rows_and_exact(folder: Folder, count: int) -> None:
    text = wards(north=40, hospice=count)
    chosen = config(folder(a=text, b=text)) | {"deployed": True}
    task, _ = agreed(config(folder(a=text, b=text)))
    inputs = task.splits("a").train[:][0][:, :2]  # hospice comes before north
    rows = int(inputs[:, 0].sum())
    told = told_by(chosen)["a"]["categories"]["ward"]
    assert told == (["hospice", "north"] if rows >= 20 else ["north", "other"] if rows else ["north"])


def test_a_rare_category_that_another_client_tells_is_an_input(
    folder: Folder,
) -> None:
    there = folder(a=wards(north=30, south=30, hospice=4, annex=4), b=wards(north=30, hospice=30))
    task, told = agreed(config(there) | {"deployed": True})
    ward = told["inputs"][0]
    assert ward == {
        "name": "ward",
        "categories": ["hospice", "north", "other", "south"],
        "moments": None,
        "other": True,
    }
    inputs = np.concatenate([examples[0 : len(examples)][0].numpy() for examples in task.splits("a")])
    assert inputs[:, :4].sum(axis=0).tolist() == [4, 30, 4, 30]


def test_without_rare_categories_a_device_agrees_as_a_process(folder: Folder) -> None:
    there = folder(a=wards(north=30, south=30), b=wards(north=30, south=30))
    assert agreed(config(there))[1] == agreed(config(there) | {"deployed": True})[1]
    assert "other" not in agreed(config(there))[1]["inputs"][0]


def test_a_category_called_other_of_a_process_stays_one_like_any(folder: Folder) -> None:
    there = folder(a=wards(north=30, other=30, hospice=1), b=wards(north=30, other=30))
    task, told = agreed(config(there))
    assert "other" not in told["inputs"][0]
    counts = sum(examples[0 : len(examples)][0][:, :3].sum(dim=0) for examples in task.splits("a"))
    place = told["inputs"][0]["categories"].index("other")
    assert float(counts[place]) == 30


def test_rare_classes_of_the_target_stay_told(folder: Folder) -> None:
    text = wards(north=30, south=30).replace(",1\n", ",severe\n", 1).replace(",1\n", ",mild\n").replace(",0\n", ",no\n")
    told = told_by(config(folder(a=text, b=text)) | {"deployed": True})
    assert text.count("severe") == 1
    assert told["a"]["target"]["classes"] == ["mild", "no", "severe"]


def test_who_keeps_categories_back_must_tell_other(folder: Folder) -> None:
    told = told_by(config(folder(a=wards(north=30, south=30), b=wards(north=30, south=30))))
    told["b"]["others"] = ["ward"]
    _, reasons = find_task("csv").agreement(told)
    assert "does not send 'other'" in reasons["b"]


# Headers, and what may be told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "rows", "place"),
    [
        (["age", "sex"], [["30", "F"], ["40", "M"]], None),
        (["Alice", "F"], [["Bob", "M"], ["Eve", "f"]], 2),
        (["age", "47"], [["30", "F"]], 2),
        (["1e3", "x"], [["30", "F"]], 1),
        (["3,5", "x"], [["30", "F"]], 1),
        (["x", "NA"], [["30", "F"]], 2),
        (["x", "2024-03-17"], [["30", "F"]], 2),
        (["x", "anna@clinic.example"], [["30", "F"]], 2),
        (["ward", "12"], [["north", "F"]], None),
        (["ward", "12"], [["Ward", "F"]], 1),
        (["income_2019", "e-mail", "p53", "A/B"], [["1", "2", "3", "4"]], None),
    ],
)
def test_a_name_like_a_value_makes_the_first_line_doubtful(
    header: list[str], rows: list[list[str]], place: int | None
) -> None:
    assert doubtful_place(header, [list(column) for column in zip(*rows, strict=True)], {"ward", "12"}) == place


def test_a_header_of_numbers_is_refused_on_a_device_alone(folder: Folder) -> None:
    text = "0,1,target\n" + "".join(f"{k}.5,{k % 3},{k % 2}\n" for k in range(20))
    chosen = config(folder(a=text, b=text))
    assert told_by(chosen)["a"]["columns"] == ["0", "1"]
    with pytest.raises(DataError, match=r"a.csv, line 1: the name of column 1 looks like a value"):
        told_by(chosen | {"deployed": True})
    renamed = text.replace("0,1,target", "x0,x1,target")
    assert told_by(config(folder(a=renamed, b=renamed)) | {"deployed": True})["a"]["columns"] == ["x0", "x1"]


def test_no_run_says_that_a_client_is_not_deployed(folder: Folder) -> None:
    with pytest.raises(FairbloomError, match="deployed"):
        Settings.of({"task": "csv", "deployed": False})
    chosen = {**config(folder(a=csv_of(20))), "deployed": False}
    assert "deployed" not in accepted_settings({key: value for key, value in chosen.items() if key != "data-dir"})


@pytest.mark.parametrize("told", [{"line": "7"}, {"line": 7.0}, {"line": True}])
def test_a_reason_takes_numbers_and_headings_alone(told: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"line of quotes is a .*, which may quote a client's files"):
        DataError("any", "quotes", **told)


@pytest.mark.parametrize("why", REASONS)
def test_every_reason_is_a_sentence_that_names_no_file(why: str) -> None:
    assert "'" not in REASONS[why].replace("columns'", "")
    assert len(REASONS[why]) < 300
    assert REASONS[why].removeprefix("{position}, ")[0].islower()


def test_a_heading_is_quoted_in_a_reason() -> None:
    error = DataError("…", "dates", column=Heading("visit"))
    assert error.reportable.startswith("column 'visit' holds texts that look like dates")
