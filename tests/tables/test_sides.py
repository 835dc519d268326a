"""Of two sides each has its own line, and who is right has none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbloom.tables.comparison import Categories, Missing, Numbers, Profiles, compare
from fairbloom.tables.conversions import KNOWN
from fairbloom.tables.findings import Finding, say_and_propose
from fairbloom.tables.letters import NUMBER, compare_letters, describe, letter_of
from fairbloom.tables.profiles import ColumnProfile
from fairbloom.tables.schema import Field
from fairbloom.tables.sides import settle
from tests.tables.test_comparison import normal, numbers_of, profiles, texts_of
from tests.tables.test_letters import ROW, Rows, hospital, site_of

S = "5" * 64


def sides(columns: Profiles, right: str = "") -> list[Finding]:
    fields = {"x": columns}
    return [*settle(compare(fields), fields, right)]


def numbers(**factors: float) -> Profiles:
    values = normal(1.1, 0.3)
    return profiles({site: numbers_of(values * factor) for site, factor in factors.items()}, 5)


def lines_of(finding: Finding, about: Field = NUMBER) -> list[list[str]]:
    change = finding.propose(about, "*")
    return change.lines if change else []


def test_of_two_sites_each_line_is_the_inverse_of_the_other() -> None:
    found = {each.sites: each for each in sides(numbers(leeds=1.0, oslo=7.5006))}
    assert found.keys() == {("leeds",), ("oslo",)}
    assert lines_of(found["oslo",]) == [["fields.x.factor = 0.133323"]]
    assert lines_of(found["leeds",]) == [["fields.x.factor = 7.5006"]]
    assert found["oslo",].condition == "if the schema is in kPa"
    assert found["leeds",].condition == "if the schema is in mmHg"
    assert found["oslo",].say().startswith("median 8.")
    assert found["leeds",].say().startswith("median 1.")


def test_a_conversion_without_units_names_the_other_site() -> None:
    found = {each.sites: each for each in sides(numbers(leeds=1.0, oslo=10.0))}
    assert found["oslo",].condition == "if the schema is as at leeds"
    assert found["leeds",].condition == "if the schema is as at oslo"


def test_years_of_birth_and_ages_are_two_sides() -> None:
    ages = normal(55, 15)
    cells = {"a": numbers_of(ages), "b": numbers_of(2024 - ages)}
    found = {each.sites: each for each in sides(profiles(cells, 1))}
    assert found["a",].condition == "if the schema is in years of birth"
    assert found["b",].condition == "if the schema is in ages"


def test_categories_of_two_sites_are_two_sides() -> None:
    cells = {"a": texts_of(["f", "m"] * 40), "b": texts_of(["mujer", "hombre"] * 40)}
    found = {each.sites: each for each in sides(profiles(cells, 5))}
    about = Field(type="string", categories=("f", "m", "hombre", "mujer"))
    assert lines_of(found["b",], about) == [
        ['fields.x.spellings = {m = ["hombre"], f = ["mujer"]}']
    ]
    assert lines_of(found["a",], about) == [
        ['fields.x.spellings = {hombre = ["m"], mujer = ["f"]}']
    ]
    assert found["a",].condition == "if the schema is as at b"


@pytest.mark.parametrize(
    ("right", "named"),
    [
        ("", ["a", "b"]),
        ("a", ["b"]),
        ("b", ["a"]),
        ("ab", ["a", "b"]),  # one of them is read wrongly
    ],
)
def test_the_site_that_is_read_by_the_schema_has_no_line(right: str, named: list[str]) -> None:
    found = sides(numbers(a=1.0, b=7.5006), right)
    assert sorted(site for each in found for site in each.sites) == named
    assert all(each.condition.startswith("if so") == (len(named) == 1) for each in found)
    for each in found:  # a factor is there only where owner.toml may have it
        assert each.condition.endswith("(times a factor that is there)") == (each.sites[0] in right)


def test_many_newcomers_do_not_accuse_the_one_that_is_right() -> None:
    columns = numbers(a=1.0, b=7.5006, c=7.5006)
    (before,) = sides(columns)
    assert (before.sites, lines_of(before)) == (("a",), [["fields.x.factor = 7.5006"]])
    (found,) = sides(columns, "a")
    assert (found.sites, lines_of(found)) == (("b", "c"), [["fields.x.factor = 0.133323"]])
    # of sites that are read by the schema on both sides the core decides
    (found,) = sides(columns, "ab")
    assert found.sites == ("a",)
    (found,) = sides(numbers(a=1.0, b=1.0, c=1.0, d=7.5006), "abc")
    assert found.sites == ("d",)


@pytest.mark.parametrize(
    ("unit", "named"), [("mmHg", ["a"]), ("KPA", ["b", "c"]), ("bar", ["a"]), ("", ["a"])]
)
def test_the_unit_of_the_schema_decides(unit: str, named: list[str]) -> None:
    fields = {"x": numbers(a=1.0, b=7.5006, c=7.5006)}
    about = {"x": Field(type="number", unit=unit)}
    (found,) = settle(compare(fields), fields, schema=about)
    assert sorted(found.sites) == named
    # what is read by the schema goes before its unit
    (found,) = settle(compare(fields), fields, "bc", schema=about)
    assert found.sites == ("a",)
    two = {"x": numbers(a=1.0, b=7.5006)}
    sites = {each.sites[0] for each in settle(compare(two), two, schema=about)}
    assert sites == ({"a", "b"} if unit in ("bar", "") else {*named} & {"a", "b"})


def test_what_proposes_nothing_stays_as_it_is() -> None:
    missing = Missing("x", ("a",), share=0.5, elsewhere=0.1)
    other = Numbers("x", ("a",), number=1.0, elsewhere=2.0)
    fields = {"x": numbers(a=1.0, b=1.0)}
    assert [*settle([missing, other], fields, "a")] == [missing, other]


def test_no_conversion_is_called_otherwise_from_the_other_side() -> None:
    for way in KNOWN:
        back = way.inverse()
        assert (back.units, back.about) == (way.units, way.about)
        assert (back.unit, back.other) == (way.other, way.unit)
        assert np.allclose([back.inverse().factor, back.inverse().offset], way[2:4])


def test_each_site_of_files_has_the_line_of_its_own_file() -> None:
    said = [
        say_and_propose(each, NUMBER, {"a": "a.csv", "b": "b.csv"})
        for each in sides(numbers(a=1.0, b=7.5006))
    ]
    assert sorted(line.partition("; ")[2] for line in said) == [
        'if the schema is in kPa, say fields.x.factor = 0.133323 under [files."b.csv"]',
        'if the schema is in mmHg, say fields.x.factor = 7.5006 under [files."a.csv"]',
    ]


# Letters ------------------------------------------------------------------------------------------


def times(rows: Rows, factor: float) -> Rows:
    return [row | {"age": f"{float(row['age']) * factor:.4g}"} for row in rows]


def said_of(tmp_path: Path, hospitals: Mapping[str, Rows], by_schema: str = "") -> Iterator[str]:
    letters = []
    for site, rows in hospitals.items():
        made = letter_of(site_of(tmp_path, rows), site, "2025-01-31", 5, ROW)
        letters.append(replace(made, schema=S) if site in by_schema.split() else made)
    return describe(compare_letters(letters)[1], "*")


def test_letters_of_two_sites_have_a_line_each(tmp_path: Path) -> None:
    hospitals = {"north": hospital(160), "west": times(hospital(160, seed=1), 12.0)}
    said = [*said_of(tmp_path, hospitals)]
    assert any(line.endswith("if the schema is in years:") for line in said if "west" in line)
    assert any(line.endswith("if the schema is in months:") for line in said if "north" in line)
    assert [line.strip() for line in said if "factor" in line] == [
        "fields.age.factor = 0.0833333",
        "fields.age.factor = 12",
    ]
    (only, *lines) = said_of(tmp_path, hospitals, "west")
    assert only.startswith("north: age: median")
    assert lines[-1].strip() == "fields.age.factor = 12"


def test_a_newcomer_in_another_unit_is_named_alone(tmp_path: Path) -> None:
    """Three are read by the schema, a fourth one is as its files are."""
    hospitals = {name: hospital(160, seed=k) for k, name in enumerate(("a", "b", "c"))}
    hospitals["d"] = times(hospital(160, seed=4), 12.0)
    for right in ("", "a b c", "a"):
        (said, *_) = said_of(tmp_path, hospitals, right)
        assert said.startswith("d: age: median")
        assert "if the schema" not in said


def test_the_finding_is_a_value_of_its_kind() -> None:
    profile = ColumnProfile(80, {}, {"f": 40, "m": 40}, floor=5)
    finding = Categories("x", ("b", "a"), others=("b",), words=("f", "m"))
    turned = finding.turn(("b",), [profile.values])
    assert isinstance(turned, Categories)
    assert (turned.sites, turned.odd, turned.words) == (("b",), ("b",), ("f", "m"))
