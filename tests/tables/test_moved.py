"""A file in another unit than training, by training's means and deviations."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas
import pytest
from numpy.typing import NDArray

from fairbloom.tables.conversions import CONVERSIONS, KNOWN, Conversion
from fairbloom.tables.moved import FEWEST, find_moved
from fairbloom.tables.schema import FileField

FEDERATIONS = Path(os.environ.get("FAIRBLOOM_DATA", "no folder"), "federations")

# The files with a column of sites, and a column that names something by number.
SITES = {
    "bdf": ("schoolNR", ""),
    "chem97": ("district", ""),
    "contraception": ("district", ""),
    "exam": ("school", ""),
    "gcsemv": ("school", ""),
    "gssvocab": ("year", ""),
    "guimmun": ("comm", ""),
    "guprenat": ("cluster", ""),
    "hsb82": ("school", ""),
    "insteval": ("lecturer", ""),
    "males": ("industry", ""),
    "radon": ("county", ""),
    "scotssec": ("second", "primary"),
    "star": ("sch", ""),
    "wvs": ("country", ""),
}

# A quantity's name, the mean of its logarithms, and their deviation, and its units.
QUANTITIES = [
    ("creatinine", -0.05, 0.35, "µmol/l and mg/dl"),
    ("creatinine", 0.2, 0.8, "µmol/l and mg/dl"),
    ("glucose", 4.6, 0.35, "mg/dl and mmol/l"),
    ("cholesterol", 5.3, 0.2, "mg/dl and mmol/l"),
    ("bilirubin", -0.3, 0.7, "µmol/l and mg/dl"),
    ("urea", 2.7, 0.5, "mg/dl and mmol/l"),
    ("weight", 4.3, 0.2, "lb and kg"),
    ("height", 5.1, 0.05, "cm and inches"),
    ("pressure", 4.8, 0.15, "mmHg and kPa"),
]


def way_of(units: str, name: str) -> Conversion:
    alike = [way for way in KNOWN if way.units == units]
    return next((way for way in alike if way.is_named_in(name)), alike[0])


def moments_of(numbers: NDArray[np.float64]) -> tuple[float, float]:
    return float(numbers.mean()), float(numbers.std())


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("count", [FEWEST, 400])
@pytest.mark.parametrize(("name", "mean", "deviation", "units"), QUANTITIES)
def test_a_known_conversion_is_named_with_its_factor(
    name: str, mean: float, deviation: float, units: str, count: int, *, inverted: bool
) -> None:
    """The line brings the numbers back, by the factor that the owner has stated for all files."""
    way = way_of(units, name)
    way = way.inverse() if inverted else way
    random = np.random.default_rng(count)
    training = np.exp(random.normal(mean, deviation, 400))
    later = np.exp(random.normal(mean, deviation, count)) * way.factor
    found = find_moved(name, later, moments_of(training))
    assert found is not None
    assert units in found.say(FileField(), "*/2027.csv")
    assert way in found.ways
    mended = found.ways[0].inverse().factor
    assert f"fields.{name}.factor = {4.0 * mended:.4g} under" in (
        found.say(FileField(factor=4.0), "*/2027.csv")
    )
    if way.substance:
        assert found.ways[0] == way


@pytest.mark.parametrize("own", [FileField(), FileField(factor=1.8, offset=32.0)])
def test_the_line_brings_degrees_back(own: FileField) -> None:
    """Of a file in °F without a factor, and of one in °C that is converted once too often."""
    celsius = np.random.default_rng(1).normal(37.0, 0.7, 100)
    raw = celsius if own.offset else 1.8 * celsius + 32.0
    found = find_moved("temp", raw * own.factor + own.offset, moments_of(celsius))
    assert found is not None
    assert found.ways[0].units == "°F and °C"
    said = found.say(own, "*/2027.csv")
    lines = re.search(r"factor = (\S+) and fields.temp.offset = (\S+) under", said)
    assert lines
    mended = raw * float(lines[1]) + float(lines[2])
    np.testing.assert_allclose(mended, celsius, atol=0.05)


def test_other_people_are_in_the_same_unit() -> None:
    """Older and younger ones, and those with twice the values and half of them."""
    random = np.random.default_rng(0)
    training = moments_of(random.normal(60.0, 15.0, 300))
    for age in (35.0, 75.0):
        assert find_moved("age", random.normal(age, 12.0, 200), training) is None
    skewed = moments_of(np.exp(random.normal(0.0, 0.6, 300)))
    for factor in (0.5, 2.0):
        later = factor * np.exp(random.normal(0.0, 0.6, 200))
        assert find_moved("crp", later, skewed) is None


def test_what_cannot_be_told_is_not_said() -> None:
    random = np.random.default_rng(0)
    numbers = 1000.0 * random.normal(60.0, 15.0, FEWEST)
    assert find_moved("age", numbers, (60.0, 15.0)) is not None
    assert find_moved("age", numbers[1:], (60.0, 15.0)) is None
    assert find_moved("age", np.append(numbers[1:], np.nan), (60.0, 15.0)) is None
    assert find_moved("age", np.append(numbers, np.nan), (60.0, 15.0)) is not None
    assert find_moved("age", numbers, (60.0, 0.0)) is None  # constant in training


def test_few_codes_have_no_conversion() -> None:
    """0 and 1 in another share are no shifted decimal point."""
    for distinct in (2, 10, 11):
        numbers = (1.0 + np.arange(10 * distinct) % distinct) * 100.0
        found = find_moved("stage", numbers, moments_of(numbers / 100.0))
        assert found is not None
        assert bool(found.ways) == (distinct == 11)


def test_without_a_file_there_is_no_line() -> None:
    numbers = np.random.default_rng(0).normal(37.0, 0.7, 50)
    found = find_moved("temp", 1.8 * numbers + 32.0, moments_of(numbers))
    assert found is not None
    assert found.say(FileField(), "").endswith(": convert it")
    far = find_moved("temp", 3.7 * numbers**2, moments_of(numbers))
    assert far is not None
    assert far.ways == ()
    assert far.say(FileField(), "*/a.csv").endswith("are far from training's: check its unit")


def test_each_conversion_is_the_inverse_of_another() -> None:
    for way in CONVERSIONS:
        assert way.inverse().inverse().factor == pytest.approx(way.factor)


def judged(name: str) -> Iterator[bool]:
    """Yield of each column of the last half of a federation's sites whether it is said."""
    sites, code = SITES[name]
    table = pandas.read_csv(FEDERATIONS / f"{name}.csv")
    numeric = [
        each for each in table if table[each].dtype.kind in "if" and each not in (sites, code)
    ]
    groups = [group for _, group in table.groupby(sites) if len(group) >= FEWEST]
    half = len(groups) // 2
    trained = pandas.concat(groups[:half])
    for column in numeric:
        values = trained[column].dropna().to_numpy(float)
        for group in groups[half:]:
            yield find_moved(column, group[column].to_numpy(float), moments_of(values)) is not None


@pytest.mark.parametrize("name", SITES)
def test_sites_of_real_federations_are_in_one_unit(name: str) -> None:
    if not (FEDERATIONS / f"{name}.csv").is_file():
        pytest.skip(f"FAIRBLOOM_DATA names no folder with federations/{name}.csv")
    found = [*judged(name)]
    assert found
    assert not any(found)
