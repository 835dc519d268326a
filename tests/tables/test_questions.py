"""What a draft asks of how columns are read: `fairbloom data` and runs without a schema say it."""

from collections.abc import Sequence

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tables.missing_words import may_mean_missing
from fairbloom.tables.names_by_number import (
    MAX_ROWS,
    Outcomes,
    act_as_names,
    draw_rows,
    leave_by_shapes,
)
from fairbloom.tables.schema import normalise, parse_schema
from fairbloom.tables.site_names import MANY_ROWS, names_the_site
from fairbloom.tables.survey import Column, Sites
from fairbloom.tables.toml import Question
from fairbloom.tasks import check_data, describe_data

from .helpers import Folder, config, inferred, load

ROWS = 400


def rows_of(seed: int, rows: int = ROWS) -> np.random.Generator:
    """Return random numbers for a site."""
    return np.random.default_rng((seed, rows))


def table(**columns: Sequence[object]) -> str:
    """Return a table with these columns, and ages."""
    rows = len(next(iter(columns.values())))
    ages = np.random.default_rng(rows).normal(60, 12, rows).round().astype(int).tolist()
    lines = [",".join(["age", *columns])]
    for age, *cells in zip(ages, *columns.values(), strict=True):
        lines.append(",".join(map(str, [age, *cells])))
    return "\n".join(lines) + "\n"


def wards(seed: int, written: str = "{}", rows: int = ROWS) -> str:
    """Return a table of wards 1 to 12, of which each has its own rate of the outcome."""
    random = rows_of(seed, rows)
    ward = random.integers(1, 13, rows)
    rates = np.random.default_rng(5).permutation(np.linspace(0.05, 0.95, 12))
    target = np.where(random.random(rows) < rates[ward - 1], "yes", "no")
    return table(ward=[written.format(each) for each in ward], target=target.tolist())


def asked(there: object, **settings: str) -> tuple[Question, ...]:
    """Return the questions on a folder."""
    return load(str(there), **settings).questions


# Names by number ----------------------------------------------------------------------------------


def outcomes_of(values: np.ndarray, rate: np.ndarray, sites: np.ndarray | None = None) -> Outcomes:
    """Return outcomes of two classes by the rate of each row."""
    target = (np.random.default_rng(1).random(len(values)) < rate).astype(np.int64)
    return Outcomes.of(target, np.zeros(len(values), np.int64) if sites is None else sites)


def draw(count: int, rows: int = 2_000) -> np.ndarray:
    """Return rows of numbers below a count."""
    return np.random.default_rng(2).integers(0, count, rows).astype(float)


@pytest.mark.parametrize(
    ("what", "rate"),
    [
        ("none", lambda x: 0.3 + 0.0 * x),
        ("line", lambda x: x / 40),
        ("step", lambda x: np.where(x > 25, 0.9, 0.1)),
        ("one turn", lambda x: np.where((x > 10) & (x < 30), 0.9, 0.1)),
        ("wave", lambda x: 0.5 + 0.4 * np.sin(x / 8)),
    ],
)
def test_amounts_are_no_names(what: str, rate: object) -> None:
    values = draw(40)
    assert not act_as_names(values, outcomes_of(values, rate(values))), what  # type: ignore[operator]


@pytest.mark.parametrize("count", [8, 40, 200])
def test_numbers_with_a_rate_of_their_own_are_names(count: int) -> None:
    values = draw(count)
    rates = np.where(values % 4 < 2, 0.1, 0.9)
    assert act_as_names(values, outcomes_of(values, rates))
    assert not act_as_names(values, outcomes_of(values, np.full(len(values), 0.5)))


def test_names_are_told_of_classes_and_of_quantities() -> None:
    values = draw(12)
    means = np.random.default_rng(4).permutation(12)[values.astype(int)]
    noise = np.random.default_rng(5).normal(0, 2, len(values))
    sites = np.zeros(len(values), np.int64)
    quantity = np.exp(means + noise)  # ranks do not mind
    assert act_as_names(values, Outcomes.of(quantity, sites))
    classes = np.digitize(means + noise, [3.0, 8.0])
    assert act_as_names(values, Outcomes.of(classes, sites))
    assert len(Outcomes.of(np.arange(20) % 10, sites[:20]).numbers) == 7


@pytest.mark.parametrize(("rows", "count"), [(99, 12), (2_000, 4), (240, 60)])
def test_few_values_or_rows_tell_nothing(rows: int, count: int) -> None:
    values = draw(count, rows)
    rates = (values % 2) * 0.9
    assert not act_as_names(values, outcomes_of(values, rates))


def test_rows_without_a_number_do_not_count() -> None:
    values = draw(12)
    rates = np.random.default_rng(3).permutation(12)[values.astype(int)] / 11
    outcomes = outcomes_of(values, rates)
    values[::3] = np.nan
    assert act_as_names(values, outcomes)
    values[90:] = np.nan
    assert not act_as_names(values, outcomes)


def test_a_sites_own_rate_makes_no_names() -> None:
    ages = np.random.default_rng(6).normal(60, 15, 4_000).round()
    sites = np.repeat([0, 1], 2_000)
    ages[sites == 0] = (ages[sites == 0] / 5).round() * 5  # one site rounds to fives
    rates = np.where(sites == 0, 0.85, 0.15)
    assert not act_as_names(ages, outcomes_of(ages, rates, sites))
    assert act_as_names(ages, outcomes_of(ages, rates))


def test_a_shape_with_one_turn_leaves_what_a_search_finds() -> None:
    scipy_optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(7)
    for size in (1, 2, 5, 9):
        means = random.normal(size=size)
        counts = random.integers(1, 9, size)
        least = np.inf
        for sign in (1.0, -1.0):
            for turn in range(size + 1):
                parts = []
                for part, rises in ((slice(turn), True), (slice(turn, None), False)):
                    if len(means[part]):
                        fit = scipy_optimize.isotonic_regression(
                            sign * means[part], weights=counts[part], increasing=rises
                        )
                        parts.append(fit.x)
                rest = sign * means - np.concatenate(parts)
                least = min(least, float((counts * rest**2).sum()))
        assert leave_by_shapes(means, counts) == pytest.approx(least, abs=1e-9)


def test_of_many_rows_the_same_ones_are_drawn() -> None:
    is_usable = np.ones(MAX_ROWS + 10, np.bool_)
    is_usable[3] = False
    drawn = draw_rows(is_usable)
    assert len(drawn) == MAX_ROWS
    assert 3 not in drawn
    assert (np.diff(drawn) > 0).all()
    assert (drawn == draw_rows(is_usable)).all()


# Columns of codes ---------------------------------------------------------------------------------


def test_wards_that_act_as_names_are_asked_about(folder: Folder) -> None:
    there = folder(a=wards(0), b=wards(1))
    (question,) = asked(there, target="target")
    assert question.column == "ward"
    assert question.text.startswith("its numbers act as names, not as amounts; if so, say categ")
    assert question.text.endswith(" under [fields.ward]")
    text = inferred(there, target="target")
    assert text.count("# categories = [") == 1
    answered = parse_schema(text.replace("# categories", "categories"))
    assert len(answered.fields["ward"].categories) == 12
    assert load(str(there), text).questions == ()


def test_wards_without_an_effect_are_not_asked_about(folder: Folder) -> None:
    random = rows_of(9)
    cells = {"ward": random.integers(1, 40, ROWS).tolist()}
    target = random.choice(["no", "yes"], ROWS).tolist()
    assert asked(folder(a=table(**cells, target=target)), target="target") == ()


def visits(persons: int, named: str) -> str:
    """Return a table of six visits of each person, with one age and one outcome."""
    random = rows_of(3)
    lines = [f"{named},bmi,target,dose"]
    for person in range(persons):
        target = random.choice(["no", "yes"])
        bmi = int(random.integers(20, 60))
        lines += [f"P{person},{bmi},{target},{random.normal():.3f}" for _ in range(6)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("settings", [{"unit": "who"}, {}])
def test_a_person_counts_once(folder: Folder, settings: dict[str, str]) -> None:
    there = folder(a=visits(110, "who"), b=visits(110, "who"))
    assert "bmi" not in [each.column for each in asked(there, target="target", **settings)]
    values = np.repeat(draw(40, 110), 6)  # the same rows, each of another person
    target = np.repeat(np.random.default_rng(8).integers(0, 2, 110), 6)
    assert act_as_names(values, Outcomes.of(target, np.zeros(len(values), np.int64)))


@pytest.mark.parametrize(
    ("name", "cells", "is_asked"),
    [
        ("ward", ["001", "002", "013"], True),
        ("ward", ["01", "02", "10"], True),
        ("diag", ["250.00", "401.9", "486"], True),
        ("diagnosis", ["008.45", "401.90", "486.10"], True),
        ("gender_concept_id", ["8507", "8532", "8551"], True),
        ("ICD9_CODE", ["4019", "4280", "5849"], True),
        ("PLZ", ["10115", "80331", "20095"], True),
        ("sex_code", ["1", "2"], False),
        ("month", ["01", "02", "10"], False),
        ("lactate", ["0.120", "1.20", "12.0"], False),
        ("dose", ["2.50", "0.75", "1.00"], False),
        ("weight", ["70.5", "71", "80.25"], False),
        ("encode", ["3", "4", "5"], False),
    ],
)
def test_codes_are_told_by_their_writing(
    folder: Folder, name: str, cells: list[str], is_asked: bool
) -> None:
    column = np.random.default_rng(0).choice(cells, 60).tolist()
    target = [("no", "yes")[k % 2] for k in range(60)]
    there = folder(a=table(**{name: column}, target=target))
    assert [each.column for each in asked(there, target="target")] == [name] * is_asked
    if is_asked:
        text = inferred(there, target="target").replace("# categories", "categories")
        assert len(parse_schema(text).fields[name].categories) == len(cells)
        assert describe_data(RunSettings.of(config(there, text)))["faults"] == []


def test_a_code_without_its_zeros_is_the_same(folder: Folder) -> None:
    target = [("no", "yes")[k % 2] for k in range(60)]
    padded = [("001", "002", "012")[k % 3] for k in range(60)]
    there = folder(
        a=table(ward=padded, target=target),
        b=table(ward=[str(int(each)) for each in padded], target=target),
    )
    text = inferred(there, target="target")
    for key in ("categories", "spellings"):
        text = text.replace(f"# {key}", key)
    ward = parse_schema(text).fields["ward"]
    assert ward.categories == ("001", "002", "012")
    assert ward.spellings == {"001": ("1",), "002": ("2",), "012": ("12",)}
    assert describe_data(RunSettings.of(config(there, text)))["faults"] == []


def test_codes_with_letters_among_them_are_categories(folder: Folder) -> None:
    cells = ["250.00", "401.9", "486", "V45.81", "E849.0"]
    column = np.random.default_rng(0).choice(cells, 200).tolist()
    target = [("no", "yes")[k % 2] for k in range(200)]
    schema = parse_schema(inferred(folder(a=table(diag=column, target=target)), target="target"))
    assert {*schema.fields["diag"].categories} == {"250", "401.9", "486", "V45.81", "E849.0"}


def test_too_many_codes_are_asked_about_without_a_line(folder: Folder) -> None:
    codes = [f"{code:05}" for code in range(0, 60_000, 40)]
    target = [("no", "yes")[k % 2] for k in range(len(codes) * 2)]
    (question,) = asked(folder(a=table(zip=codes * 2, target=target)), target="target")
    assert "too many for categories" in question.text


# Columns that tell the site ------------------------------------------------------------------------


def with_site_values(values: dict[str, list[str]], rows: int = 60) -> dict[str, str]:
    """Return a table for each site, with a column of its values."""
    tables = {}
    for site, cells in values.items():
        random = np.random.default_rng(ord(site))
        column = random.choice(cells, rows).tolist()
        tables[site] = table(scanner=column, target=random.choice(["a", "b"], rows).tolist())
    return tables


@pytest.mark.parametrize(
    ("values", "is_asked"),
    [
        ({"a": ["GE1", "GE2"], "b": ["PH1"], "c": ["SIE1", "SIE2"]}, True),
        ({"a": ["11", "12", "13"], "b": ["21", "22"], "c": ["31", "32"]}, True),
        ({"a": ["ge1", "ge2"], "b": ["GE1", "GE2"]}, False),
        ({"a": ["GE1", "GE2"], "b": ["GE1", "PH1"], "c": ["SIE1", "SIE2"]}, False),
        ({"a": ["GE1", "GE2"]}, False),
    ],
)
def test_values_of_one_site_tell_it(
    folder: Folder, values: dict[str, list[str]], is_asked: bool
) -> None:
    questions = asked(folder(**with_site_values(values)), target="target")
    assert [each.column for each in questions] == ["scanner"] * is_asked
    for each in questions:
        assert 'put "scanner" in ignore' in each.text


@pytest.mark.parametrize(("sites", "count"), [("abc", 1), ("ac", 3)])
def test_what_tells_the_site_is_said_once(folder: Folder, sites: str, count: int) -> None:
    """Of three sites or more; of two, one may write the other's categories in other words."""
    apart = {"a": ["GE1", "GE2"], "b": ["PH1"], "c": ["SIE1", "SIE2"]}
    there = folder(**with_site_values({site: apart[site] for site in sites}))
    remarks = describe_data(RunSettings.of(config(there, target="target")))["remarks"]
    assert [row["column"] for row in remarks] == ["scanner"] * count


@pytest.mark.parametrize(("different", "is_asked"), [(60, False), (6, True)])
def test_a_number_of_rows_is_not_asked_about_as_a_code(
    folder: Folder, different: int, is_asked: bool
) -> None:
    """It is no input, whatever it is."""
    target = np.random.default_rng(0).choice(["no", "yes"], 60).tolist()
    cases = [f"{k % different:06}" for k in range(60)]
    there = folder(**{site: table(case=cases, target=target) for site in ("a", "b")})
    assert [each.column for each in asked(there, target="target")] == ["case"] * is_asked


def test_a_column_of_the_sites_of_one_file_is_told(folder: Folder) -> None:
    tables = with_site_values({"a": ["GE1", "GE2"], "b": ["PH1", "PH2"]})
    lines = ["site," + tables["a"].splitlines()[0]]
    for site, text in tables.items():
        lines += [f"{site},{line}" for line in text.splitlines()[1:]]
    there = folder(all="\n".join(lines) + "\n")
    assert [each.column for each in asked(there, target="target", client="site")] == ["scanner"]


def survey(values: np.ndarray, sites: np.ndarray) -> bool:
    """Return whether values name the sites, which are ascending."""
    rows = [np.flatnonzero(sites == site) for site in np.unique(sites)]
    about = Sites(
        [str(place) for place in range(len(rows))],
        [],
        rows,
        np.cumsum([len(each) for each in rows]),
    )
    column = Column(
        sites=about,
        codes=np.arange(len(values)),
        numbers=np.append(values, np.nan),
        is_missing=np.append(np.isnan(values), True),
        texts={},
        words={},
        marks={},
        is_there=np.ones(len(rows), np.bool_),
    )
    return names_the_site(column)


@pytest.mark.parametrize("rows", [600, MANY_ROWS + 1_000])
def test_numbers_that_tell_the_site_are_found_in_many_rows(rows: int) -> None:
    random = np.random.default_rng(0)
    sites = np.repeat([0, 1, 2], rows // 3)
    values = random.integers(0, rows // 10, len(sites)) * 3.0
    assert survey(values + sites, sites)
    assert not survey(values, sites)
    assert not survey(random.normal(size=len(sites)), sites)  # all differ
    most = np.where(random.random(len(sites)) < 0.9, values + sites, 1.0)
    assert not survey(most, sites)  # a tenth is at all sites
    half = np.where(random.random(len(sites)) < 0.7, random.normal(size=len(sites)), values + sites)
    assert not survey(half, sites)
    with_gaps = np.where(random.random(len(sites)) < 0.7, np.nan, values + sites)
    assert survey(with_gaps, sites)


# Words for a missing value -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        *("#WERT!", "#¡VALOR!", "#NOMBRE?", "#N/D", "#NV", "#DIV/0!", "#BEZUG!", "UNK", "ASKU"),
        *("k.A.", "k. A.", "entfällt", "Keine Angabe", "not done", "Refused", "inconnu"),
        *("non renseigné", "sconosciuto", "non eseguito", "desconocido", "NS/NC", "n.v.t."),
        *("não informado", "onbekend", "(unknown)", "-", "–", "none", "NI"),
    ],
)
def test_words_may_mean_a_missing_value(word: str) -> None:
    assert may_mean_missing(normalise(word))


@pytest.mark.parametrize(
    "word", ["OTH", "other", "no", "nein", "never", "#1", "# of 3", "negative", "0", "normal", "A-"]
)
def test_other_words_are_answers(word: str) -> None:
    assert not may_mean_missing(normalise(word))


def with_words(words: dict[str, list[str]], rows: int = 100) -> dict[str, str]:
    """Return a table for each site, with words in a tenth of two columns and of the target."""
    tables = {}
    for site, own in words.items():
        random = np.random.default_rng(len(site))
        columns = {
            "pressure": random.integers(90, 170, rows).astype(str).tolist(),
            "smoking": random.choice(["never", "former", "current"], rows).tolist(),
            "died": random.choice(["yes", "no"], rows).tolist(),
        }
        for place, name in enumerate(columns):
            for k in range(place, rows, 10):
                columns[name][k] = own[k % len(own)]
        tables[site] = table(**columns)
    return tables


def test_words_are_asked_about_and_faults_of_a_target(folder: Folder) -> None:
    there = folder(**with_words({"a": ["UNK", "ASKU"], "bb": ["k.A.", "#WERT!"], "ccc": ["nr"]}))
    questions = {each.column: each.text for each in asked(there, target="died", missing="drop")}
    assert [*questions] == ["pressure", "smoking"]
    assert questions["pressure"].startswith("read as missing values: 'k.a.', 'nr', 'unk'; is")
    assert (
        'say categories = ["current", "former", "never"] and missingValues' in questions["smoking"]
    )
    text = inferred(there, target="died")
    schema = parse_schema(text)
    assert schema.fields["died"].categories == ("no", "yes")
    assert "fields.died.missingValues = ['UNK']" in text
    faults = describe_data(RunSettings.of(config(there, text)))["faults"]
    assert "UNK" in [row["value"] for row in faults if row["column"] == "died"]


def test_the_answers_to_words_are_followed(folder: Folder) -> None:
    there = folder(**with_words({"a": ["UNK"], "bb": ["ASKU"], "ccc": ["not done"]}))
    text = inferred(there, target="died", missing="drop")
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("# categories") or line.startswith("# missingValues"):
            kept.append(line[2:])
        elif not (line.startswith("categories") and kept[-1].startswith("missingValues")):
            kept.append(line)
    answered = "\n".join(kept).replace(
        "[fields.died]", '[fields.died]\nmissingValues = ["UNK", "ASKU", "not done"]'
    )
    assert parse_schema(answered).fields["smoking"].categories == ("current", "former", "never")
    assert describe_data(RunSettings.of(config(there, answered)))["faults"] == []


@pytest.mark.parametrize(
    ("classes", "faults"),
    [
        ([["yes", "no"], ["yes", "no"], [*["yes", "no"] * 15, "odd"]], ["odd"]),
        ([["yes", "no"], ["yes", "no"], ["yes", "no", "odd"]], []),  # in a third of its rows
        ([["yes", "no"], [*["yes", "no"] * 15, "odd"], [*["yes", "no"] * 15, "odd"]], []),
        ([["yes", "no"], ["yes", "no"], [*["yes", "no"] * 15, "UNK"]], ["UNK"]),
        ([["yes", "UNK"], ["yes", "UNK"]], []),  # nothing else would be left
        ([["yes", "no", "UNK"], ["yes", "no", "UNK"]], []),  # in a third of the rows
    ],
)
def test_what_one_site_has_in_few_rows_is_no_class(
    folder: Folder, classes: list[list[str]], faults: list[str]
) -> None:
    files = {}
    for site, own in enumerate(classes):
        files[f"s{site}"] = table(target=[own[k % len(own)] for k in range(93)])
    text = inferred(folder(**files), target="target")
    known = {each for own in classes for each in own}
    assert {*parse_schema(text).fields["target"].categories} == known - {*faults}
    for each in faults:
        assert f"if it means a missing value, fields.target.missingValues = ['{each}']" in text


# Runs ---------------------------------------------------------------------------------------------


def test_a_run_says_how_many_questions_there_are(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    there = folder(a=wards(0), b=wards(1))
    check_data(RunSettings.of(config(there, target="target")))
    assert f"1 question (ward) on the data: see fairbloom data {there}" in caplog.text
    caplog.clear()
    text = inferred(there, target="target").replace("# categories", "categories")
    check_data(RunSettings.of(config(there, text)))
    assert "question" not in caplog.text
    caplog.clear()
    codes = ["01", "02", "03"] * 40
    both = table(ward=codes, zip=codes, target=["no", "yes"] * 60)
    check_data(RunSettings.of(config(folder(a=both, b=both), target="target")))
    assert "2 questions and 1 remark on the data: see" in caplog.text  # equal rows


def test_data_show_the_questions(folder: Folder) -> None:
    there = folder(a=wards(0), b=wards(1))
    rows = describe_data(RunSettings.of(config(there, target="target")))["remarks"]
    (question,) = asked(there, target="target")
    assert {"column": "ward", "client": "", "remark": question.text} in rows
