"""A profile depends on no fewer rows than its floor, and says what a person needs."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from fairbloom.tables.conversions import CONVERSIONS, OF_FACTORS
from fairbloom.tables.profiles import (
    MAX_LISTED,
    PROBABILITIES,
    Cells,
    ColumnProfile,
    Found,
    measure_quantiles,
    pattern_of,
    profile,
)
from fairbloom.tables.schema import Field
from fairbloom.tables.two_units import find_two_units

FLOORS = (1, 5, 20)


def numbers_of(numbers: NDArray[np.float64] | list[float]) -> Cells:
    return Cells.of(Field(type="number"), np.array(numbers, np.float64))


def texts_of(texts: list[str]) -> Cells:
    names = sorted({*texts} - {""})
    places = [names.index(text) if text else -1 for text in texts]
    return Cells.of(Field(type="string", categories=tuple(names)), np.array(places, np.int32))


def profile_of(cells: Cells, floor: int = 1) -> ColumnProfile:
    return profile({"x": cells}, floor)["x"]


columns = st.lists(st.sampled_from([*"abcdefg", ""]), min_size=1, max_size=120).map(texts_of)
columns |= st.lists(
    st.integers(-30, 99) | st.sampled_from([np.nan, 999.0, 0.0]), min_size=1, max_size=120
).map(numbers_of)


@given(cells=columns, floor=st.sampled_from(FLOORS))
def test_every_count_is_a_multiple_of_the_floor(cells: Cells, floor: int) -> None:
    found = profile_of(cells, floor)
    listed = [*found.values.values(), *found.missing.values(), *found.patterns.values()]
    listed += [each.rows for each in found.found]
    assert all(count >= floor for count in listed)
    assert all(count % floor == 0 for count in [*listed, found.rows, found.others])
    assert not (found.values and any(each is not None for each in found.quantiles))


@given(cells=columns, floor=st.sampled_from((5, 20)), data=st.data())
def test_a_row_less_changes_a_count_by_one_step(
    cells: Cells, floor: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(cells.codes) - 1))
    rest = Cells(
        np.delete(cells.numbers, row), np.delete(cells.codes, row), cells.texts, cells.missing
    )
    with_row, without = (profile_of(each, floor).values for each in (cells, rest))
    if with_row and without:
        assert sum(with_row.values()) - sum(without.values()) in (0, floor)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_quantile_has_the_floor_beyond_on_both_sides(floor: int) -> None:
    random = np.random.default_rng(0)
    for rows in range(1, 450, 7):
        numbers = random.permutation(np.arange(rows) ** 1.5)
        ordered = np.sort(numbers)
        for share, given_one in zip(PROBABILITIES, measure_quantiles(numbers, floor), strict=True):
            rank = share * (rows - 1)
            beyond = min(np.floor(rank), rows - 1 - np.ceil(rank))
            assert (given_one is not None) == (beyond >= floor)
            if given_one is not None:
                starts = np.arange(rows - floor + 1)
                near = starts[np.abs(starts + (floor - 1) / 2 - rank) <= 0.5]
                means = [ordered[start : start + floor].mean() for start in near]
                assert any(given_one == pytest.approx(mean, rel=0.005) for mean in means)
                assert floor == 1 or given_one == float(f"{given_one:.3g}")
                assert floor == 1 or ordered[0] < given_one < ordered[-1]


@pytest.mark.parametrize(("floor", "three", "all_seven"), [(5, 21, 101), (20, 81, 401)])
def test_quantiles_begin_with_enough_rows(floor: int, three: int, all_seven: int) -> None:
    counts = {
        rows: sum(each is not None for each in measure_quantiles(np.arange(float(rows)), floor))
        for rows in (three - 1, three, all_seven - 1, all_seven)
    }
    assert counts[three] >= 3 > counts[three - 1]
    assert counts[all_seven] == 7 > counts[all_seven - 1]


# Of 121 numbers, the window of the lowest quantile has the places 4 to 8, counted from 0.
@pytest.mark.parametrize(
    ("low", "lowest"),
    [
        ([0.01, 0.02, 0.03, *[0.25] * 5, 36.0], 0.25),  # four of them, and five in all
        ([0.01, 0.02, 0.03, 0.04, *[0.25] * 4, 36.0], 7.4),  # nobody knows that they are four
        ([2.0] * 7 + [3.0] * 6, 2.0),  # the nearer to the rank, 6
        ([2.0] * 6 + [3.0] * 6, 3.0),
        ([2.0] * 6 + [3.0] * 4, 2.0),
    ],
)
def test_a_number_that_the_floor_has_stands_for_its_window(low: list[float], lowest: float) -> None:
    numbers = np.array([*low, *np.arange(200.0, 321.0 - len(low))])
    assert measure_quantiles(numbers, 5)[0] == pytest.approx(lowest, rel=0.01)


@given(
    numbers=st.lists(st.sampled_from([0.0, 0.5, 1.0, *range(2, 60)]), min_size=21, max_size=200),
    floor=st.sampled_from((5, 20)),
)
def test_a_window_tells_of_no_number_beside_common_ones(numbers: list[float], floor: int) -> None:
    ordered = np.sort(numbers)
    common = {each for each in numbers if numbers.count(each) >= floor}
    given_ones = measure_quantiles(np.array(numbers), floor)
    assert [*filter(None, given_ones)] == sorted(filter(None, given_ones))
    for share, found in zip(PROBABILITIES, given_ones, strict=True):
        if found is not None:
            first = round(share * (len(numbers) - 1) - (floor - 1) / 2)
            window = ordered[first : first + floor].tolist()
            inside = common.intersection(window)
            assert found in inside or (not inside and found == float(f"{np.mean(window):.3g}"))


def test_few_numbers_are_listed_and_many_are_not() -> None:
    few = profile_of(numbers_of([k % 20 for k in range(60)]))
    assert (len(few.values), few.quantiles) == (20, ())
    many = profile_of(numbers_of([k % 21 for k in range(60)]))
    assert (many.values, many.others, len(many.quantiles)) == ({}, 0, 7)


def test_values_are_listed_by_their_rows_and_the_rest_is_a_count() -> None:
    cells = texts_of(["a"] * 12 + ["b"] * 7 + ["c"] * 4 + ["d"] * 4 + [""] * 11)
    found = profile_of(cells, 5)
    assert found.values == {"a": 10, "b": 5}
    assert found.others == 5  # c and d, rounded down
    assert (found.rows, found.missing) == (35, {"": 10})
    crowd = texts_of([f"t{k}" for k in range(MAX_LISTED + 20) for _ in range(5)])
    assert len(profile_of(crowd, 5).values) == MAX_LISTED
    assert len(profile_of(crowd, 1).values) == MAX_LISTED + 20


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("4.2 H", "9.9 a"), ("4E1", "9a9"), ("2024-03-17", "9999-99-99"), ("Ω 5" * 9, "a 9a 9a 9a 9")],
)
def test_a_pattern_has_no_sign_of_a_text(text: str, pattern: str) -> None:
    assert pattern_of(text) == pattern


HEIGHTS = [150.0 + k for k in range(40)]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        (HEIGHTS, []),
        ([*HEIGHTS, 999.0], []),  # once may be a mistake, and no code
        ([*HEIGHTS, 999.0, 999.0], [("far", 999.0, 2)]),
        ([*HEIGHTS, 199.0, 199.0], []),  # no number that stands for nothing
        ([*HEIGHTS, -9.0, -9.0], [("far", -9.0, 2)]),
        ([0.5 * k for k in range(40)] + [-1.0, -1.0], [("negative", -1.0, 2)]),
        ([0.5 * k for k in range(40)] + [-1.0, -2.0], []),
        ([0.5 * k for k in range(40)] + [-1.5, -1.5], []),
        ([*HEIGHTS, 0.0, 0.0], [("zero", 0.0, 2)]),
        ([*HEIGHTS, 0.0], []),
        ([*map(float, range(40)), 0.0], []),  # 1, 2 and 3 are near
    ],
)
def test_numbers_that_stand_for_nothing_are_found(
    numbers: list[float], found: list[tuple[str, float, int]]
) -> None:
    profiled = profile_of(numbers_of(numbers))
    assert [(each.kind, each.number, each.rows) for each in profiled.found] == found
    assert not profile_of(numbers_of(numbers), 5).found


def test_codes_do_not_count_as_numbers() -> None:
    assert profile_of(numbers_of([*HEIGHTS, *[999.0] * 9])).quantiles == (
        profile_of(numbers_of(HEIGHTS)).quantiles
    )


@pytest.mark.parametrize(
    ("share", "found"), [(0.5, True), (0.2, True), (0.05, False)], ids=["half", "a fifth", "few"]
)
def test_columns_of_which_one_is_filled_are_found(share: float, found: bool) -> None:
    first = int(share * 100)
    cells = {
        "miles": numbers_of([1.0] * first + [np.nan] * (100 - first)),
        "km": numbers_of([np.nan] * first + [2.0] * (100 - first)),
        "age": numbers_of(np.arange(100.0)),
    }
    about = profile(cells)["miles"].found
    assert [(each.kind, each.column) for each in about] == [("exclusive", "km")] * found
    assert not profile(cells)["age"].found
    cells["km"].numbers[:first] = 3.0  # both are filled
    assert not profile(cells)["miles"].found


@pytest.mark.parametrize("rows", [60, 6_000])
@pytest.mark.parametrize(
    "factor", [way.factor for way in CONVERSIONS if way.factor >= 4 and not way.offset]
)
def test_two_units_are_found_by_their_ratio(factor: float, rows: int) -> None:
    random = np.random.default_rng(rows)
    numbers = random.normal(100, 12, rows)
    numbers[::2] *= factor
    found = find_two_units(numbers, [])
    assert found is not None
    of_name = [way.factor for way in OF_FACTORS if way.about == found.units]
    assert any(each == pytest.approx(factor, rel=0.1) for each in of_name)
    assert found.rows == pytest.approx(rows / 2, rel=0.05)
    told = (np.arange(rows) % 2).astype(np.int64)
    assert find_two_units(numbers, [told]) is None
    assert find_two_units(numbers, [random.permutation(told)]) is not None


@pytest.mark.parametrize(("ratio", "rows"), [(6.68, 1000), (5.0, 400), (1.0, 400), (38.67, 18)])
def test_another_ratio_is_no_second_unit(ratio: float, rows: int) -> None:
    random = np.random.default_rng(rows)
    numbers = random.normal(100, 12, rows)
    numbers[::2] *= ratio
    assert find_two_units(numbers, []) is None


def test_two_units_are_named_and_no_patient_moves_them() -> None:
    random = np.random.default_rng(2)
    numbers = random.normal(72.0, 6.0, 102).round(1)
    numbers[61:] = (2.2046 * numbers[61:]).round(1)
    said = profile_of(numbers_of(numbers), 5).found
    assert said == (Found("two-units", 40, units="lb and kg"),)
    for row in range(len(numbers)):
        moved = numbers.copy()
        moved[row] += 0.3
        assert profile_of(numbers_of(moved), 5).found == said


def test_columns_of_texts_go_on_in_another_one() -> None:
    half = ["x", "y"] * 20
    cells = {"old": texts_of([*half, *[""] * 40]), "new": texts_of([*[""] * 40, *half])}
    (found,) = profile(cells)["old"].found
    assert (found.kind, found.column, found.rows) == ("exclusive", "new", 40)
    cells["new"] = texts_of([*[""] * 30, "x", *half, *[""] * 9])  # one row has both
    assert not profile(cells)["old"].found
