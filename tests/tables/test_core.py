"""A core decides who stands out: one odd site more hides no other, nor does the order of sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from fairbloom.tables.comparison import Heap, Sorts, compare
from fairbloom.tables.core import Chosen, Compared, Distances, Split, split
from fairbloom.tables.findings import Explained, Finding, Quiet
from fairbloom.tables.profiles import Cells, profile
from fairbloom.tables.schema import Field

from .test_profiles import numbers_of, texts_of


@dataclass(frozen=True, eq=False)
class Points(Compared):
    """Sites on a line; a group's mixture is its mean."""

    floor = 1.0
    times = 3.0
    usual_of_few = 0.25

    places: Distances

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.places)

    def pairs(self) -> Distances:
        """Return the distance of each from each."""
        return np.abs(self.places[:, None] - self.places)

    def measure(self, group: Chosen) -> Distances:
        """Return the distance of each from the mean of a group."""
        rest = group.sum() - group
        total = self.places[group].sum() - np.where(group, self.places, 0.0)
        return np.abs(self.places - total / np.where(rest, rest, np.nan))


def split_points(places: Sequence[float]) -> Split:
    return split(Points(np.array(places, np.float64)))


def names(found: Split) -> list[list[int]]:
    return [group.tolist() for group in found.groups]


@pytest.mark.parametrize(
    ("places", "groups"),
    [
        ([0, 0.1, 0.2], []),
        ([0, 0.1, 9], [[2]]),
        ([0, 0.1, 0.2, 9, 9.1], [[3, 4]]),  # those alike are one group
        ([0, 0.1, 0.2, 9, -9], [[3], [4]]),
        ([0, 0, 9, 9], [[2, 3]]),
        ([0, 2, 4, 6, 8, 10], []),  # sites that differ by nature
        ([0, 9], [[1]]),
        ([3], []),
    ],
)
def test_who_is_far_from_the_half_stands_out(places: list[float], groups: list[list[int]]) -> None:
    found = split_points(places)
    assert names(found) == groups
    assert found.agrees
    assert all(size > 1.0 for size in found.sizes)


def test_of_three_that_all_differ_none_is_odd() -> None:
    found = split_points([0, 9, 30])
    assert not found.agrees
    assert len(names(found)) == 1
    assert split_points([0, 0.9, 30]).agrees
    assert split_points([0, 9, 30, 60]).agrees


def test_who_may_not_lead_is_in_no_core() -> None:
    sites = Points(np.array([0.0, 0.1, 5.0, 5.0, 5.0]))
    found = split(sites, np.array([True, True, False, False, False]))
    assert found.core.tolist() == [True, True, False, False, False]
    assert names(found) == [[2, 3, 4]]


places = st.lists(st.floats(-50, 50), min_size=1, max_size=25)


@given(places=places)
def test_a_core_has_at_least_half_and_no_odd_site(places: list[float]) -> None:
    found = split_points(places)
    outside = [place for group in names(found) for place in group]
    assert found.core.sum() * 2 >= len(places)
    assert len({*outside}) == len(outside)
    assert not found.core[outside].any()


@given(spread=st.lists(st.floats(-0.4, 0.4), min_size=3, max_size=20), more=st.floats(-1e6, 1e6))
def test_one_site_more_silences_no_odd_one(spread: list[float], more: float) -> None:
    """Of sites that agree with each other, and of one that is far from them."""
    assert [len(spread)] in names(split_points([*spread, 1e4]))
    found = split_points([*spread, 1e4, more])
    assert any(len(spread) in group for group in names(found))


# Findings -----------------------------------------------------------------------------------------


def numbers(center: float, seed: int, rows: int = 200) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(center, center / 10, rows)


def found(cells: Mapping[str, Cells], floor: int = 1) -> list[Finding]:
    columns = {site: profile({"x": each}, floor)["x"] for site, each in cells.items()}
    return compare({"x": columns})


def accused(cells: Mapping[str, Cells], floor: int = 1) -> dict[tuple[str, ...], str]:
    """Return the kinds of findings on sites."""
    return {each.sites: each.kind for each in found(cells, floor) if not isinstance(each, Quiet)}


HONEST = {site: numbers(120, seed) for seed, site in enumerate("abc")}
TWICE = {
    "one unit": ({"d": 18.016, "e": 18.016}, {("d", "e"): "numbers"}),
    "two units": ({"d": 18.016, "e": 0.4536}, {("d",): "numbers", ("e",): "numbers"}),
    "a unit and zeros": ({"d": 18.016, "e": 0.0}, {("d",): "numbers", ("e",): "heap"}),
}


@pytest.mark.parametrize("floor", [1, 5])
@pytest.mark.parametrize(("factors", "named"), TWICE.values(), ids=[*TWICE])
def test_two_odd_sites_of_five_are_both_found(
    factors: Mapping[str, float], named: Mapping[tuple[str, ...], str], floor: int
) -> None:
    odd = {site: numbers(120, 7) * factor for site, factor in factors.items()}
    cells = {site: numbers_of(each) for site, each in {**HONEST, **odd}.items()}
    assert accused(cells, floor) == named


@pytest.mark.parametrize("more", [0.0, 1.0, 2.5, 40.0, 1e5])
def test_another_unit_is_found_beside_any_other_site(more: float) -> None:
    cells = {site: numbers_of(each) for site, each in HONEST.items()}
    cells["odd"] = numbers_of(numbers(120, 5) * 18.016)
    alone = [each for each in found(cells) if each.sites == ("odd",)]
    assert isinstance(alone[0], Explained)
    cells["more"] = numbers_of(numbers(120, 6) * more)
    (finding,) = (each for each in found(cells) if "odd" in each.sites)
    assert isinstance(finding, Explained)
    assert finding.explained_by == alone[0].explained_by
    assert not {*"abc"}.intersection(chain_sites(found(cells)))


def chain_sites(findings: Sequence[Finding]) -> list[str]:
    return [site for each in findings for site in each.sites]


def test_one_in_mmol_is_found_among_three_beside_a_dozen_zeros() -> None:
    glucose = {site: numbers(100, seed, rows=60) for seed, site in enumerate(("bern", "genf"))}
    cells = {site: numbers_of(each) for site, each in glucose.items()}
    cells["chur"] = numbers_of(numbers(100, 9, rows=60) / 18.016)
    assert accused(cells) == {("chur",): "numbers"}
    cells["davos"] = numbers_of([0.0] * 12)
    assert accused(cells) == {("chur",): "numbers", ("davos",): "heap"}


def test_half_of_the_sites_are_a_side_and_not_accused() -> None:
    cells = {site: numbers_of(numbers(120, seed)) for seed, site in enumerate("ab")}
    cells |= {site: numbers_of(numbers(120, seed) * 18.016) for seed, site in enumerate("cd")}
    (finding,) = found(cells)
    assert {*finding.sites} == {*"abcd"}
    assert finding.odd in (("a", "b"), ("c", "d"))


def test_three_of_which_no_two_agree_are_all_named() -> None:
    centers = {"a": 1.0, "b": 37.0, "c": 5_000.0}
    (finding,) = found({site: numbers_of(numbers(each, 3)) for site, each in centers.items()})
    assert {*finding.sites} == {*centers}
    assert finding.odd == ()


def test_many_odd_sites_without_a_cause_are_sorts() -> None:
    """At most two, or a fifth, of the sites stand out by themselves."""
    cells = {f"s{place}": numbers_of(numbers(120, place)) for place in range(6)}
    for count, kinds in ((2, {"numbers"}), (3, {"sorts"})):
        odd = {f"o{place}": numbers_of(numbers(7.7 * 9**place, 1)) for place in range(3, 3 + count)}
        findings = found({**cells, **odd})
        assert {each.kind for each in findings} == kinds
        assert {*chain_sites(findings)} == {*odd}
    assert isinstance(findings[0], Sorts)
    assert findings[0].size == 0.0


@settings(max_examples=25)
@given(order=st.permutations(range(7)))
def test_the_order_of_sites_does_not_matter(order: list[int]) -> None:
    columns = [numbers_of(numbers(120, place)) for place in range(4)]
    columns += [
        numbers_of(numbers(120, place) * factor) for place, factor in enumerate((18, 18, 0))
    ]
    said = {each.sites: each.say() for each in found({f"s{k}": columns[k] for k in range(7)})}
    shuffled = found({f"s{k}": columns[k] for k in order})
    assert {each.sites: each.say() for each in shuffled} == said


# One value ----------------------------------------------------------------------------------------


def test_what_has_one_value_at_most_sites_is_not_compared() -> None:
    years = {site: texts_of([site] * 40) for site in "abcd"}
    assert not found(years)
    mixed = {site: texts_of(["u", "v"] * 20) for site in "efgh"}
    assert accused({**mixed, "a": years["a"]}) == {("a",): "categories"}
    levels = {site: numbers_of([float(ord(site))] * 40) for site in "abcd"}
    assert not found({**levels, "e": numbers_of(numbers(120, 1))})


@pytest.mark.parametrize(
    ("share", "elsewhere", "is_asked"),
    [(0.95, 0.0, True), (0.8, 0.0, True), (0.95, 0.3, True), (0.8, 0.3, False), (0.4, 0.0, False)],
)
def test_zeros_are_asked_about_where_they_are_unlike(
    share: float, elsewhere: float, is_asked: bool
) -> None:
    """If they fill nine tenths, or the median other site has none."""
    counts = {site: zeros_and_counts(elsewhere, 0.0) for site in "abc"}
    findings = found({**counts, "d": zeros_and_counts(share, 0.5)})
    asked = [each for each in findings if isinstance(each, Heap)]
    assert [each.sites for each in asked] == [("d",)] * is_asked


def zeros_and_counts(share: float, above: float) -> Cells:
    """Return zeros in a share of the rows, and few different numbers in the others."""
    zeros = round(200 * share)
    return numbers_of([0.0] * zeros + [20.0 + k % 19 + above for k in range(200 - zeros)])


def test_a_heap_proposes_what_is_missing_at_the_site() -> None:
    cells = {site: numbers_of(each) for site, each in HONEST.items()}
    about = Field(type="number")
    (constant,) = found({**cells, "d": numbers_of([2402.0] * 12)})
    assert constant.say() == "2402 in 100% of its rows, and in 0% elsewhere: is it one of the site?"
    assert constant.propose(about, "d.csv") is None
    (finding,) = found({**cells, "d": numbers_of([0.0] * 12)})
    change = finding.propose(about, "d.csv")
    assert change
    assert str(change) == 'fields.x.missingValues = ["0"] under [files."d.csv"]'
    assert finding.propose(Field(type="integer", categories=("0", "1")), "d.csv") is None
    assert (
        finding.say() == "0 in 100% of its rows, and in 0% elsewhere: does it mean a missing value?"
    )


@pytest.mark.parametrize(("floor", "is_apart"), [(1, True), (20, False)])
def test_a_share_stands_out_beyond_its_own_rounding(floor: int, is_apart: bool) -> None:
    """The other sites' counts are exact; the odd one's are multiples of its floor."""
    columns = {site: profile({"x": numbers_of(HONEST[site])})["x"] for site in "abc"}
    half = numbers(120, 9, rows=60)
    half[:30] = np.nan
    columns["d"] = profile({"x": numbers_of(half)}, floor)["x"]
    kinds = {each.kind for each in compare({"x": columns}) if not isinstance(each, Quiet)}
    assert ("missing" in kinds) == is_apart
