"""Who stands out is measured by the sites' own spread, and named with what explains it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbloom.experiments.pages.profiles import profiles_page
from fairbloom.experiments.render.page import Charts, Note
from fairbloom.tables.comparison import (
    IN_ROWS,
    Absent,
    Categories,
    Far,
    Lacking,
    Missing,
    Numbers,
    OneValue,
    Spelling,
    Untold,
    Wording,
    compare,
    match_names,
    match_rare,
)
from fairbloom.tables.conversions import CONVERSIONS, KNOWN, Conversion
from fairbloom.tables.findings import Change, Explained, Finding
from fairbloom.tables.profiles import Cells, ColumnProfile, profile
from fairbloom.tables.schema import Field

from .test_profiles import numbers_of, texts_of


@pytest.fixture(autouse=True)
def _drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.random", np.random.default_rng(1))


random = np.random.default_rng(1)


def normal(center: float, spread: float, rows: int = 200) -> NDArray[np.float64]:
    """Return numbers that are others at each call, and the same in each run of a test."""
    return random.normal(center, spread, rows)


def profiles(cells: Mapping[str, Cells], floor: int = 1) -> dict[str, ColumnProfile]:
    return {site: profile({"x": each}, floor)["x"] for site, each in cells.items()}


def found(
    cells: Mapping[str, Cells], *kinds: str, floor: int = 1, name: str = "x"
) -> list[Finding]:
    """Return the findings of some kinds; of all without one."""
    findings = compare({name: profiles(cells, floor)})
    return [each for each in findings if not kinds or each.kind in kinds]


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [1, 5])
@pytest.mark.parametrize(
    "way",
    [way for way in CONVERSIONS if way.factor >= 4 or way.factor <= 0.25 or abs(way.offset) > 1],
    ids=lambda way: f"{way.about} {way.factor:.3g}",
)
def test_a_site_in_another_unit_leaves_and_the_rest_stay(way: Conversion, floor: int) -> None:
    numbers = dict.fromkeys("abc", normal(120, 12))
    numbers["b"] = numbers["b"] * way.factor + way.offset
    (finding,) = found({site: numbers_of(each) for site, each in numbers.items()}, floor=floor)
    assert (finding.kind, finding.sites) == ("numbers", ("b",))
    named = [each for each in finding.explained_by if each.factor == way.factor]
    assert [each.offset for each in named] == [way.offset]
    back = numbers["b"] / way.factor - way.offset / way.factor
    cured = {**numbers, "b": back}
    assert not found({site: numbers_of(each) for site, each in cured.items()}, floor=floor)


def test_of_two_sites_both_are_named() -> None:
    (finding,) = found({"a": numbers_of(normal(170, 9)), "b": numbers_of(normal(67, 4))})
    assert {*finding.sites} == {"a", "b"}
    assert len(finding.odd) == 1
    assert "cm and inches" in finding.say()


@pytest.mark.parametrize("site", ["a", "f"])
def test_years_of_birth_are_named_and_turned_scales_are_not(site: str) -> None:
    ages = {name: normal(55, 15) for name in "abcdef"}
    births = {**ages, site: 2024 - ages[site]}
    (finding,) = found({name: numbers_of(each) for name, each in births.items()})
    (way,) = finding.explained_by
    assert (way.factor, finding.sites) == (-1.0, (site,))
    assert way.offset == pytest.approx(2024, abs=5)
    turned = {**ages, site: 300 - ages[site]}
    (finding,) = found({name: numbers_of(each) for name, each in turned.items()})
    assert not finding.explained_by
    assert "another quantity, another unit, or other people" in finding.say()


def test_what_the_field_names_comes_first() -> None:
    percent = normal(6.5, 0.4)
    between = (10.93 * percent - 23.5 + 7.5006 * percent) / 2  # both conversions leave as much
    sites = {"a": percent, "b": percent, "c": between}
    cells = {site: numbers_of(each) for site, each in sites.items()}
    (finding,) = found(cells, name="x")
    assert len(finding.explained_by) > 1
    (named,) = found(cells, name="HbA1c_last")
    assert {*named.explained_by} == {*finding.explained_by}
    assert named.explained_by[0].about == "mmol/mol and % of HbA1c"


def test_sites_that_differ_by_nature_do_not_stand_out() -> None:
    spread = {f"s{k}": numbers_of(normal(100 + 40 * k, 10)) for k in range(8)}
    assert not found(spread)
    alike = {f"s{k}": numbers_of(normal(100, 10)) for k in range(7)}
    assert [each.sites for each in found({**alike, "s7": spread["s7"]})] == [("s7",)]


def test_at_most_a_third_of_the_sites_stand_out() -> None:
    cells = {f"s{k}": numbers_of(normal(100 * 10 ** (k % 3), 9)) for k in range(6)}
    assert len(found(cells)) <= 2


@pytest.mark.parametrize(("floor", "rows", "told"), [(1, 9, False), (5, 60, True), (20, 60, False)])
def test_too_few_rows_are_said(floor: int, rows: int, told: bool) -> None:
    cells = {site: numbers_of(normal(100, 10)) for site in "abc"}
    cells["d"] = numbers_of(normal(1000, 100, rows))
    kinds = {each.kind for each in found(cells, floor=floor) if "d" in each.sites}
    assert kinds == ({"numbers"} if told else {"untold"})


# Missing values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "rows", "apart"), [(0.5, 200, True), (0.2, 200, False), (0.5, 8, False)]
)
def test_a_share_of_missing_values_stands_out(share: float, rows: int, apart: bool) -> None:
    cells = {site: numbers_of(normal(100, 10, rows)) for site in "abc"}
    numbers = normal(100, 10, rows)
    numbers[: round(share * rows)] = np.nan
    findings = found({**cells, "d": numbers_of(numbers)}, "missing")
    assert [each.sites for each in findings] == [("d",)] * apart


def test_shares_that_differ_everywhere_are_usual() -> None:
    cells = {}
    for k in range(8):
        numbers = normal(100, 10, 100)
        numbers[: 12 * k] = np.nan
        cells[f"s{k}"] = numbers_of(numbers)
    assert not found(cells, "missing")


# Categories ---------------------------------------------------------------------------------------

HALVES = texts_of(["f", "m"] * 40)


def test_other_words_stand_out() -> None:
    for words, apart in ((["w", "x"], True), (["F", "M"], False), (["f ", "m"], False)):
        cells = {**dict.fromkeys("abc", HALVES), "d": texts_of(words * 40)}
        findings = found(cells, "categories")
        assert [(each.sites, {*each.words}) for each in findings] == [(("d",), {*words})] * apart


@pytest.mark.parametrize("floor", [1, 5])
def test_codes_that_begin_at_0_are_explained(floor: int) -> None:
    cells = {site: numbers_of([1.0, 2.0] * 40) for site in "abc"} | {"d": numbers_of([0, 1] * 40)}
    (finding,) = found(cells, floor=floor)
    assert {each.about for each in finding.explained_by} == {"codes from 1 and from 0"}
    codes = Field(type="integer", categories=("1", "2"))
    change = finding.propose(codes, "d.csv")
    assert change.heading == '[files."d.csv"]'
    assert change.lines == [['fields.x.spellings = {"1" = ["0"], "2" = ["1"]}']]
    (lines,) = finding.propose(Field(type="number"), "d.csv").lines
    assert lines == ["fields.x.factor = 1", "fields.x.offset = 1"]
    assert finding.propose(codes, "") is None
    one_class = found({**cells, "d": numbers_of([0.0] * 80)})
    assert not any(each.explained_by for each in one_class if isinstance(each, Explained))


def test_a_site_that_lacks_what_all_have_is_told() -> None:
    for rows, told in ((16, True), (12, False)):
        cells = {**dict.fromkeys("abc", HALVES), "d": texts_of(["f"] * rows)}
        assert [each.words for each in found(cells, "lacking")] == [("m",)] * told
    few = texts_of(["f"] * 77 + ["m"] * 3)
    assert not found({"a": HALVES, "b": HALVES, "c": few, "d": texts_of(["f"] * 16)}, "lacking")
    # What fewer rows than the floor hold is not listed, and may be there.
    cells = {**dict.fromkeys("abc", HALVES), "d": texts_of(["f"] * 30 + ["m"] * 4)}
    assert not found(cells, "lacking", floor=20)


def test_near_spellings_are_asked_about_unless_a_site_has_both() -> None:
    usual = texts_of(["secondary", "primary"] * 30)
    typo = texts_of(["secondry"] * 30 + ["primary"] * 30)
    (finding,) = found({"a": usual, "b": usual, "c": typo}, "spelling")
    assert (finding.text, finding.usual, finding.sites) == ("secondry", "secondary", ("c",))
    both = texts_of(["secondary", "secondry", "primary"] * 20)
    assert not found({"a": usual, "b": both}, "spelling")
    levels = [texts_of([f"level {k}"] * 30) for k in (1, 2)]
    assert not found({"a": levels[0], "b": levels[1]}, "spelling")


WORDS = [
    (("no", "yes"), ("no", "sí"), (("sí", "yes"),)),
    (("female", "male"), ("Mujer", "varón"), (("Mujer", "female"), ("varón", "male"))),
    (("f", "m"), ("m", "v"), (("m", "m"), ("v", "f"))),
    (("nein", "ja"), ("f", "t"), (("f", "nein"), ("t", "ja"))),
]


@pytest.mark.parametrize(("usual", "own", "words"), WORDS)
def test_answers_in_another_language_are_the_same(
    usual: tuple[str, str], own: tuple[str, str], words: tuple[tuple[str, str], ...]
) -> None:
    at_most = texts_of([usual[0]] * 40 + [usual[1]] * 40)
    (finding,) = found({"a": at_most, "b": at_most, "c": texts_of([*own] * 40)})
    assert isinstance(finding, Wording)
    assert finding.sites == ("c",)
    assert {*finding.words} == {each for each in words if each[0] != each[1]}
    about = Field(type="string", categories=usual)
    (way,) = finding.change_site(about)
    assert all(f'{meant} = ["{own_word}"]' in way["spellings"] for own_word, meant in finding.words)


@pytest.mark.parametrize(
    "own", [("mujer", "no"), ("no", "sí", "tal vez"), ("sí",), ("alta", "baja"), ("NO", "YES")]
)
def test_other_words_are_no_wording(own: tuple[str, ...]) -> None:
    """Two answers are of one language; cases are no words."""
    usual = texts_of(["no", "yes"] * 40)
    cells = {"a": usual, "b": usual, "c": texts_of([*own] * 20)}
    assert not found(cells, "wording")


def test_other_shares_of_answers_stand_out_in_any_language() -> None:
    usual = texts_of(["no"] * 10 + ["yes"] * 70)
    cells = {**dict.fromkeys("abc", usual), "d": texts_of(["no"] * 76 + ["sí"] * 4)}
    assert {each.kind for each in found(cells)} == {"wording", "categories"}


def test_one_value_and_nothing_is_a_question() -> None:
    ones = numbers_of([1.0, np.nan] * 20)
    (finding,) = found({"a": ones, "b": ones})
    assert (finding.kind, finding.rows) == ("one-value", 40)
    assert not found({"a": ones, "b": numbers_of([1.0, 2.0] * 20)}, "one-value")
    assert not found({"a": numbers_of([1.0] * 20), "b": numbers_of([1.0] * 20)})


# Names --------------------------------------------------------------------------------------------


def test_a_column_of_another_name_is_matched_once() -> None:
    ages, doses = ({site: normal(center, 9) for site in "abcd"} for center in (50, 900))
    fields = {
        "age": profiles({site: numbers_of(ages[site]) for site in "abc"}),
        "dose": profiles({site: numbers_of(doses[site]) for site in "abc"}),
        "ward": profiles(dict.fromkeys("abc", HALVES)),
    }
    own = {"edad": ages["d"], "dosis": doses["d"], "edad2": ages["d"] + 6}
    columns = profile({name: numbers_of(each) for name, each in own.items()})
    columns |= profile({"sala": HALVES, "otro": texts_of(["y", "z"] * 40)})
    matched = {each.field: each.column for each in match_names(fields, {"d": columns})}
    assert matched == {"age": "edad", "dose": "dosis", "ward": "sala"}
    assert not [*match_names(fields, {"a": columns})]  # it lacks no field


def test_a_near_spelling_of_a_name_needs_one_near_site() -> None:
    """Where the others differ, as in their units, it is near to none of them together."""
    levels = {site: normal(1.1, 0.2) * factor for site, factor in (("a", 1.0), ("b", 88.42))}
    fields = {"creatinine": profiles({site: numbers_of(each) for site, each in levels.items()})}
    for name, center, matched in (
        ("creatinina", 1.1, ["creatinina"]),
        ("dosis", 1.1, []),
        ("creatinina", 900, []),
    ):
        own = profile({name: numbers_of(normal(center, 0.2 * center))})
        assert [each.column for each in match_names(fields, {"c": own})] == matched


def test_a_column_of_another_name_has_its_answers() -> None:
    fields = {"sex": profiles(dict.fromkeys("ab", texts_of(["female", "male"] * 40)))}
    own = profile(
        {"sexo": texts_of(["mujer", "varón"] * 40), "piso": texts_of(["alto", "bajo"] * 40)}
    )
    (finding,) = match_names(fields, {"c": own})
    assert finding.column == "sexo"
    (way,) = finding.change_site(Field(type="string", categories=("female", "male")))
    assert way == {"name": '"sexo"', "spellings": '{female = ["mujer"], male = ["varón"]}'}


def test_a_small_site_does_not_hide_that_names_match() -> None:
    column = profile({"edad": numbers_of(normal(50, 9))})
    sites = {"a": numbers_of(normal(50, 9)), "b": numbers_of(normal(50, 9, 3))}
    for used, matched in (("ab", ["age"]), ("b", [])):
        fields = {"age": profiles({site: sites[site] for site in used})}
        assert [each.field for each in match_names(fields, {"d": column})] == matched


def test_columns_that_no_two_sites_share_are_asked_once() -> None:
    """Of several names, at other sites, near each other; the nearest goes together first."""
    pressures = {site: normal(130, 17) for site in "abc"}
    rare = {
        "sbp": profiles({"a": numbers_of(pressures["a"])}),
        "systolic": profiles({"b": numbers_of(pressures["b"])}),
        "rr": profiles({"c": numbers_of(pressures["c"])}),
        "weight": profiles({"a": numbers_of(normal(60, 9))}),
        "ward": profiles({"a": HALVES}),
        "sala": profiles({"c": HALVES}),
        "far": profiles({"b": numbers_of(normal(900, 9))}),
    }
    found_of = {each.field: each for each in match_rare(rare)}
    assert {*found_of} == {"sbp", "ward"}
    asked = found_of["sbp"]
    assert dict(zip(asked.sites, asked.columns, strict=True)) == {
        "a": "sbp",
        "b": "systolic",
        "c": "rr",
    }
    assert [asked.change_at(site) for site in "ab"] == [{}, {"name": '"systolic"'}]
    here = {"sbp": rare["sbp"], "again": profiles({"a": numbers_of(pressures["b"])})}
    assert not [*match_rare(here)]  # two columns of one site are two
    farther = profiles({"a": numbers_of(pressures["a"] + 4.0)})
    (nearest,) = match_rare({"sbp": rare["sbp"], "rr": rare["rr"], "again": farther})
    assert "again" not in nearest.columns
    several = {"sbp": profiles(dict.fromkeys("ab", numbers_of(pressures["a"]))), "rr": rare["rr"]}
    (together,) = match_rare(several)
    assert (together.field, together.sites) == ("sbp", ("a", "b", "c"))
    hidden = {"sbp": rare["sbp"], "x": {"b": replace(rare["sbp"]["a"], quantiles=())}}
    assert not [*match_rare(hidden)]


# What rows show -----------------------------------------------------------------------------------


def test_what_several_sites_found_is_said_once() -> None:
    heights = normal(170, 9, 60)
    coded = numbers_of([*heights, 999.0, 999.0])
    plain = numbers_of(normal(170, 9, 60))
    (finding,) = found({"a": coded, "b": plain, "c": coded})
    assert (finding.kind, finding.sites, finding.rows) == ("far", ("a", "c"), 4)
    far = numbers_of(normal(999, 200, 60))
    assert not found({"a": coded, "b": far, "c": coded}, "far")  # an honest number there


def test_each_kind_of_rows_has_a_sentence() -> None:
    for kind in IN_ROWS.values():
        finding = kind("x", ("a",), number=1.5, column="y", units="lb and kg", rows=3000)
        shown = {"two-units": "lb and kg", "exclusive": "'y'"}.get(kind.kind, "in 3,000 rows")
        assert shown in finding.say()


LB = Conversion("lb", "kg", 2.2046)
WORDS = ("u", "v", "w", "z")


@pytest.mark.parametrize(
    ("finding", "said", "lines"),
    [
        (Missing("x", ("a",), share=0.5, elsewhere=0.1), "50% of its rows have no value", []),
        (Numbers("x", ("a",), number=2.0, elsewhere=3000.0), "median 2, and 3000 elsewhere", []),
        (
            Numbers("x", ("a",), 1.0, (LB, LB.inverse()), number=2.0, elsewhere=1.0),
            "it looks like lb and kg",
            [["fields.x.factor = 0.453597"], ["fields.x.factor = 2.2046"]],
        ),
        (
            Categories("x", ("a",), words=WORDS),
            "its categories, 'u', 'v', 'w' and 1 more, are other ones",
            [["fields.x.spellings = {f = [], m = []}"]],
        ),
        (Lacking("x", ("a",), words=("f",)), "it lacks 'f', which the others have", []),
        (
            Spelling("x", ("a",), text="mm", usual="m"),
            "'mm' may be a spelling of 'm'",
            [['spellings = {m = ["mm"]}']],
        ),
        (
            OneValue("x", ("a",), value="yes", rows=9),
            "it is 'yes' or nothing, in 9 rows",
            [['categories = ["no", "yes"]', 'spellings = {no = [""]}']],
        ),
        (OneValue("x", ("a",), value="no", rows=9), "it is 'no' or nothing", []),
        (
            Far("x", ("a",), number=999.0, column="", units="", rows=3),
            "999 in 3 rows, far from the others",
            [['missingValues = ["999"]']],
        ),
    ],
)
def test_a_finding_says_what_it_proposes(
    finding: Finding, said: str, lines: list[list[str]]
) -> None:
    assert said in finding.say()
    sexes = Field(type="string", categories=("f", "m", "u"))
    about = Field(type="number") if isinstance(finding, Numbers) else sexes
    change = finding.propose(about, "a.csv")
    assert (change.lines if change else []) == lines


def test_the_lines_of_a_change_are_one_sentence() -> None:
    ways = [{"factor": "2"}, {"factor": "3", "offset": "1"}]
    assert str(Change("a b", "c.csv", ways)) == (
        'fields."a b".factor = 2 under [files."c.csv"] or fields."a b".factor = 3 and'
        ' fields."a b".offset = 1 under [files."c.csv"]'
    )
    assert str(Change("a b", "", ways[:1])) == 'factor = 2 under [fields."a b"]'


def test_a_conversion_has_a_name_and_a_field_says_its_substance() -> None:
    assert len({way.about for way in KNOWN}) == len(KNOWN) - 2  # of powers of ten there are three
    named = {way.about for way in CONVERSIONS if way.is_named_in("S-Glucose (fasting)")}
    assert named == {"mg/dl and mmol/l of glucose"}
    assert not any(way.is_named_in("lb and kg") for way in KNOWN if not way.substance)


# Both halves --------------------------------------------------------------------------------------


def test_numbers_of_many_kinds_in_all_are_quantities() -> None:
    """Few distinct numbers at each site, and more than twenty at all: no codes."""
    low, high = (numbers_of([float(first + k % 15) for k in range(90)]) for first in (0, 12))
    assert {each.kind for each in found({"a": low, "b": low, "c": high})} == {"numbers"}
    same = numbers_of([float(40 + k % 15) for k in range(90)])
    few = numbers_of([float(k % 15) for k in range(90)])
    kinds = {each.kind for each in found({"a": few, "b": few, "c": few})}
    assert not kinds
    assert {each.kind for each in found({"a": few, "b": few, "c": same})} == {"numbers"}


def test_codes_among_texts_are_not_explained() -> None:
    usual = texts_of(["1", "2", "unknown"] * 20)
    other = texts_of(["0", "1", "none"] * 20)
    (finding,) = found({**dict.fromkeys("abcd", usual), "e": other}, "categories")
    assert not finding.explained_by


def test_one_spelling_in_two_cases_is_no_question() -> None:
    cells = {"a": texts_of(["Secondary"] * 30), "b": texts_of(["secondary"] * 30)}
    assert not found({**cells, "c": texts_of(["SECOND-ARY"] * 30)})


@pytest.mark.parametrize(("center", "is_code"), [(0.0, False), (30.0, True), (-30.0, True)])
def test_a_number_among_anothers_is_no_code(center: float, is_code: bool) -> None:
    coded = numbers_of([*normal(170, 9, 60), -9.0, -9.0])
    cells = {"a": coded, "b": numbers_of(normal(center, 6, 200))}
    assert [each.sites for each in found(cells, "far")] == [("a",)] * is_code


def test_a_picture_names_who_stands_out_once() -> None:
    """A site that lacks the column, or has too few rows, does not stand out in it."""
    columns = profiles({site: numbers_of(normal(120, 12)) for site in "ab"})
    findings = [
        Missing("x", ("b",), share=0.4, elsewhere=0.1),
        Missing("x", ("b",), share=0.4, elsewhere=0.1),
        Absent("x", ("c",)),
        Untold("x", ("a",)),
    ]
    page = profiles_page({"x": columns}, findings, ["said"] * 4)
    note, charts = page.sections[0].blocks
    assert isinstance(note, Note)
    assert isinstance(charts, Charts)
    (chart,) = charts.charts
    assert chart.description == "x by site; b stands out"
    assert {row["text"] for row in chart.spec["data"]["values"]} == {"a value"}
