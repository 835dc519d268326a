"""Numbers that lie apart from the rest of a column, and codes after a hole in a scale."""

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tables.comparison import compare
from fairbloom.tables.far_values import find_beyond, find_codes_of_scale
from fairbloom.tables.profiles import Cells, profile
from fairbloom.tables.schema import Field
from fairbloom.tasks import describe_data

from .helpers import Folder, config

AGES = np.random.default_rng(0).normal(60, 12, 400).round().clip(18, 95)


def with_values(numbers: np.ndarray, *values: float) -> np.ndarray:
    """Return numbers with some values in place of the first ones."""
    changed = numbers.copy()
    changed[: len(values)] = values
    return changed


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([300.0] * 20, True),
        ([300.0, 301.0, 304.0] * 5, True),
        ([300.0] * 3, True),  # three are 0.75 % of the rows
        ([300.0] * 2, False),
        ([300.0, 350.0] * 10, False),  # not near each other
        ([190.0] * 20, False),  # not beyond 1.5 ranges
        ([300.0] * 90, False),  # more than a fifth
        ([], False),
    ],
)
def test_a_group_beyond_the_rest_is_found(values: list[float], is_found: bool, sign: float) -> None:
    found = find_beyond(sign * with_values(AGES, *values))
    assert found.tolist() == sorted(sign * each for each in values) * is_found


def test_half_a_percent_of_the_rows_must_lie_apart() -> None:
    ages = np.tile(AGES, 5)
    assert len(find_beyond(with_values(ages, *[300.0] * 9))) == 0
    assert len(find_beyond(with_values(ages, *[300.0] * 10))) == 10


@pytest.mark.parametrize("kinds", [9, 10])
def test_the_rest_has_ten_values(kinds: int) -> None:
    numbers = np.resize(np.arange(kinds), 200).astype(float)
    assert len(find_beyond(with_values(numbers, *[90.0] * 10))) == 10 * (kinds == 10)


@pytest.mark.parametrize("rows", [60, 400, 5_000])
@pytest.mark.parametrize("spread", [1.2, 1.5, 2.5])
def test_heavy_tails_are_no_group(rows: int, spread: float) -> None:
    random = np.random.default_rng(rows)
    for _ in range(20):
        assert len(find_beyond(np.exp(random.normal(3, spread, rows)).round(2))) == 0


@pytest.mark.parametrize(
    ("counts", "codes"),
    [
        ({1: 90, 2: 90, 3: 90, 4: 90, 5: 90, 8: 5, 9: 7}, {8: 5, 9: 7}),
        ({0: 90, 1: 90, 2: 90, 3: 90, 99: 8}, {99: 8}),
        ({1: 90, 2: 90, 3: 90, 777: 8}, {777: 8}),
        ({1: 90, 2: 90, 3: 90, 6: 8}, {}),  # is no usual code
        ({1: 90, 2: 90, 3: 90, 6: 8, 9: 8}, {}),  # not all are
        ({1: 90, 2: 90, 9: 8}, {}),  # two steps
        ({2: 90, 3: 90, 4: 90, 9: 8}, {}),  # begins with 2
        ({1: 90, 2: 90, 3: 2, 9: 8}, {}),  # a rare step
        ({1: 90, 2: 90, 3: 90, 9: 2}, {}),  # a rare code
        ({1: 30, 2: 30, 3: 30, 9: 90}, {}),  # half of all
        (dict.fromkeys(range(1, 10), 20), {}),  # no hole
        ({1: 90, 2.5: 9, 2: 90, 3: 90, 9: 8}, {}),  # no whole number
        ({-1: 90, 0: 90, 1: 90, 2: 90, 9: 8}, {}),
        ({1: 2, 2: 3, 3: 3, 9: 3}, {}),  # eleven rows
        ({**dict.fromkeys(range(12), 20), 97: 5, 98: 5}, {}),  # fourteen numbers
        ({**dict.fromkeys(range(12), 20), 98: 5}, {98: 5}),
    ],
)
def test_codes_follow_a_hole_in_a_scale(counts: dict[float, int], codes: dict[float, int]) -> None:
    numbers = np.random.default_rng(0).permutation(np.repeat([*counts], [*counts.values()]))
    assert dict(find_codes_of_scale(numbers.astype(float))) == codes


def found_in(numbers: np.ndarray, floor: int = 1) -> list[tuple[str, float, int]]:
    """Return what the profile of a column has found."""
    cells = {"x": Cells.of(Field(type="number"), numbers)}
    return [(each.kind, each.number, each.rows) for each in profile(cells, floor)["x"].found]


def test_profiles_have_far_values() -> None:
    assert found_in(with_values(AGES, *[300.0] * 12)) == [("far", 300.0, 12)]
    assert found_in(with_values(AGES, *[300.0] * 12), 5) == [("far", 300.0, 10)]
    several = with_values(AGES, *[300.0, 302.0] * 6)
    assert found_in(several) == [("above", 300.0, 12)]
    assert found_in(-several) == [("below", -300.0, 12)]
    assert found_in(several, 5) == [("far", 300.0, 5), ("far", 302.0, 5)]
    assert found_in(several, 10) == []  # no number that few persons have leaves
    scale = np.repeat([1.0, 2.0, 3.0, 4.0, 8.0], [90, 90, 90, 90, 8])
    assert found_in(scale) == [("scale", 8.0, 8)]
    assert found_in(with_values(AGES, *[999.0] * 12)) == [("far", 999.0, 12)]  # once


def test_far_values_are_said_with_a_line() -> None:
    columns = {}
    for site, code in (("a", 300.0), ("b", 301.0)):
        numbers = with_values(AGES, *[300.0, code] * 6)
        columns[site] = profile({"x": Cells.of(Field(type="number"), numbers)})["x"]
    found = {each.kind: each for each in compare({"x": columns})}
    assert found["far"].say() == "300 in 12 rows, far from the others"
    assert found["far"].change_field() == {"missingValues": '["300"]'}
    assert found["above"].say().startswith("300 or more in 12 rows, far from the others")
    assert found["above"].change_field() == {}
    scale = np.repeat([1.0, 2.0, 3.0, 4.0, 8.0], [90, 90, 90, 90, 8])
    of_scale = profile({"x": Cells.of(Field(type="number"), scale)})["x"]
    (code,) = compare({"x": {"a": of_scale}})
    assert code.say().startswith("8 in 8 rows, and numbers next to it are missing")
    assert code.change_field() == {"missingValues": '["8"]'}


def test_data_say_far_values(folder: Folder) -> None:
    tables = {}
    for site in ("a", "b", "c"):
        ages = with_values(np.random.default_rng(ord(site)).permutation(AGES), *[300.0] * 9)
        lines = [f"{age:g},{'yes' if place % 3 else 'no'}" for place, age in enumerate(ages)]
        tables[site] = "\n".join(["age,target", *lines]) + "\n"
    remarks = describe_data(RunSettings.of(config(folder(**tables))))["remarks"]
    said = [each["remark"] for each in remarks if each["column"] == "age"]
    line = 'if so, say missingValues = ["300"] under [fields.age]'
    assert said == [f"300 in 27 rows, far from the others; {line}"]


def test_sites_with_other_far_values_are_said_once() -> None:
    columns = {}
    for site, nearest in (("a", 300.0), ("b", 301.0), ("c", 302.0)):
        numbers = with_values(AGES, *[nearest, 303.0, 304.0] * 10)
        columns[site] = profile({"x": Cells.of(Field(type="number"), numbers)})["x"]
        assert max(each or 0.0 for each in columns[site].quantiles) < 100.0
    (above,) = compare({"x": columns})
    assert (above.kind, above.sites) == ("above", ("a", "b", "c"))
    assert above.say().startswith("300 or more in 90 rows")
