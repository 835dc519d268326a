"""A bracket leaves a name only if it has a unit."""

import pytest

from fairbloom.tables.schema import squash, squash_apart
from fairbloom.tables.units import is_unit


@pytest.mark.parametrize(
    "unit",
    [
        *("kg", "lb", "mmHg", "mm Hg", "mmol/l", "µmol/L", "mg/dl", "kg/m2", "ml/min/1.73 m2"),
        *("years", "Jahre", "mois", "°C", "F", "%", "10^9/L", "10*9/l", "g/24h", "bpm", "cm"),
        *("IU/l", "mEq/L", "cmH2O", "уд/мин", "ммоль/л", "岁", "次/分", "€", "kg per day"),
    ],
)
def test_a_unit_is_known(unit: str) -> None:
    assert is_unit(unit)
    assert squash(f"Weight_X [{unit}]") == squash("weight x")


@pytest.mark.parametrize(
    "words",
    ["systolic", "choice=Asthma", "left", "T1", "1", "baseline", "A", "z", "post", "kg or lb"],
)
def test_other_words_are_no_unit(words: str) -> None:
    assert not is_unit(words)
    assert squash(f"weight ({words})") != squash("weight")


def test_what_a_site_has_twice_keeps_its_full_name() -> None:
    joined = squash_apart([["bp (kPa)", "sex"], ["BP [mmHg]", "Sex"]])
    assert joined["bp (kPa)"] == joined["BP [mmHg]"]
    apart = squash_apart([["bp (kPa)", "bp (mmHg)", "sex"], ["BP (mmHg)", "Sex"]])
    assert apart["bp (kPa)"] != apart["BP (mmHg)"] == apart["bp (mmHg)"]
    assert apart["sex"] == apart["Sex"]
