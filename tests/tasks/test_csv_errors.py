"""What users get wrong in CSV files: each error says what, where, which value, and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.tasks import check_data, describe_data, find_task, load_task

from .tables import Folder, agreed, config, csv_of, told_by


def line(text: str, number: int, new: str) -> str:
    """Return a table with another line at this place, counted from 1 as in the file."""
    lines = text.splitlines()
    lines[number - 1] = new
    return "\n".join(lines) + "\n"


GOOD = csv_of(20)
LETTER = GOOD.splitlines()[4]

WRONG: dict[str, tuple[str | bytes, dict[str, Any], tuple[str, ...]]] = {
    "no target": (
        GOOD.replace("target", "outcome"),
        {},
        ("b.csv", "no column called target, label or y", "csv.target", "age, dose, ward, outcome"),
    ),
    "another target": (
        GOOD,
        {"target": "targte"},
        ("csv.target = 'targte'", "b.csv", "did you mean target?", "age, dose, ward, target"),
    ),
    "two targets": (
        csv_of(20, columns="age,target,dose").replace("dose", "Label"),
        {},
        ("target, Label", "csv.target"),
    ),
    "nothing but the target": ("id,y\n" + "1,0\n" * 9, {"ignore": "id"}, ("b.csv", "no columns but the target 'y'")),
    "no rows": ("age,target\n", {}, ("b.csv has 0 rows", "at least 5")),
    "too few rows": (csv_of(4), {}, ("b.csv has 4 rows", "at least 5", "leave this client out")),
    "an empty file": ("", {}, ("b.csv is empty", "first line must name the columns")),
    "one class": (GOOD.replace(",1\n", ",0\n"), {}, ("column 'target'", "b.csv", "'0' in each row", "csv.classes=0,1")),
    "a missing value": (
        line(line(GOOD, 5, "?,0.1,north,1"), 9, "50,N/A,,0"),
        {},
        ("b.csv, line 5, column 'age'", "'?'", "3 such cells", "csv.missing=drop", "csv.missing=fill", "csv.ignore="),
    ),
    "a missing target": (line(GOOD, 3, "50,0.1,north,"), {}, ("line 3, column 'target'", "'empty'", "1 such cells")),
    "rows that all lack something": (
        "x,z,y\n" + "1,,0\n" * 30 + "1,2,0\n2,3,1\n",
        {"missing": "drop"},
        ("b.csv has 32 rows, 2 of them without a missing value", "csv.missing=fill"),
    ),
    "text among numbers": (
        line(GOOD, 7, "forty,0.1,north,1"),
        {},
        ("b.csv, line 7, column 'age'", "'forty'", "csv.categories=age", "leave the cell empty"),
    ),
    "a decimal comma": (
        "age;target\n" + "".join(f"{k},5;{k % 2}\n" for k in range(9)),
        {},
        ("b.csv, line 2, column 'age'", "'0,5'", "csv.decimal=,", "decimal points"),
    ),
    "an endless number": (line(GOOD, 4, "inf,0.1,north,1"), {}, ("line 4, column 'age'", "inf", "1e+100")),
    "a huge number": (line(GOOD, 4, "1e200,0.1,north,1"), {}, ("line 4, column 'age'", "1e200", "at most 1e+100")),
    "a column twice": (csv_of(20, columns="age,dose,age,target"), {}, ("line 1: columns 1 and 3", "'age'", "rename")),
    "a column twice but for case": (GOOD.replace("dose", "AGE"), {}, ("columns 1 and 2", "'AGE'", "upper and lower")),
    "a column without a name": (GOOD.replace("age", "", 1), {}, ("line 1: column 1 has no name", "index=False")),
    "no line of names": (GOOD.partition("\n")[2], {}, ("b.csv, line 1 holds values", "must name the columns")),
    "no line of names, and a value twice": (
        "1,1,5\n2,3,4\n" * 9,
        {},
        ("line 1 holds values, 1, 1, 5", "age,sex,target"),
    ),
    "a short row": (line(GOOD, 6, "50,0.1,1"), {}, ("b.csv, line 6 has 3 values, and line 1 names 4", "quotes")),
    "a long row": (line(GOOD, 6, "50,0.1,north,1,1"), {}, ("b.csv, line 6 has 5 values, and line 1 names 4",)),
    "a quote that is not closed": (line(GOOD, 6, '50,0.1,"north,1'), {}, ("b.csv, line", "quotation mark")),
    "one column": (GOOD.replace(",", " "), {}, ("line 1 names one column only", "comma, semicolon, tab or |")),
    "latin 1": (
        GOOD.replace("north", "nörth").encode("latin-1"),
        {},
        ("b.csv: byte 0xf6 in line 2 is not UTF-8", "csv.encoding=cp1252", "CSV UTF-8"),
    ),
    "utf-16 without a mark": (GOOD.encode("utf-16-le"), {}, ("b.csv: it holds zero bytes", "csv.encoding=utf-16-le")),
    "utf-16 that ends too early": (
        GOOD.encode("utf-16")[:-1],
        {},
        ("b.csv: byte 0x0a in line 21 is neither UTF-8 nor utf-16", "save it in UTF-8"),
    ),
    "an encoding that is not the file's": (
        GOOD.replace("north", "n\xf6rth").encode("latin-1"),
        {"encoding": "utf-16"},
        ("is neither UTF-8 nor utf-16", "csv.encoding=cp1252"),
    ),
    "a spreadsheet": (b"PK\x03\x04\x14\x00", {}, ("b.csv is no .csv file", "begins like .xlsx", "rename it to b.xlsx")),
    "decimal commas between commas": (line(GOOD, 6, "50,0,1,north,1"), {}, ("line 6 has 5 values", "decimal comma")),
    "a class in another case": (
        GOOD.replace(",1\n", ",Yes\n").replace(",0\n", ",no\n"),
        {"classes": "no,yes"},
        ("'Yes'", "none of the classes no, yes", "did you mean yes (upper and lower case matter)?"),
    ),
    "a text for a quantity": (
        line(GOOD, 8, "50,0.1,north,high"),
        {"kind": "regression"},
        ("b.csv, line 8, column 'target'", "'high'", "csv.kind=classification"),
    ),
    "too many classes": (
        "x,y\n" + "".join(f"{k},name-{k}\n" for k in range(101)),
        {},
        ("column 'y'", "101 different values", "'name-0'", "csv.target", "csv.classes"),
    ),
    "a class that is none of those stated": (
        line(GOOD, 5, "50,0.1,north,2"),
        {"classes": "0,1"},
        ("b.csv, line 5, column 'target'", "'2'", "none of the classes 0, 1", "csv.classes"),
    ),
    "too many categories": (
        "name,y\n" + "".join(f"n{k},{k % 2}\n" for k in range(1001)),
        {},
        ("column 'name'", "1,001 different texts", "'n0'", "csv.ignore=name"),
    ),
    "free text": (line(GOOD, 5, f"50,0.1,{'long ' * 50},1"), {}, ("line 5, column 'ward'", "249 ", "csv.ignore=ward")),
    "categories that are no column": (
        GOOD,
        {"categories": "wards"},
        ("csv.categories = 'wards'", "did you mean ward?"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_faulty_file_is_named_with_place_value_and_remedy(folder: Folder, case: str) -> None:
    content, settings, words = WRONG[case]
    chosen = config(folder(a=GOOD, b=content), **settings)
    task = load_task(chosen)
    assert task.about is not None
    with pytest.raises(FairbloomError) as refusal:
        task.about("b")
    said = str(refusal.value)
    for word in words:
        assert word in said
    assert "\n" not in said
    assert len(said) < 600


@pytest.mark.parametrize(
    ("other", "settings", "words"),
    [
        (csv_of(20, 1, "age,ward,target"), {}, ("lacks the columns dose", "in any order", "csv.ignore")),
        (
            csv_of(20, 1).replace("dose", "Dose"),
            {},
            (
                "lacks the columns dose and it has the columns Dose",
                "Dose and dose differ in upper and lower case alone",
            ),
        ),
        (
            csv_of(20, 1).replace("age,dose", "Age,dosage"),
            {},
            ("lacks the columns age, dose and it has the columns Age, dosage", "Age and age differ", "in any order"),
        ),
        (GOOD.replace(",1\n", ",2\n"), {}, ("the classes 0, 2", "0, 1", "csv.classes=0,1,2")),
        (GOOD.replace(",1\n", ",yes\n"), {}, ("the classes 0, yes", "0, 1", "csv.classes=0,1,yes")),
        (
            csv_of(20).replace("north", "1").replace("south", "2").replace("west", "3"),
            {},
            ("column 'ward' holds numbers",),
        ),
        (GOOD.replace(",1\n", ",0.5\n"), {}, ("numbers that are no classes", "csv.kind")),
    ],
)
def test_a_client_that_differs_from_the_others_is_told_in_what(
    folder: Folder, other: str, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    chosen = config(folder(a=GOOD, b=csv_of(20, 2), odd=other), **settings)
    _, reasons = find_task("csv").agreement(told_by(chosen))
    assert list(reasons) == ["odd"]
    for word in words:
        assert word in reasons["odd"]


@pytest.mark.parametrize("spelling", [("Yes", "No"), ("yes", "NO"), ("YES", "No")])
def test_classes_in_another_spelling_are_not_stated_together(folder: Folder, spelling: tuple[str, str]) -> None:
    """To state all four would make four classes of two."""

    def answers(yes: str, no: str) -> str:
        return GOOD.replace(",1\n", f",{yes}\n").replace(",0\n", f",{no}\n")

    there = folder(a=answers("yes", "no"), b=answers("yes", "no"), odd=answers(*spelling))
    _, reasons = find_task("csv").agreement(told_by(config(there)))
    assert list(reasons) == ["odd"]
    assert (
        "that of most others no, yes: write them as the others do, in the same upper and lower case" in reasons["odd"]
    )
    assert "csv.classes" not in reasons["odd"]
    folder(odd=answers("yes", "no"))  # which is what it says
    text, reasons = find_task("csv").agreement(told_by(config(there)))
    assert reasons == {}
    assert json.loads(text)["target"] == {"classes": ["no", "yes"]}


@pytest.mark.parametrize("sign", ["nan", "NaN", "-nan", "+nan", "-NaN", "NAN", "+NaN"])
@pytest.mark.parametrize("column", ["age", "target"])
def test_every_spelling_of_nan_is_a_missing_value(folder: Folder, sign: str, column: str) -> None:
    cells = f"50,0.1,north,{sign}" if column == "target" else f"{sign},0.1,north,1"
    text = GOOD
    for number in range(5, 15):
        text = line(text, number, cells)
    with pytest.raises(FairbloomError, match=f"line 5, column '{column}' has no value .'{re.escape(sign)}'"):
        told_by(config(folder(a=text, b=GOOD)))
    assert told_by(config(folder(a=text, b=GOOD), missing="drop"))["a"]["examples"] == 8


@pytest.mark.parametrize("sign", ["inf", "-inf", "+Infinity", "1e999"])
def test_an_endless_number_is_no_missing_value(folder: Folder, sign: str) -> None:
    for missing in ("error", "drop", "fill"):
        with pytest.raises(FairbloomError, match=f"line 5, column 'age' holds {re.escape(sign)}: .* the cell empty"):
            told_by(config(folder(a=line(GOOD, 5, f"{sign},0.1,north,1"), b=GOOD), missing=missing))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cp1252", "latin-1"])
def test_a_file_in_another_encoding_is_read_as_advised(folder: Folder, encoding: str) -> None:
    text = GOOD.replace("north", "nörth")
    there = folder(a=text, b=text.encode(encoding))
    with pytest.raises(FairbloomError, match=r"say csv.encoding=(cp1252|utf-16-le), or save it in UTF-8"):
        told_by(config(there))
    assert told_by(config(there, encoding=encoding))["b"]["categories"]["ward"] == ["nörth", "south", "west"]


def test_decimal_commas_are_read_once_the_advice_is_followed(folder: Folder) -> None:
    there = folder(a=GOOD.replace(",", ";").replace(".", ","))
    with pytest.raises(FairbloomError, match=r"a number with a comma: say csv.decimal=, if that"):
        told_by(config(there))
    assert told_by(config(there, decimal=",")) == told_by(config(folder(a=GOOD)))


def test_files_with_other_decimal_marks_are_read_side_by_side(folder: Folder) -> None:
    text = GOOD.replace("north", "nörth")
    plain = told_by(config(folder(a=text, b=text, c=text), standardise="together"))
    german = text.replace(",", ";").replace(".", ",").encode("cp1252")
    there = folder(a=text, b=german, c=german)
    with pytest.raises(FairbloomError, match=r"b.csv, .* a number with a comma: .* say csv.commas=b, with all such"):
        told_by(config(there, encoding="cp1252"))
    with pytest.raises(FairbloomError, match=r"a.csv, .* a number with a point, .* csv.commas only the files that"):
        told_by(config(there, encoding="cp1252", decimal=","))
    followed = config(there, encoding="cp1252", commas="b, c", standardise="together")
    assert told_by(followed) == plain
    task, _ = agreed(followed)
    assert task.preprocessing is not None
    assert [task.preprocessing(client).decimal for client in ("", "a", "b")] == [".", ".", ","]


def test_commas_names_files_and_no_others(folder: Folder) -> None:
    there = folder(bonn=GOOD, jena=GOOD)
    with pytest.raises(FairbloomError, match=r"csv.commas = 'bon': .* has no file 'bon'; did you mean '?bonn"):
        told_by(config(there, commas="bon"))
    with pytest.raises(FairbloomError, match=r"csv.decimal=, says that all have: leave one of them out"):
        told_by(config(there, commas="bonn", decimal=","))
    (there / "jena.csv").unlink()
    assert told_by(config(there, commas="jena") | {"deployed": True})["bonn"]["kinds"]  # a device has one of the files


def test_clients_with_differing_integers_learn_of_quantities(folder: Folder) -> None:
    """As blood pressure, or days: hardly two clients have the same values."""
    files = {name: "age,y\n" + "".join(f"{k},{k + shift}\n" for k in range(60)) for shift, name in enumerate("abc")}
    _, reasons = find_task("csv").agreement(told_by(config(folder(**files))))
    assert list(reasons) == ["b", "c"]
    for said in reasons.values():
        assert "csv.kind=regression if it is a quantity" in said
        assert "csv.classes=0,1,2,…" in said
        assert len(said) < 400


def test_a_client_that_comes_later_is_told_the_same(folder: Folder) -> None:
    chosen = config(folder(a=GOOD, b=csv_of(20, 2), c=csv_of(20, 1, "age,ward,target"), d=GOOD.replace(",1\n", ",2\n")))
    told = told_by(chosen)
    text, _ = find_task("csv").agreement({name: told[name] for name in "ab"})
    task = load_task({**chosen, "agreed": text})
    for client, words in (("c", "it lacks the columns dose"), ("d", "none of the classes 0, 1")):
        with pytest.raises(FairbloomError, match=words):
            task.splits(client)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no .csv, .tsv, .parquet or .xlsx file in it, but nothing at all"),
        ({"notes.txt": "x", "more.docx": "y"}, "or .xlsx file in it, but more.docx, notes.txt"),
        ({"a.csv": GOOD, "a.TSV": GOOD}, "a.TSV and a.csv would both be client a: rename one"),
    ],
)
def test_a_folder_without_clients_is_told_of_with_what_is_there(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FairbloomError) as refusal:
        load_task(config(tmp_path))
    assert str(tmp_path) in str(refusal.value)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("place", "words"), [("", "name it by --data-dir"), ("/no/such", "'/no/such': there is no such")]
)
def test_a_folder_that_is_not_there_is_told_of_before_the_run(place: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        check_data(config(place))


@pytest.mark.parametrize(
    ("text", "client", "words"),
    [
        (GOOD, "site", "csv.client = 'site': .*no such column; the columns are age, dose"),
        (GOOD, "wards", "did you mean ward?"),
        (GOOD.replace("north", "", 1), "ward", "line 2, column 'ward' names no client, as 1 rows do"),
        (GOOD.partition("\n")[2], "site", "line 1 holds values"),
    ],
)
def test_a_column_of_clients_that_names_none_is_told_of(folder: Folder, text: str, client: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        load_task(config(folder(all=text) / "all.csv", client=client))


def test_a_column_of_clients_is_for_a_single_file(folder: Folder) -> None:
    with pytest.raises(FairbloomError, match=r"csv.client = 'ward': .*has 2 files: leave csv.client out"):
        load_task(config(folder(a=GOOD, b=GOOD), client="ward"))


@pytest.mark.parametrize("classes", ["0", "0,1,0"])
def test_classes_that_are_none_are_refused(folder: Folder, classes: str) -> None:
    with pytest.raises(FairbloomError, match=r"csv.classes = .* two or more different classes"):
        load_task(config(folder(a=GOOD, b=GOOD), classes=classes))


def test_a_file_that_has_changed_is_read_again(folder: Folder) -> None:
    chosen = config(folder(a=GOOD, b=GOOD))
    before = told_by(chosen)
    folder(a=csv_of(50))
    assert before["a"]["examples"] == 16
    assert told_by(chosen)["a"]["examples"] == 40
    folder(c=GOOD)
    assert list(told_by(chosen)) == ["a", "b", "c"]


def test_an_ignored_column_that_no_file_has_is_an_error(folder: Folder) -> None:
    there = folder(a=csv_of(20), b=csv_of(20, 1))
    with pytest.raises(FairbloomError, match=r"csv.ignore names 'wrad', and no client's .*: did you mean ward\?"):
        find_task("csv").agreement(told_by(config(there, ignore="wrad,dose")))
    folder(b=csv_of(20, 1, "age,ward,target").replace("ward", "wrad"))
    text, reasons = find_task("csv").agreement(told_by(config(there, ignore="WRAD,ward,dose")))
    assert [each["name"] for each in json.loads(text)["inputs"]] == ["age"]
    assert reasons == {}
    with pytest.raises(FairbloomError, match=r"csv.ignore names 'wrad'"):
        describe_data(config(folder(b=csv_of(20, 1)), ignore="wrad"))
