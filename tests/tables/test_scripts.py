"""Letters of other scripts that look like Latin ones: read as these, and said."""

import pytest

from fairbloom.tables.comparison import find_spellings
from fairbloom.tables.encoding import read_columns
from fairbloom.tables.profiles import ColumnProfile
from fairbloom.tables.reading import read
from fairbloom.tables.schema import parse_schema, squash
from fairbloom.tables.scripts import as_latin, show_script

from .helpers import Folder, inferred
from .test_infer import described, with_column

CYRILLIC = {"A": "\u0410", "B": "\u0412", "C": "\u0421", "a": "\u0430", "e": "\u0435"}


@pytest.mark.parametrize(
    ("text", "latin"),
    [
        (CYRILLIC["A"], "A"),
        (f"{CYRILLIC['C']}OPD", "COPD"),
        (f"stage {CYRILLIC['B']}", "stage B"),
        ("\u039fK", "OK"),  # Greek
        ("A", "A"),
        ("Врач", "Врач"),  # a word of another script
        ("ТОМ", "ТОМ"),  # which has only such letters
        ("в", "в"),  # looks like no Latin letter
        ("β-blocker", "β-blocker"),
        ("é", "é"),
    ],
)
def test_letters_that_look_alike_are_latin(text: str, latin: str) -> None:
    assert as_latin(text) == latin


def test_a_script_is_shown_where_a_letter_looks_like_another() -> None:
    assert show_script(CYRILLIC["A"]) == f"'{CYRILLIC['A']}' (Cyrillic)"
    assert show_script("\u039fK") == "'\u039fK' (Greek)"
    assert show_script("A") == "'A'"
    assert show_script("Врач") == "'Врач'"
    assert squash(f"{CYRILLIC['a']}ge (years)") == squash("AGE")
    assert squash("ВРАЧ") == squash("врач") != squash("BPA4")


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("name", ["grade", "target"])
def test_categories_that_look_alike_are_one(folder: Folder, name: str, few: bool) -> None:
    """Of all of a site's rows or one, as input and as target; a second letter stays another."""
    cells = list("ABAB" * 15)
    odd = [
        CYRILLIC["A"] if cell == "A" and (not few or k == 8) else cell
        for k, cell in enumerate(cells)
    ]
    there = folder(
        **{
            site: with_column("grade", own, 60)
            for site, own in zip("abc", (cells, cells, odd), strict=True)
        }
    )
    settings = {"target": "grade"} if name == "target" else {}
    text = inferred(there, **settings)
    field = parse_schema(text).fields["grade"]
    assert (field.categories, dict(field.spellings)) == (("A", "B"), {"A": (CYRILLIC["A"],)})
    question = f"'{CYRILLIC['A']}' (Cyrillic) looks like 'A', and is read as it: are they one?"
    assert question in text
    shown = described(there, **settings)
    assert shown["faults"] == []
    assert question in str(shown["remarks"])


def test_upper_and_lower_case_of_another_script_are_one(folder: Folder) -> None:
    cells = ["Да", "нет", "да", "Нет", "В", "в"]
    there = folder(a=with_column("answer", cells, 60), b=with_column("answer", cells, 60))
    text = inferred(there)
    assert len(parse_schema(text).fields["answer"].categories) == 3
    assert "looks like" not in text


def test_a_name_that_looks_like_another_is_that_column(folder: Folder) -> None:
    plain = with_column("grade", ["A", "B"], 60)
    there = folder(a=plain, b=plain, c=plain.replace("age", f"{CYRILLIC['a']}ge", 1))
    text = inferred(there)
    schema = parse_schema(text)
    assert f"{CYRILLIC['a']}ge" not in (*schema.fields, *schema.ignore)
    assert schema.file("c.csv", "c").names_of("age") == (f"{CYRILLIC['a']}ge",)
    assert "(Cyrillic) looks like 'age', and is read as it: are they one?" in text
    _, faults = read_columns(read(there / "c.csv", schema.file("c.csv", "c")), schema)
    assert not faults


def test_a_cell_that_looks_like_a_category_is_a_fault(folder: Folder) -> None:
    cells = ["A", "B", CYRILLIC["A"]]
    there = folder(a=with_column("grade", cells, 60), b=with_column("grade", ["A", "B"], 60))
    spelling = f'spellings = {{A = ["{CYRILLIC["A"]}"]}}\n'
    text = inferred(there)
    assert spelling in text
    without = text.replace(spelling, "")
    (fault,) = described(there, without)["faults"]
    assert "which looks like 'A', in letters of another script" in fault["problem"]
    assert f"fields.grade.{spelling.strip()}" in fault["remedy"]
    remedied = without.replace("[fields.grade]\n", f"[fields.grade]\n{spelling}")
    assert described(there, remedied)["faults"] == []


def test_hospitals_letters_tell_of_the_script() -> None:
    """Also where both are frequent at one site."""
    other = CYRILLIC["A"]
    sites = {"a": {"A": 30, "B": 30}, "b": {"A": 30, other: 30, "B": 30}}
    columns = {name: ColumnProfile(90, {}, values) for name, values in sites.items()}
    (finding,) = find_spellings("grade", columns)
    assert {finding.text, finding.usual} == {"A", other}
    assert f"'{other}' (Cyrillic) may be a spelling of 'A'" in finding.say()
