"""Tables as people hand them over are right afterwards, or asked about: the line cures them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks import describe_data

from .helpers import config, inferred

Column = Sequence[object]

NAMES = ("north", "south", "west")


def write_sites(
    folder: Path, name: str, column: Callable[[str, np.random.Generator], Column], first: bool
) -> Path:
    """Write three sites with a column more, before the others or behind them."""
    for place, site in enumerate(NAMES):
        random = np.random.default_rng(place)
        columns: dict[str, Column] = {
            "age": random.integers(30, 85, 60),
            "bp": random.normal(130, 15, 60).round(),
        }
        own = {name: column(site, random)}
        columns = {**own, **columns} if first else {**columns, **own}
        columns = {"outcome": random.choice(["ill", "well"], 60), **columns}
        lines = [
            ",".join(columns),
            *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
        ]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def at(
    odd: str, usual: Callable[..., Column], other: Callable[..., Column]
) -> Callable[..., Column]:
    """Return a column that one site has differently."""
    return lambda site, random: other(random) if site == odd else usual(random)


def temperatures(random: np.random.Generator) -> Column:
    return random.normal(37.3, 0.6, 60).round(1)


def fahrenheit(random: np.random.Generator) -> Column:
    return (random.normal(37.3, 0.6, 60) * 1.8 + 32).round(1)


def percent(random: np.random.Generator) -> Column:
    return random.normal(6.4, 0.9, 60).round(1)


def millimoles(random: np.random.Generator) -> Column:
    return (random.normal(6.4, 0.9, 60) * 10.93 - 23.5).round()


def ages(random: np.random.Generator) -> Column:
    return random.integers(25, 90, 60)


def births(random: np.random.Generator) -> Column:
    return 2024 - random.integers(25, 90, 60)


def codes(low: int) -> Callable[..., Column]:
    return lambda random: random.integers(low, low + 2, 60)


# The usual column, that of one site, and the factor and offset for it.
CASES = {
    "fahrenheit": (temperatures, fahrenheit, r"0.555556", "-17.7778"),
    "hba1c": (percent, millimoles, r"0.0914913", "2.15005"),
    "birth": (ages, births, "-1", r"202\d"),
    "codes": (codes(1), codes(0), "1", "1"),
}


@pytest.mark.parametrize(
    ("name", "odd", "first"),
    [("x", "west", False), ("größe", "north", True), ("HbA1c_letzter", "south", True)],
)
@pytest.mark.parametrize("case", CASES)
def test_the_line_cures_what_stands_out(
    tmp_path: Path, case: str, name: str, odd: str, first: bool
) -> None:
    usual, other, factor, offset = CASES[case]
    there = write_sites(tmp_path, name, at(odd, usual, other), first)
    draft = inferred(there, target="outcome")
    key = name if name.isascii() else f'"{name}"'
    lines = rf"(fields\.{key}\.factor = {factor}) and (fields\.{key}\.offset = {offset})"
    ((scaled, moved),) = re.findall(rf'# {odd}: .*{lines} under \[files\."{odd}\.csv"\]', draft)
    cured = f'{draft}\n[files."{odd}.csv"]\n{scaled}\n{moved}\n'
    described = describe_data(RunSettings.of(config(there, cured)))
    assert not described["faults"]
    assert not [row for row in described["remarks"] if row["column"] == name]


@pytest.mark.parametrize(("name", "word"), [("diabetes", "1"), ("rök", "ja"), ("smoker", "yes")])
@pytest.mark.parametrize("first", [False, True])
def test_nothing_may_mean_no(tmp_path: Path, name: str, word: str, first: bool) -> None:
    def column(site: str, random: np.random.Generator) -> Column:
        return np.where(random.random(60) < 0.5, word, "")

    there = write_sites(tmp_path, name, column, first)
    draft = inferred(there, target="outcome")
    assert "in every row" not in draft
    lines = r"does nothing mean no\?; if so, say (categories = \[.*\]) and (spellings = {.*}) under"
    ((categories, spellings),) = re.findall(lines, draft)
    key = name if name.isascii() else f'"{name}"'
    block = re.compile(rf"(\[fields\.{key}\]\ntype = .*\n)(categories = .*\n)?")
    cured = block.sub(lambda match: f"{match[1]}{categories}\n{spellings}\n", draft)
    described = describe_data(RunSettings.of(config(there, cured)))
    assert not described["faults"]
    held = {
        (row["missing"], row["values"]) for row in described["columns"] if row["column"] == name
    }
    assert held == {(0, "0, 1" if word == "1" else f"no, {word}")}


@pytest.mark.parametrize(("low", "strange"), [(0, "0"), (2, "3")])
def test_codes_of_a_target_that_begin_elsewhere_are_a_fault(
    tmp_path: Path, low: int, strange: str
) -> None:
    there = write_sites(tmp_path, "state", at("west", codes(1), codes(low)), False)
    draft = inferred(there, target="state")
    assert "categories = [1, 2]" in draft
    assert "# west uses other class names: map them in spellings" in draft
    faults = describe_data(RunSettings.of(config(there, draft)))["faults"]
    assert {(row["client"], row["value"]) for row in faults} == {("west", strange)}


def test_a_column_renamed_within_a_file_is_seen(tmp_path: Path) -> None:
    there = write_sites(tmp_path, "km", lambda _, random: random.normal(30, 9, 60).round(1), False)
    head, *lines = (there / "west.csv").read_text().splitlines()
    half = [
        f"{line}," if k < 30 else f"{line.rpartition(',')[0]},,{k}.5"
        for k, line in enumerate(lines)
    ]
    (there / "west.csv").write_text("\n".join([f"{head},miles", *half]) + "\n")
    draft = inferred(there, target="outcome")
    assert "# west: it is never filled where 'miles' is: they may be one column" in draft


@pytest.mark.parametrize("names", [("north", "south", "west"), ("1", "2", "3"), ("a", "a", "b")])
def test_a_column_that_says_only_the_site_is_no_input(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    there = write_sites(
        tmp_path, "place", lambda site, _: [names[NAMES.index(site)]] * 60, first=True
    )
    says_only_the_site = len({*names}) == 3
    line = '"place",  # it says only which site a row is of'
    assert (line in inferred(there, target="outcome")) == says_only_the_site
