"""Ages with their units are years, and flags at numbers are no part of them."""

import numpy as np
import pytest

from fairbloom.tables.ages import find_ages, parse_age
from fairbloom.tables.cells import parse_texts
from fairbloom.tables.encoding import read_columns
from fairbloom.tables.flags import find_flags
from fairbloom.tables.reading import read
from fairbloom.tables.schema import SchemaFile, parse_schema

from .helpers import Folder, inferred, refused_with
from .test_infer import with_column

# Ages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("045Y", 45.0),
        ("018M", 1.5),
        ("003W", 3.0 / 52.1775),
        ("010D", 10.0 / 365.2425),
        ("45 years", 45.0),
        ("45 years old", 45.0),
        ("45 y.o.", 45.0),
        ("18 Monate", 1.5),
        ("1,5 ans", 1.5),
        ("6 meses", 0.5),
        ("2 y 3 m", 2.25),
        ("2y, 3m", 2.25),
        ("3m 2y", None),  # in no order
        ("2y 3y", None),
        ("45", None),
        ("045X", None),
        ("12 kg", None),
        ("E11", None),
        ("", None),
    ],
)
def test_an_age_is_its_years(text: str, years: float | None) -> None:
    assert parse_age(text) == (years if years is None else pytest.approx(years))


def of_dicom(units: str) -> list[str]:
    return [f"{place:03}{units[place % len(units)]}" for place in range(1, 41)]


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (of_dicom("YM"), "Y"),
        (of_dicom("MWD"), "Y"),  # children
        ([f"{place} {'Jahre' if place > 9 else 'Monate'}" for place in range(30)], "Jahre"),
        (of_dicom("Y"), None),  # a unit as any other
        ([f"{place} {'m' if place % 2 else 'd'}" for place in range(30)], None),  # minutes?
        (of_dicom("YM")[:12], None),  # few: they may be categories
        (of_dicom("YM")[:13], "Y"),
        ([*of_dicom("YM")[:38], "old", "?"], "Y"),
        ([*of_dicom("YM")[:37], "old", "?", "x"], None),
    ],
)
def test_columns_of_ages_are_found(texts: list[str], unit: str | None) -> None:
    found = find_ages(texts, 0)
    assert (found and found.unit) == unit


@pytest.mark.parametrize("decimal", [".", ","])
def test_ages_in_several_units_are_drafted_as_years(folder: Folder, decimal: str) -> None:
    """Also where another site has one unit, in another form."""
    cells = [f"{place % 90}{'Y' if place % 3 else ' months'}" for place in range(1, 61)]
    cells[0] = f"1{decimal}5 years"
    there = folder(
        a=with_column("Alter", [f'"{cell}"' for cell in cells], 60),
        b=with_column("Alter", of_dicom("Y"), 60),
    )
    text = inferred(there)
    schema = parse_schema(text)
    assert (schema.fields["Alter"].unit, schema.fields["Alter"].categories) == ("Y", ())
    assert "ages: '12 months' and '15 months' are read in years" in text
    assert "numbers without a unit" not in text
    columns, faults = read_columns(read(there / "a.csv", schema.file("a.csv", "a")), schema)
    assert not faults
    assert columns["Alter"][:4].tolist() == pytest.approx([1.5, 2.0, 0.25, 4.0])


def test_plain_numbers_among_ages_are_asked_about(folder: Folder) -> None:
    cells = [f"{place} months" if place % 4 else f"{place} y" for place in range(40)]
    there = folder(a=with_column("Alter", [*cells, "7"], 60), b=with_column("Alter", cells, 60))
    text = inferred(there)
    assert parse_schema(text).fields["Alter"].unit == "y"
    assert "numbers without a unit are read as years: are they?" in text


def test_a_unit_that_is_no_years_reads_no_ages() -> None:
    cells = ["2 y", "18 months", "3"]
    file = SchemaFile(decimalChar=".")
    for unit, numbers in (("y", [2.0, 1.5, 3.0]), ("months", [np.nan, 18.0, 3.0])):
        found, _, _ = parse_texts(cells, file, [unit], ())
        np.testing.assert_array_equal(found, numbers)


# Flags ----------------------------------------------------------------------------------------


def with_flags(form: str, *flags: str) -> list[str]:
    """Return 60 numbers of which each second one has a flag, in a form as "N (F)"."""
    numbers = [f"{3 + place % 23 / 10:.1f}" for place in range(60)]
    written = form.replace("N", "{0}").replace("F", "{1}")
    return [
        written.format(number, flags[place // 2 % len(flags)]) if place % 2 else number
        for place, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("form", "flags", "found"),
    [
        ("N F", ("L", "H"), ["H", "L"]),
        ("F N", ("L", "H"), ["H", "L"]),
        ("N (F)", ("L", "H"), ["H", "L"]),
        ("(F) N", ("L", "H"), ["H", "L"]),
        ("N [F]", ("High", "low"), ["High", "low"]),
        ("N F", ("high", "low"), ["high", "low"]),
        ("F N", ("H",), ["H"]),
        ("N (F)", ("H",), ["H"]),
        ("NF", ("*",), ["*"]),
        ("F N", ("↑", "↓"), ["↑", "↓"]),
        ("N F", ("H",), []),  # may be a unit
        ("N F", ("C", "F"), []),
        ("N (F)", ("kg", "lb"), []),
        ("N (F)", ("g",), []),
        ("FN", ("H", "L"), []),  # E11.9 is a code
        ("N (F)", tuple("bcefinopr"), []),
    ],
)
def test_flags_are_on_either_side_in_brackets_or_not(
    form: str, flags: tuple[str, ...], found: list[str]
) -> None:
    odd = [text for text in {*with_flags(form, *flags)} if not text.replace(".", "").isdigit()]
    assert find_flags(odd, 24) == found


def test_letters_before_whole_numbers_are_codes_unless_usual() -> None:
    assert find_flags([f"{'AB'[k % 2]} {k}" for k in range(40)], 0) == []  # wards
    assert find_flags([f"{'HL'[k % 2]} {k}" for k in range(40)], 0) == ["H", "L"]
    assert find_flags([f"{'XY'[k % 2]} {k}.5" for k in range(40)], 0) == ["X", "Y"]
    assert find_flags([f"H {k}" for k in range(12)], 0) == []  # few


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("form", ["F N", "N (F)", "[F] N"])
def test_numbers_with_flags_are_read(folder: Folder, form: str, decimal: str) -> None:
    cells = [cell.replace(".", decimal) for cell in with_flags(form, "H", "L", "N")]
    lines = [f"{cell};{40 + k % 9};{k % 2}" for k, cell in enumerate(cells)]
    table = "\n".join(["x;age;target", *lines])
    there = folder(a=table, b=table)
    text = inferred(there)
    schema = parse_schema(text)
    assert schema.fields["x"].flags == ("H", "L", "N")
    assert "left out: is each a flag, and no unit?" in text
    columns, faults = read_columns(read(there / "a.csv", schema.file("a.csv", "a")), schema)
    assert [fault for fault in faults if fault.column == "x"] == []
    np.testing.assert_allclose(columns["x"], [3 + place % 23 / 10 for place in range(60)])


# Categories of most rows ----------------------------------------------------------------------


def different(share: float, rows: int = 60) -> list[str]:
    """Return texts of which this share of `rows` differ."""
    count = round(share * rows)
    places = [row * count // rows for row in range(rows)]  # those of a text follow each other
    letters = "abcdefghij"
    return [f"{letters[place // 10]}-{letters[place % 10]}" for place in places]


@pytest.mark.parametrize(("share", "is_left_out"), [(0.8, True), (0.7, False)])
def test_texts_of_most_rows_are_no_categories(
    folder: Folder, share: float, is_left_out: bool
) -> None:
    there = folder(
        a=with_column("x", different(share)[:30]), b=with_column("x", different(share)[30:])
    )
    text = inferred(there)
    assert ("x" in parse_schema(text).ignore) == is_left_out
    assert ("different texts in 60 rows, too many for categories" in text) == is_left_out
    wanted = {"target": "x"}
    if is_left_out:
        with refused_with("which are no classes", "name the right column by csv.target"):
            inferred(there, **wanted)
    else:
        assert parse_schema(inferred(there, **wanted)).predicted.categories
