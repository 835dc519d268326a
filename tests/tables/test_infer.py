"""The schema that files suggest: kinds, spellings, dialects, and remarks on what a person should
look at."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tables.cells import FileColumn
from fairbloom.tables.encoding import read_columns
from fairbloom.tables.identifiers import DATE, IDENTIFIER, are_dates, nearly_all_differ
from fairbloom.tables.reading import read
from fairbloom.tables.schema import SchemaFile, normalise, parse_schema
from fairbloom.tasks import describe_data

from ..commands import fairbloom
from ..docs.pages import ROOT, blocks
from .helpers import SCHEMA, Folder, config, csv_of, inferred, load

DATES = (
    "2024-03-17",
    "2024-03",
    "17.3.24",
    "3/17/2024",
    "2024-03-17T08:15:00Z",
    "17-Mar-24",
    "17. Mai 2024",
)
NO_DATES = (
    "40-49",
    "10-12",
    "1.5",
    "3/4",
    "I25.1",
    "T2",
    "2024",
    "2019-2020",
    "stage 3",
    "may",
    "",
)
IDENTIFIERS = (
    "P-00123",
    "4711/B",
    "a1b2c3d4",
    "anna@clinic.example",
    "123-45-6789",
    "+46 70 123 45 67",
)
PEOPLE = [f"person {chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(30)]
NO_IDENTIFIERS = ("40-49", "I25.1", "stage 3", "T2N0", "10000-20000", "north", "1.5")


def described(folder: Path, schema: str = "", **settings: Any) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [dict(row) for row in rows]
        for name, rows in describe_data(RunSettings.of(config(folder, schema, **settings))).items()
    }


def with_column(name: str, cells: list[str], rows: int = 30, seed: int = 0) -> str:
    """Return a table with one more column; its cells are repeated."""
    head, *lines = csv_of(rows, seed).splitlines()
    return (
        "\n".join(
            [f"{name},{head}", *(f"{cells[k % len(cells)]},{line}" for k, line in enumerate(lines))]
        )
        + "\n"
    )


# Kinds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "is_code"),
    [
        (["4E1", "5E3", "4E2"], True),
        (["4e1", "5e3", "12E10"], True),
        (["4E1", "12", "7", "5E3"], True),
        (["4E1", "5E3", "None"], True),
        ([f"{k}E{k % 7}" for k in range(1, 15)], True),
        (["4E1", "5E3", "1.5E2"], False),
        (["4E1", "5E3", "1E+02"], False),
        (["4e1", "5e3", "1e-5"], False),
        (["40", "5000", "400"], False),
        (["12345E1", "5E3"], False),
    ],
)
def test_exponents_without_point_and_sign_are_codes(
    folder: Folder, cells: list[str], is_code: bool
) -> None:
    table = with_column("ward2", cells, 80)
    there = folder(a=table, b=table)
    field = parse_schema(inferred(there)).fields["ward2"]
    assert {*field.categories} == ({*cells} if is_code else set())
    assert described(there)["faults"] == []
    number = with_column("x", ["4E1", "2"])
    by_hand = f'{SCHEMA}[fields.x]\ntype = "number"\n'
    values = load(folder(a=number, b=number), by_hand).preprocessing("a").columns  # type: ignore[union-attr]
    assert next(each.center for each in values if each.name == "x") == pytest.approx(21.0, abs=4)


def test_a_code_is_no_number_of_its_column() -> None:
    column = FileColumn.of(pa.chunked_array([["4E1", "2", "1e", "NA"]]), SchemaFile())
    assert np.isnan(column.numbers).tolist() == [True, False, True, True, True]
    assert column.is_wrong.tolist() == [True, False, True, False, False]


def test_a_code_among_many_numbers_is_asked_about(folder: Folder) -> None:
    cells = [*(f"{k}.5" for k in range(60)), "4E1"]
    there = folder(a=with_column("x", cells, 61), b=with_column("x", cells[:60], 61))
    assert "# '4E1' is read as a number: if it is a code" in drafted(there, "x")
    assert parse_schema(inferred(there)).fields["x"].type == "number"
    assert described(there)["faults"] == []
    plain = folder(a=with_column("x", cells[:60], 61), b=with_column("x", cells[:60], 61))
    assert "is read as" not in drafted(plain, "x")


def flagged(*letters: str) -> list[str]:
    """Return numbers, each with one of some letters after it."""
    return [f"{3 + k % 23 / 10:.1f} {letters[k % len(letters)]}".strip() for k in range(80)]


@pytest.mark.parametrize(
    ("letters", "flags"),
    [
        (("N", "H", "L"), ("H", "L", "N")),
        (("", "", "H", "L"), ("H", "L")),
        (("a", "", "p", "HH"), ("HH", "a", "p")),
        (("я", "б"), ("б", "я")),
        (("", "", "H"), ()),
        (("C", "F"), ()),
        (("d", "h", "m"), ()),
        (("kg", "lb"), ()),
        (tuple("bcefinopr"), ()),
    ],
)
def test_letters_after_numbers_are_flags(
    folder: Folder, letters: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    there = folder(a=with_column("x", flagged(*letters), 80), b=with_column("x", ["3.1", "4"], 80))
    field = parse_schema(inferred(there)).fields["x"]
    assert field.flags == flags
    if flags:
        assert (field.type, field.categories, field.unit) == ("number", (), "")
        assert "is each a flag, and no unit?" in drafted(there, "x")
        assert described(there)["faults"] == []
        assert f"{3:g} to {5.2:g}" in str(described(there)["columns"])


def test_a_column_with_one_flag_has_no_unit(folder: Folder) -> None:
    there = folder(a=with_column("x", flagged("", "", "H"), 80), b=with_column("x", ["3.1"], 80))
    assert parse_schema(inferred(there)).fields["x"].unit == ""
    fault, *_ = described(there)["faults"]
    assert "if 'H' is a flag, add it to flags of fields.x, or else write 3.2" in fault["remedy"]
    remedied = inferred(there).replace("[fields.x]\n", '[fields.x]\nflags = ["H"]\n')
    assert described(there, remedied)["faults"] == []
    with_unit = inferred(there).replace("[fields.x]\n", '[fields.x]\nunit = "mmol/l"\n')
    fault, *_ = described(there, with_unit)["faults"]
    assert "add it to flags of fields.x, or else write it in mmol/l" in fault["remedy"]
    kilos = folder(a=with_column("x", ["3.1", "4 kg"], 80), b=with_column("x", ["3.1"], 80))
    assert all("flag" not in row["remedy"] for row in described(kilos)["faults"])


def test_few_numbers_with_letters_are_categories(folder: Folder) -> None:
    there = folder(a=with_column("x", ["1 A", "2 B", "3 A", "2 A"], 80))
    assert len(parse_schema(inferred(there)).fields["x"].categories) == 4


@pytest.mark.parametrize(
    ("common", "other"),
    [
        ("height", "height [cm]"),
        ("bp", "BP (mmHg)"),
        ("Größe", "groesse"),
        ("年龄", "年龄（岁）"),
        ("пульс", "Пульс [уд/мин]"),
        ("bp (kPa)", "bp (mmHg)"),
    ],
)
def test_units_in_names_do_not_distinguish_files(folder: Folder, common: str, other: str) -> None:
    cells = ["31", "45", "52"]
    plain = with_column(common, cells)
    there = folder(a=plain, b=plain, c=with_column(other, cells))
    draft = inferred(there)
    if common == "Größe":
        assert other in parse_schema(draft).ignore
        return
    assert parse_schema(draft).file("c.csv").names_of(common) == (normalise(other),)
    assert (
        f"# if its unit is another one, add unit, factor and offset to {normalise(common)}" in draft
    )
    assert described(there)["faults"] == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("blood pressure (systolic)", "blood pressure (diastolic)"),
        ("Comorbidities (choice=Diabetes)", "Comorbidities (choice=Asthma)"),
        ("pain [left]", "pain"),
    ],
)
def test_other_brackets_distinguish_columns(folder: Folder, name: str, other: str) -> None:
    plain = with_column(name, ["31", "45", "52"])
    draft = inferred(folder(a=plain, b=plain, c=with_column(other, ["31", "45", "52"])))
    schema = parse_schema(draft)
    assert name in schema.fields
    assert other in (*schema.fields, *schema.ignore)
    assert schema.file("c.csv").names_of(name) == (name,)
    assert "may be this one" not in draft
    assert "look alike" not in inferred(folder(a=plain, b=with_column(other, ["31", "45", "52"])))


def test_units_in_names_distinguish_columns_of_a_file(folder: Folder) -> None:
    both = with_column("bp (mmHg)", ["120", "99", "88"]).replace("bp", "bp (kPa),bp", 1)
    both = both.replace("\n", "\n16,").removesuffix("16,")
    text = inferred(folder(a=both, b=both, c=both))
    assert {"bp (kPa)", "bp (mmHg)"} <= parse_schema(text).fields.keys()


def test_columns_are_fields_in_the_first_files_order(folder: Folder) -> None:
    schema = parse_schema(inferred(folder(a=csv_of(20), b=csv_of(20, 1, "target,ward,dose,age"))))
    assert [*schema.fields] == ["age", "dose", "ward", "target"]
    assert schema.model_dump() == {**parse_schema(SCHEMA).model_dump(), "positive": "1"}


@pytest.mark.parametrize(
    ("cells", "mark"), [([-0.0, 1.0], ""), (["6,540.5", "12,000"], 'groupChar = ","')]
)
def test_a_schema_reads_the_same_after_an_inference(
    cells: list[object], mark: str, tmp_path: Path
) -> None:
    """It may have no mark between thousands, and numbers keep -0."""
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": 20 * cells, "target": 20 * [0, 1]}), path)
    schema = parse_schema(
        'target = "target"\nfields.x.type = "number"\n'
        'fields.target = {type = "integer", categories = [0, 1]}'
    )
    before, _ = read_columns(read(path, SchemaFile()), schema)
    assert mark in inferred(tmp_path)
    after, _ = read_columns(read(path, SchemaFile()), schema)
    assert after["x"].tobytes() == before["x"].tobytes()


@pytest.mark.parametrize("odd", [40, 60])
@pytest.mark.parametrize("step", [1, -1])
def test_dates_are_nearly_all_numbers_in_any_order(odd: int, step: int) -> None:
    days = np.full(1000, 20240317.0)
    days[:odd] = 3.0
    assert are_dates("a", days[::step]) == (odd == 40)


@pytest.mark.parametrize(
    ("name", "cells", "reason"),
    [
        ("seen", ["2024-03-17", "2024-04-01"], "dates"),
        ("first", ["20240317", "19991231", "20240401"], "dates"),
        ("first", ["20240317081500", "19991231123456"], "dates"),
        ("first", ["17032024", "05122023"], "dates"),
        ("admission_date", ["45123", "45124.5", "45130"], "dates"),
        ("data_ricovero", ["45123", "45124"], "dates"),
        ("Geburtstag", ["9123", "18124", "25130"], "dates"),
        ("dateadmission", ["45123", "45124"], "dates"),
        ("timestamp", ["1710633600", "1700000000"], "dates"),
        ("Time", ["1710633600000000000", "1700000000000000000"], "dates"),
        ("case_nr", [f"{11000 + k}/24" for k in range(30)], "who it is about"),
        ("case", ["P-00123", "P-00124"], "persons or cases"),
        ("who", PEOPLE, "who it is about"),
        ("patient_id", [str(4000 + 7 * k) for k in range(30)], "persons or cases"),
        ("notes", ["x" * 201, "y"], "201 characters"),
    ],
)
def test_a_column_of_dates_or_persons_is_ignored(
    folder: Folder, name: str, cells: list[str], reason: str
) -> None:
    text = inferred(folder(a=with_column(name, cells), b=with_column(name, cells, seed=1)))
    assert parse_schema(text).ignore == (name,), name
    (line,) = (each for each in text.splitlines() if f'"{name}",' in each)
    assert reason in line
    # which a schema would carry to all sites
    assert not any(cell in text for cell in cells if len(cell) > 1)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("income", ["45123", "45124", "45130"]),
        ("diastolic database", ["45123", "45124", "45130"]),
        ("lifetime_value", ["45123", "45124", "45130"]),
        ("voltage", ["45123", "45124", "45130"]),
        ("age_days", ["9123", "18124", "25130"]),
        ("AgeInDays", ["9123", "18124", "25130"]),
        ("follow-up time", ["312", "45", "3650"]),
        ("admission_date", ["45123", "3"]),
        *(("cells", [day]) for day in ("20241317", "20240017", "20240332", "20240100", "18991231")),
        ("cells", ["21010101"]),
        ("time", ["99000", "112000"]),
        ("platelets", ["20240317", "20240318", "250000"]),
    ],
)
def test_a_column_like_one_of_dates_is_an_input(
    folder: Folder, name: str, cells: list[str]
) -> None:
    there = folder(a=with_column(name, cells), b=with_column(name, cells, seed=1))
    assert name in parse_schema(inferred(there)).inputs


@pytest.mark.parametrize(
    ("words", "pattern", "others"),
    [
        (DATES, DATE, NO_DATES),
        (IDENTIFIERS, IDENTIFIER, NO_IDENTIFIERS),
    ],
)
def test_words_of_dates_and_persons_are_told_from_others(
    words: tuple[str, ...], pattern: Any, others: tuple[str, ...]
) -> None:
    assert all(map(pattern.fullmatch, words))
    assert not any(map(pattern.fullmatch, others))


def test_a_column_that_is_left_out_is_warned_of(
    folder: Folder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert nearly_all_differ(19, 20)
    assert not nearly_all_differ(18, 20)
    load(folder(a=with_column("seen", ["2024-03-17"]), b=with_column("seen", ["2024-03-17"])))
    assert any("seen" in each and "left out" in each for each in caplog.messages)


def test_what_differs_in_case_or_form_alone_is_one_category(folder: Folder) -> None:
    field = parse_schema(
        inferred(
            folder(
                a=with_column("sex", ["Låg", "ho\u0308g", "låg\u00a0"]),
                b=with_column("sex", ["låg", "hög\u200b"]),
            )
        )
    ).fields["sex"]
    assert field.categories == ("hög", "låg")
    assert dict(field.spellings) == {"låg": ("Låg",)}


@pytest.mark.parametrize(
    ("cells", "later", "categories"),
    [
        (["non-small", "non‐small", "non–small", "small"], "non−small", 2),
        (["5″", "5“", "6 inches"], "5”", 2),
        (["A+", "A−", "A-"], "A‐", 2),
        (["<5", ">5"], "<5", 2),
        (["Ca²⁺", "Ca2+"], "Ca2+", 2),
        (["H₂", "H2"], "h₂", 2),
        (["5½", "51/2"], "5½", 2),
        (["A2²", "A22", "A2 2"], "a22", 3),
        (["Crohn's", "Crohn’s", "Crohn´s", "Crohnʻs", "colitis"], "crohn`s", 2),
    ],
)
def test_variants_of_one_mark_are_one_category(
    folder: Folder, cells: list[str], later: str, categories: int
) -> None:
    text = inferred(folder(a=with_column("x", cells), b=with_column("x", cells[::-1])))
    assert len(parse_schema(text).fields["x"].categories) == categories
    there = folder(a=with_column("x", cells), b=with_column("x", [later]))
    assert described(there, text)["faults"] == []


def test_spellings_of_a_unit_and_of_a_client_are_one(folder: Folder) -> None:
    lines = with_column("site", ["St. Mary's", "St. Mary’s", "A2²", "A22"], 120).splitlines()
    bmi = ["bmi", *(f"2{k % 9} kg/m{'²2'[k % 2]}" for k in range(120))]
    there = folder(a="\n".join(map(",".join, zip(bmi, lines, strict=True))))
    assert 'unit = "kg/m' in drafted(there, "bmi", client="site")
    assert described(there, client="site")["faults"] == []
    assert load(there, client="site").clients == ("A22", "A2²", "St. Mary's")


def test_a_column_of_few_files_is_ignored(folder: Folder) -> None:
    text = inferred(folder(a=csv_of(20), b=csv_of(20), c=with_column("extra", ["1", "2"])))
    assert parse_schema(text).ignore == ("extra",)
    assert "only at c" in text
    text = inferred(folder(a=csv_of(20), b=csv_of(20), c=csv_of(20, 0, "age,dose,target")))
    assert "# not at c\n[fields.ward]" in text


def test_encoding_and_decimal_mark_are_found_in_each_file(folder: Folder) -> None:
    plain = csv_of(30).replace("north", "nörth")
    commas = plain.replace(",", ";").replace(".", ",")
    there = folder(a=plain, b=commas, c=commas.encode("cp1252"))
    files = parse_schema(inferred(there)).files
    assert {name: (file.encoding, file.decimalChar) for name, file in files.items()} == {
        "b.csv": ("utf-8", ","),
        "c.csv": ("cp1252", ","),
    }
    task = load(there)
    first, *others = (task.splits(name).train[slice(0, 24)][0].sum(dim=0).abs() for name in "abc")
    assert {len(each) for each in others} == {len(first)}


@pytest.mark.parametrize("thousands", ["1,234", "12,500"])
def test_a_comma_that_may_be_either_is_no_decimal_mark(folder: Folder, thousands: str) -> None:
    assert 'decimalChar = ","' not in inferred(
        folder(**dict.fromkeys("abc", f"x;y\n{thousands};1\n{thousands};0\n" * 6))
    )


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (csv_of(30).replace("target", "goal"), {}, "csv.target"),
        (csv_of(30).replace("ward", "label"), {}, "target"),
        (csv_of(30), {"target": "tarket"}, "did you mean target?"),
        (csv_of(30).replace(",1\n", ",0\n"), {}, "'0' in each row"),
        (with_column("who", PEOPLE), {"target": "who"}, "30 different values"),
        ("1.5,2,0\n2.5,3,1\n", {}, "first line must name"),
        (csv_of(30), {"client": "site"}, "csv.client"),
        (csv_of(30), {"client": "target"}, "csv.client = 'target': it is the target"),
        (csv_of(30), {"unit": "Target"}, "csv.unit = 'target': it is the target"),
        (with_column("site", [""]), {"client": "site"}, "'site' names no client"),
        (csv_of(0), {}, "no value"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(
    folder: Folder, text: str, settings: dict[str, Any], words: str
) -> None:
    there = folder(a=text)
    with pytest.raises(FairbloomError, match=words):
        inferred(there, **settings)


def test_any_file_may_have_the_target(folder: Folder) -> None:
    other = csv_of(30).replace("target", "Ziel")
    there = folder(a=csv_of(30).replace("target", "ward2"), b=other, c=other)
    assert 'target = "Ziel"' in inferred(there, target="ziel")
    with pytest.raises(FairbloomError, match=r"a\.csv has no column 'Ziel'.* add it, name it by"):
        load(there, target="ziel").splits("a")


def test_columns_that_no_two_files_share_are_asked(folder: Folder) -> None:
    """Blood pressure has another name at each of three hospitals."""
    random = np.random.default_rng(0)
    files = {}
    for name in ("sbp", "systolic_bp", "tension"):
        rows = [f"{k},{random.normal(130, 17):.0f},{k % 2}" for k in random.integers(20, 90, 80)]
        files[name[:2]] = "\n".join([f"age,{name},target", *rows, ""])
    files["te"] = files["te"].replace("target", "other,target").replace(",0\n", ",w,0\n")
    files["te"] = files["te"].replace(",1\n", ",e,1\n")
    text = inferred(folder(**files))
    asked = [line for line in text.splitlines() if "look alike" in line]
    assert [line.split('"')[1] for line in asked] == ["sbp", "systolic_bp", "tension"]
    assert "if so, add [fields.sbp], and each other's name under files" in asked[1]
    assert '"other",  # only at te\n' in text
    mended = text.replace(asked[0] + "\n", "") + (
        '[fields.sbp]\ntype = "number"\n[files."sy.csv"]\nfields.sbp.name = "systolic_bp"\n'
        '[files."te.csv"]\nfields.sbp.name = "tension"\n'
    )
    task = load(folder(**files), mended)
    assert task.preprocessing is not None
    assert "sbp" in [column.name for column in task.preprocessing("te").columns]


def test_a_draft_names_ten_of_its_files_and_counts_the_others(folder: Folder) -> None:
    there = folder(**{f"s{k:02}": csv_of(30) for k in range(47)})
    assert inferred(there).startswith("# Inferred from s00.csv, ")
    assert "s09.csv and 37 more. Read it" in inferred(there).splitlines()[0]


def test_a_file_name_writes_no_line_of_a_draft(folder: Folder) -> None:
    there = folder(**{"a\nmissing = 'drop'\n# \x1b": csv_of(30)})
    assert parse_schema(inferred(there)).missing == "error"


def test_without_a_target_the_likeliest_column_is_suggested(folder: Folder) -> None:
    rows = [
        f"{k},{'yes' if k % 3 else 'no'},{k % 7},{'fm'[k % 2] * (k % 5 > 0)}" for k in range(30)
    ]
    there = folder(a="\n".join(["age,ré admis,ward,sex", *rows]) + "\n")
    with pytest.raises(FairbloomError, match=r"add --set 'csv.target=ré admis', the likeliest of"):
        inferred(there)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (csv_of(30).replace(",1\n", ",0\n"), "auto"),
        (csv_of(30).replace(",1\n", ",0\n"), "classification"),
        (csv_of(30).replace("north", ""), "auto"),
        (csv_of(30).replace("age", "target"), "auto"),
    ],
)
def test_errors_name_no_schema_of_a_user_without_one(folder: Folder, table: str, kind: str) -> None:
    there = folder(a=table)
    with pytest.raises(FairbloomError) as caught:
        load(there, kind=kind).splits("a")
    assert "schema.toml" not in str(caught.value)


# Remarks ------------------------------------------------------------------------------------------


def test_units_and_sentinels_are_remarked(folder: Folder) -> None:
    random = np.random.default_rng(1)

    def pressures(scale: float, code: str = "") -> str:
        cells = [
            code if code and k % 2 else f"{scale * value:.1f}"
            for k, value in enumerate(random.normal(130, 12, 30))
        ]
        return with_column("pressure", cells)

    found = described(
        folder(a=pressures(1), b=pressures(0.133), c=pressures(1), d=pressures(1, "-9"))
    )
    remarks = {(row["client"], row["column"]): row["remark"] for row in found["remarks"]}
    assert remarks.keys() == {("b", "pressure"), ("d", "pressure")}
    assert "it looks like mmHg and kPa" in remarks["b", "pressure"]
    assert "-9 in 15 rows" in remarks["d", "pressure"]
    ranges = {
        row["client"]: row["values"] for row in found["columns"] if row["column"] == "pressure"
    }
    assert float(ranges["b"].split(" to ")[1]) < 30 < float(ranges["a"].split(" to ")[0])


@pytest.mark.parametrize("cells", [["7"], ["all"], ["0"]])
def test_a_constant_column_is_no_remark(folder: Folder, cells: list[str]) -> None:
    there = folder(**{name: with_column("same", cells) for name in "abcd"})
    (of_copies,) = described(there)["remarks"]
    assert "rows are the same at each" in of_copies["remark"]


def test_codes_with_zeros_in_front_are_categories(folder: Folder) -> None:
    assert 'categories = ["01", "23", "46", "7p"]' in inferred(
        folder(**{name: with_column("order", ["01", "23", "46", "7p"]) for name in "ab"})
    )


HALF = ["f", "m"] * 30
RARE = ["x", *["y"] * 59]
MANY = [f"E{k}" for k in range(10, 29)]


@pytest.mark.parametrize(
    ("cells", "remarked"),
    [
        ({"a": HALF, "b": HALF, "c": ["m"] * 15}, ["c"]),  # 7.5 rows are expected
        ({"a": HALF, "b": HALF, "c": ["m"] * 13}, []),
        ({"a": RARE, "b": RARE, "c": ["y"] * 60}, []),
        # One of 20 categories.
        ({"a": [*["z"] * 6, *MANY, *MANY, *MANY[:16]], "b": [*MANY, *MANY, *MANY, *MANY[:3]]}, []),
        # Both leave: the site that lacks more, then the other one, are compared with the rest.
        (
            {"a": ["m"] * 60, **dict.fromkeys("bcef", HALF), "d": ["f"] * 50},
            ["a", "d"],
        ),
        # A kind of hospital, not of person: no site has both.
        ({name: ["m" if name < "c" else "f"] * 60 for name in "abcd"}, []),
        ({"a": HALF, "b": HALF, "c": ["ja", "nein"] * 30}, []),  # another remark
    ],
)
def test_a_site_that_lacks_a_common_category_is_remarked(
    folder: Folder, cells: dict[str, list[str]], remarked: list[str]
) -> None:
    found = described(
        folder(**{name: with_column("sex", each, len(each)) for name, each in cells.items()})
    )["remarks"]
    assert [row["client"] for row in found if "lacks" in str(row["remark"])] == remarked


@pytest.mark.parametrize(
    ("factor", "column", "remarked"),
    [
        (2.2046, "", True),  # kg and lb
        (100.0, "", True),
        (5.0, "", False),  # no two units
        (1.0, "", False),
        (2.2046, "group", False),  # the group tells them apart: dogs and men
    ],
)
def test_two_units_in_one_column_are_remarked(
    folder: Folder, factor: float, column: str, remarked: bool
) -> None:
    random = np.random.default_rng(2)
    masses = random.normal(70, 8, 60).round(1)
    high = np.arange(60) % 4 > 1  # the target is of every second row
    head, *lines = with_column(
        "mass", [f"{each:.1f}" for each in np.where(high, factor * masses, masses)]
    ).splitlines()
    groups = np.where(high, "x", "y") if column else random.choice(["x", "y"], 60)
    table = [f"{head},group", *map("{},{}".format, lines, groups)]
    assert remarked == any(
        (row["client"], row["column"]) == ("a", "mass") and "two units" in str(row["remark"])
        for row in described(folder(a="\n".join(table), b="\n".join(table[:1] + table[2:60:2])))[
            "remarks"
        ]
    )


def drafted(folder: Path, name: str, **settings: Any) -> str:
    """Return the part of the draft that is about a column, or a file."""
    parts = [each.strip() for each in inferred(folder, **settings).split("\n\n")]
    (part,) = (each for each in parts if f".{name}]" in each or f'."{name}"]' in each)
    return part


def test_zeros_do_not_hide_another_unit(folder: Folder) -> None:
    levels = [
        [0.0, *(factor * (188 + 3 * k) for k in range(23))] for factor in (1 / 38.67, 1.0, 1.0)
    ]
    there = folder(
        **{
            name: with_column("chol", [f"{x:.1f}" for x in each], len(each))
            for name, each in zip("abc", levels, strict=True)
        }
    )
    assert "of cholesterol; if so, say fields.chol.factor = 38.67" in drafted(there, "chol")


@pytest.mark.parametrize(
    ("code", "others", "is_code"),
    [
        ("-1", ["3", "8", "2", "5", "1"], True),
        ("0", ["61", "75", "70", "58", "66"], True),
        ("0", ["1", "2", "3", "4", "5"], False),
        ("0", ["2", "4", "6", "8", "10"], False),
        ("0", ["1"], False),
        ("-1", ["-2", "-3", "-1.5", "2", "1"], False),
    ],
)
def test_codes_near_the_others_are_remarked(
    folder: Folder, code: str, others: list[str], is_code: bool
) -> None:
    there = folder(a=with_column("stay", [code, *others]), b=with_column("stay", others))
    assert (f"# a: {code} in " in drafted(there, "stay")) == is_code


def test_a_number_that_is_usual_elsewhere_is_no_code(folder: Folder) -> None:
    there = folder(
        a=with_column("age", ["-1", "-1", "5"]).replace("age", "month", 1),
        b=with_column("month", [str(k) for k in range(-6, 7)]),
    )
    assert "-1 in" not in drafted(there, "month")


def test_sites_that_all_differ_do_not_stand_out(folder: Folder) -> None:
    towns = {f"s{k}": with_column("town", [f"t{k}", f"u{k}"]) for k in range(9)}
    assert "are other ones" not in drafted(folder(**towns), "town")
    towns["s9"] = with_column("town", ["t8", "u8"])
    assert "are other ones" not in drafted(folder(**towns), "town")


def test_a_column_that_determines_the_target_is_remarked(folder: Folder) -> None:
    def table(seed: int) -> str:
        random = np.random.default_rng(seed)
        rows = [
            (x, "LMH"[int(x > 0.3) + int(x > 0.7)], f"{x:.4f}", random.integers(0, 9))
            for x in random.random(60)
        ]
        lines = (f"{x > 0.3!s},{grade},{score},{free}" for x, grade, score, free in rows)
        return "\n".join(["target,grade,score,free", *lines])

    text = inferred(folder(a=table(1), b=table(2)))
    said = re.findall(r"# (.*) determines target: is it known only after the outcome\?", text)
    assert said == ["grade", "score"]
    assert "determines" not in inferred(folder(), target="score")
    twice = "\n".join(["x,half,target", *(f"{k % 7},{k / 2},{k + 1}" for k in range(40))])
    assert "# half determines target" in inferred(folder(a=twice, b=twice), kind="regression")


@pytest.mark.parametrize(
    ("name", "cells", "is_code"),
    [
        ("marital", [1, 2, 3, 4, 5], True),
        (
            "job",
            np.random.default_rng(0).choice(np.arange(10, 5_000), 40, replace=False).tolist(),
            True,
        ),
        ("postcode", ["01001", "02139", *map(str, range(10_000, 10_040))], True),
        ("age at start", [*range(18, 30)], False),
        ("hours", [*range(20, 75)], False),
    ],
)
def test_codes_have_categories_to_uncomment(
    folder: Folder, name: str, cells: list[object], is_code: bool
) -> None:
    there = folder(
        a=with_column(name, [*map(str, np.random.default_rng(0).choice(cells, 500))], 500)
    )
    text = inferred(there)
    line = "# categories = ["
    assert (line in drafted(there, name)) == is_code
    if is_code:
        uncommented = text.replace(line, line[2:])
        assert len(parse_schema(uncommented).fields[name].categories) == len(cells)
        assert described(there, uncommented)["faults"] == []


def visits(seed: int, patients: int = 50, names: str = "P{}") -> str:
    """Return a table of four visits of each patient, in which age and sex are the patient's."""
    random = np.random.default_rng(seed)
    lines = [
        f"{names.format(k % patients)},{40 + k % patients},{'mf'[k * 7 % patients % 2]},"
        f"{'ABCDEFGHIJKLMNOPQRSTUVW'[random.integers(23)]}x,{random.random():.3f},{k // 3 % 2}"
        for k in range(4 * patients)
    ]
    return "\n".join(["who,age,sex,code,crp,target", *lines])


@pytest.mark.parametrize("names", ["P{}", "{}", "anna {}", "MRN-{}0000"])
def test_persons_of_several_rows_are_no_inputs(folder: Folder, names: str) -> None:
    table = visits(1, names=names)
    if names == "{}":
        table = table.replace("who", "subject", 1)
    name = table.partition(",")[0]
    text = inferred(folder(a=table, b=table))
    assert parse_schema(text).ignore == (name,)
    assert f'# unit = "{name}"' in text
    assert "4.0 rows each" in text or "numbers of persons or cases, or addresses" in text
    # Codes of diagnoses are honest: no other column is a function of them.
    assert "# 8.7 rows have the same text: if it names a person" in text
    schema = parse_schema(text.replace("# unit", "unit"))
    assert schema.unit == name
    assert [*schema.inputs] == ["age", "sex", "code", "crp"]


def test_reasons_are_in_the_warning(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    head, *lines = csv_of(40).splitlines()
    for name, cell in (
        ("when", "2024-03-17"),
        ("row", "{}"),
        ("note", "x" * 201),
        ("seen", "3/4/24"),
    ):
        head = f"{name},{head}"
        lines = [f"{cell.format(k)},{line}" for k, line in enumerate(lines)]
    table = "\n".join([head, *lines])
    load(folder(a=table, b=table))
    assert any(
        "left out: seen (looks like dates), note (a text of it has 201 characters), when (looks"
        " like dates) and 1 more; " in each
        for each in caplog.messages
    )


def test_sites_of_one_class_each_are_no_error(folder: Folder) -> None:
    there = folder(a=csv_of(20).replace(",1\n", ",0\n"), b=csv_of(20).replace(",0\n", ",1\n"))
    assert parse_schema(inferred(there)).predicted.categories == ("0", "1")
    assert described(there)["faults"] == []


def test_categories_of_many_clients_are_no_persons(folder: Folder) -> None:
    lines = csv_of(400).splitlines()
    sites = ["site", *(f"s{row % 40}" for row in range(400))]
    assert "rows have the same text" not in inferred(
        folder(a="\n".join(map(",".join, zip(sites, lines, strict=True)))), client="site"
    )


# Cases that were wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "rare"),
    [
        (["0", "1", "2", "3+"], "3+"),
        (["K", "1", "2", "3"], "K"),
        (["0_no", "1_yes"], "0_no"),
        (["0 no", "1 yes"], "0 no"),
        (["<30", "30–59", "60+"], "30–59"),
        (["<60", "≥60"], "<60"),
    ],
)
def test_numbers_among_few_texts_are_categories(
    folder: Folder, cells: list[str], rare: str
) -> None:
    # One site has only some of them.
    there = folder(a=with_column("x", cells), b=with_column("x", cells[1:]))
    assert rare in parse_schema(inferred(there)).fields["x"].categories


def test_signs_at_all_numbers_are_faults_with_a_remedy(
    folder: Folder, subtests: pytest.Subtests
) -> None:
    for cells, remedy in (
        (["1,250", "1,300"], "groupChar = ','"),
        (["$45", "$50"], "unit = '$'"),
        (["$1,045.50", "$50"], "unit = '$'"),
        (["10:30", "9:15"], "write hours, 10.5"),
        (["<30", "<45"], "x.missingValues"),
        (["20±2", "21±3"], "write 20"),
        (["63 y", "70"], "unit = 'y'"),
    ):
        with subtests.test(cells=cells):
            table = "\n".join(
                ["x,other,target", *(f'"{cells[k % 2]}",{k % 5},{k % 2}' for k in range(40))]
            )
            there = folder(a=table, b=table)
            assert parse_schema(inferred(there)).fields["x"].categories == ()
            assert remedy in drafted(there, "x")
    unit = inferred(there).replace("[fields.x]\n", '[fields.x]\nunit = "y"\n')
    assert described(there, unit)["faults"] == []


def test_units_are_those_of_all_numbers(folder: Folder) -> None:
    there = folder(a=with_column("w", ["63 kg", "70kg"]), b=with_column("w", ["81 kg"]))
    assert 'unit = "kg"' in drafted(there, "w")
    odd = folder(c=with_column("w", ["1'063 kg", "7 kg"]))
    assert "write 1'063, or say unit" in described(odd, inferred(there))["faults"][0]["remedy"]
    (odd / "c.csv").unlink()
    there = folder(a=with_column("w", ["63 kg", "70kg"]), b=with_column("w", ["81"]))
    assert 'unit = "kg"' not in drafted(there, "w")


def test_marks_of_numbers_are_found_in_each_file(folder: Folder, subtests: pytest.Subtests) -> None:
    for cells, others, mark in (
        (["27,3", "31,25"], ["9.123", "12.500"], 'decimalChar = ","\ngroupChar = "."'),
        (["6,540", "12,000"], ["41.2", "0.5"], 'groupChar = ","'),
        (["1.234.567", "2"], ["9.123", "12"], 'decimalChar = ","\ngroupChar = "."'),
        (["1 020", "12 500"], ["1", "2"], 'groupChar = " "'),
        (["1'020", "12'500"], ["1.5", "2"], 'groupChar = "\'"'),
    ):
        with subtests.test(cells=cells, others=others):
            lines = (f"{cells[k % 2]};{others[k % 2]};{k % 2}" for k in range(40))
            there = folder(
                a="\n".join(["x;z;target", *lines]), b="x;z;target\n" + "1;2;0\n1;3;1\n" * 20
            )
            text = inferred(there)
            assert f'[files."a.csv"]\n{mark}\n' in text
            assert described(there, text)["faults"] == []
    (there / "a.csv").write_text("x;z;target\n" + "9.123;1;0\n1.500;2;1\n" * 20)
    assert "'9.123' can be read in two ways" in inferred(there)


def test_names_that_differ_in_writing_are_one_column(folder: Folder) -> None:
    names = {"a": "Blood Pressure", "b": "blood_pressure", "c": "blood-pressure"}
    names |= {"d": "blood_pressure"}
    there = folder(**{site: with_column(name, ["120", "135"]) for site, name in names.items()})
    text = inferred(there)
    assert [*parse_schema(text).inputs] == ["blood_pressure", "age", "dose", "ward"]
    assert '[files."a.csv"]\nfields.blood_pressure.name = "Blood Pressure"' in text
    assert described(there, text)["faults"] == []
    # c and d are as before: a column of half of the files is ignored by both of its names.
    both = csv_of(20).replace("age,dose", "x_1,X.1")
    schema = parse_schema(inferred(folder(a=both, b=both)))
    assert {"x_1", "X.1"} <= {*schema.ignore}
    assert {"blood_pressure", "blood-pressure"} <= {*schema.ignore}


@pytest.mark.parametrize("word", ["n.a.", "None", "-", "--", "unknown", "MISSING"])
def test_words_for_nothing_are_missing_among_numbers(folder: Folder, word: str) -> None:
    there = folder(a=with_column("x", [word, "3.5", "4"]), b=with_column("x", ["3", "4"]))
    text = inferred(there)
    assert f'missingValues = ["{word.lower()}"]' in drafted(there, "x")
    assert 'missing = "error"  # 10 cells have no value' in text
    assert f"# '{word}' may mean a missing value, in 10 rows; if so, say:" in drafted(
        folder(a=with_column("x", [word, "a", "b"]), b=with_column("x", ["a", "b"])), "x"
    )


@pytest.mark.parametrize("word", [".", ".a", ".Z", "NA", "#NULL!"])
@pytest.mark.parametrize("column", ["age", "ward", "target"])
def test_marks_of_programs_are_missing_everywhere(folder: Folder, word: str, column: str) -> None:
    head, *lines = csv_of(30).splitlines()
    place = head.split(",").index(column)
    cells = [line.split(",") for line in lines]
    for row in (3, 7):
        cells[row][place] = word
    there = folder(a="\n".join([head, *map(",".join, cells)]), b=csv_of(30, 1))
    (fault,) = described(there)["faults"]
    assert (fault["column"], fault["value"]) == (column, word)
    assert "the first of 2 such cells" in fault["problem"]
    text = inferred(there, missing="drop")
    assert described(there, text)["faults"] == []
    assert all(word not in field.categories for field in parse_schema(text).fields.values())


@pytest.mark.parametrize("cell", [".aa", "..", ".1", "a", "-"])
def test_other_texts_with_a_point_are_not_missing(folder: Folder, cell: str) -> None:
    fields = parse_schema(inferred(folder(a=with_column("x", [cell, "b"])))).fields
    assert {*fields["x"].categories} == {cell, "b"}


def test_a_word_for_nothing_may_be_a_class(folder: Folder) -> None:
    there = folder(a=csv_of(30).replace(",1\n", ",yes\n").replace(",0\n", ",none\n"))
    assert "# 'none' may mean a missing value, in 15 rows: if they do, leave" in drafted(
        there, "target"
    )


@pytest.mark.parametrize("word", ["#N/A", "#DIV/0!", "<NA>", "NaT", "\\N"])
def test_errors_of_spreadsheets_are_missing_everywhere(folder: Folder, word: str) -> None:
    assert parse_schema(
        inferred(folder(a=with_column("sex", [word, "f", "m"]), b=with_column("sex", ["f", "m"])))
    ).fields["sex"].categories == ("f", "m")


@pytest.mark.parametrize(
    ("name", "cells", "is_left_out"),
    [
        ("Unnamed: 0", [*map(str, range(40))], True),
        ("value", [str(100 + k) for k in np.random.default_rng(0).permutation(40)], True),
        ("Fallnummer", [str(17 * k + k % 5) for k in range(40)], True),
        ("PatientID", [str(17 * k + k % 5) for k in range(40)], True),
        ("value", [str(17 * k + k % 5) for k in range(40)], False),
        ("year", [*map(str, range(1980, 2020))], False),
        ("age at start", [*map(str, range(30, 70))], False),
    ],
)
def test_numbers_of_rows_are_no_inputs(
    folder: Folder, name: str, cells: list[str], is_left_out: bool
) -> None:
    there = folder(a=with_column(name, cells, 40), b=with_column(name, cells, 40, seed=1))
    text = inferred(there)
    assert (name not in parse_schema(text).inputs) == is_left_out
    if "input = false" in text:
        assert name in parse_schema(text.replace("input = false", "input = true")).inputs


def test_a_column_like_numbers_of_rows_is_remarked(folder: Folder) -> None:
    table = with_column("value", [str(17 * k) for k in range(40)], 40)
    there = folder(a=table, b=table)
    assert "nearly each row has another whole number" in drafted(there, "value")


def column_of(cells: list[str]) -> str:
    lines = (f'"{cells[k % len(cells)]}",{"mf"[k % 2]},{int(k % 3 > 0)}' for k in range(40))
    return "\n".join(["age,sex,target", *lines])


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["0", "−3", "4", "−7"], ("'−'", "U+2212")),
        (["50", "45 kg"], ("'kg'", "unit = ")),
        (["50", "45 %"], ("per cent",)),
        (["1200", "1,200", "900"], ("thousands", "groupChar")),
        (["1.5", "1,5", "2.5"], ("comma", "decimalChar")),
        (["3", "<5", "4"], ("bound", "missingValues")),
        ([*map(str, range(25)), "absent"], ("not a number", "missingValues")),
        ([*map(str, range(25)), "30-59"], ("a range and no number", "missingValues")),
    ],
)
def test_nearly_numbers_are_faults_that_name_what_is_odd(
    folder: Folder, cells: list[str], named: tuple[str, ...]
) -> None:
    there = folder(a=column_of(cells), b=column_of([*cells[:1], "7", "8"]))
    odd = [row for row in described(there)["faults"] if row["client"] == "a"]
    assert {row["file"] for row in odd} == {"a.csv"}, cells
    assert odd[0]["line"] == 2 + cells.index(odd[0]["value"]), cells
    said = odd[0]["problem"] + odd[0]["remedy"]
    assert [word for word in named if word not in said] == [], said
    with pytest.raises(FairbloomError, match="line"):
        load(there).splits("a")


def test_classes_that_share_nothing_are_an_error(folder: Folder, tmp_path: Path) -> None:
    def outcomes(*classes: str) -> str:
        return "\n".join(["x,target", *(f"{k % 7},{classes[k % 2]}" for k in range(40))])

    there = folder(a=outcomes("No", "Yes"), b=outcomes("0", "1"), c=outcomes("no", "yes"))
    text = inferred(there)
    assert parse_schema(text).predicted.categories == ("No", "Yes")
    assert "b uses other class names: map them in spellings" in text
    faults = described(there)["faults"]
    assert {(row["client"], row["value"]) for row in faults} == {("b", "0"), ("b", "1")}
    assert all("spellings" in row["remedy"] and "categories" not in row["remedy"] for row in faults)
    with pytest.raises(FairbloomError, match="client b"):
        simulate(
            Settings.of(
                {**config(there), "num-rounds": 1, "device": "cpu", "out": str(tmp_path / "run")}
            )
        )
    right = text.replace('No = ["no"], Yes = ["yes"]', 'No = ["no", "0"], Yes = ["yes", "1"]')
    assert described(there, right)["faults"] == []


@pytest.mark.parametrize("words", [("WAHR", "falsch"), ("true", "false"), ("True", "False")])
def test_truth_values_and_numbers_share_no_category(folder: Folder, words: tuple[str, str]) -> None:
    there = folder(a=with_column("x", [*words]), b=with_column("x", ["1", "0", "1"]))
    assert [(row["client"], row["column"], row["value"]) for row in described(there)["faults"]] == [
        ("b", "x", "1"),
        ("b", "x", "0"),
    ]
    assert "b uses other categories: map them in spellings" in drafted(there, "x")
    # which one system wrote
    assert described(folder(a=with_column("x", [*words, "1", "0", "1"])))["faults"] == []


def test_a_draft_names_each_class_that_differs_and_its_sites(folder: Folder) -> None:
    words = {"a": ("no", "yes"), "b": ("no", "yes"), "c": ("non", "oui"), "d": ("nein", "ja")}
    words |= {"e": ("N", "J"), "f": ("N", "J")}
    there = folder(
        **{
            site: csv_of(30).replace(",0\n", f",{no}\n").replace(",1\n", f",{yes}\n")
            for site, (no, yes) in words.items()
        }
    )
    part = drafted(there, "target")
    assert "# c, d, e, f use other class names: map them in spellings" in part
    for sites, word, rows in (("c", "oui", 15), ("d", "ja", 15), ("e, f", "J", 30)):
        assert (
            f"# {sites}: '{word}' in {rows} cells, not one of the categories no, yes: corr" in part
        )
        assert f"fields.target.spellings = {{CATEGORY = ['{word}']}}" in part
    assert 'missingValues = ["' not in part


def test_a_long_text_and_a_packed_file_are_named(folder: Folder) -> None:
    assert "a text of it has 140,000 characters" in inferred(
        folder(a=with_column("notes", ["m", "x" * 140_000]), b=with_column("notes", ["m", "f"]))
    )
    with pytest.raises(FairbloomError, match=r"begins like \.gz"):
        inferred(folder(a=b"\x1f\x8b\x08\x00", b=b"\x1f\x8b\x08\x00"))


@pytest.mark.slow
def test_a_schema_is_written_once(tmp_path: Path, folder: Folder) -> None:
    there = folder(a=csv_of(20), b=csv_of(20))
    file = tmp_path / "schema.toml"
    for code in (0, 2):
        done = fairbloom(tmp_path, "data", str(there), "--write-schema", str(file))
        assert done.returncode == code, done.stderr
    assert file.read_text() == inferred(there)


# Four dirty hospitals -----------------------------------------------------------------------------

# Exports with other delimiters, marks, encodings, spellings, units, codes and columns; one has one
# class alone.
HOSPITALS = ROOT / "tests/docs/given/schema/hospitals"


def test_sites_of_several_sorts_are_said_and_not_accused(folder: Folder) -> None:
    """Three of eight sites have other numbers, each other ones, which no unit explains."""
    files: dict[str, str] = {}
    for place, scale in enumerate((1.0, 1.0, 1.0, 1.0, 1.0, 60.0, 600.0, 5e4)):
        numbers = np.random.default_rng(place).normal(90 * scale, 9 * scale, 60)
        files[f"s{place}"] = with_column("x", [f"{number:.4g}" for number in numbers], 60, place)
    there = folder(**files)
    found = describe_data(RunSettings.of(config(there, inferred(there))), every=False)
    (row,) = (row for row in found["columns"] if row["column"] == "x")
    assert (row["stands out"], row["of several sorts"]) == ("", "s5, s6, s7")
    assert not [row for row in found["remarks"] if row["column"] == "x"]


def test_four_dirty_hospitals_are_read_by_the_schema_of_the_page(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    draft = inferred(HOSPITALS, target="outcome")
    for words in (
        "'männlich', 'weiblich' may be its words for 'Male', 'female'",
        "mg/dl and mmol/l of cholesterol",
        "-9 in 4 rows",
        "# not at lund",
        '"größe",',
    ):
        with subtests.test(words=words):
            assert words in draft, words
    (written,) = (block.text for block in blocks("docs/schema.md") if block.file == "schema.toml")
    found = described(HOSPITALS, written)
    assert found["faults"] == []
    assert [row["remark"] for row in found["remarks"]] == []
    rows = {row["client"]: row["train"] + row["test"] for row in found["clients"]}
    assert rows == {"basel": 60, "bern": 60, "lund": 60, "porto": 13}
    ranges = {
        row["client"]: row["values"] for row in found["columns"] if row["column"] == "cholesterol"
    }
    assert all(
        100 < float(number) < 400 for values in ranges.values() for number in values.split(" to ")
    )
    settings = {"num-rounds": 2, "device": "cpu", "engine": "loop", "out": str(tmp_path / "run")}
    run = simulate(Settings.of({**config(HOSPITALS, written), **settings}))
    assert (run / "schema.toml").read_text() == written
    assert (run / "groups.csv").exists()
