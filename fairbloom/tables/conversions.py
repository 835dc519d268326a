"""Conversions between units in which sites often record the same quantity."""

from typing import NamedTuple

import numpy as np


class Conversion(NamedTuple):
    """A site's number is `factor` times the others' number, plus `offset`."""

    about: str
    factor: float
    offset: float = 0.0

    def inverse(self) -> "Conversion":
        """Return the conversion the other way round."""
        return Conversion(self.about, 1.0 / self.factor, -self.offset / self.factor)


# The most usual first.
KNOWN = (
    Conversion("lb and kg", 2.2046),
    Conversion("cm and inches", 2.54),
    Conversion("mmHg and kPa", 7.5006),
    Conversion("°F and °C", 1.8, 32.0),
    Conversion("km and miles", 1.6093),
    Conversion("months and years", 12.0),
    Conversion("a shifted decimal point", 10.0),
    Conversion("a shifted decimal point", 100.0),
    Conversion("a shifted decimal point", 1_000.0),
    Conversion("mg/dl and mmol/l of glucose", 18.016),
    Conversion("mg/dl and mmol/l of cholesterol", 38.67),
    Conversion("µmol/l and mg/dl of creatinine", 88.42),
    Conversion("µmol/l and mg/dl of bilirubin", 17.1),
    Conversion("mg/dl and mmol/l of urea", 6.006),
    Conversion("mmol/mol and % of HbA1c", 10.93, -23.5),
    Conversion("kJ and kcal", 4.184),
    Conversion("feet and m", 3.2808),
    Conversion("cm and feet", 30.48),
    Conversion("K and °C", 1.0, 273.15),
    Conversion("codes from 1 and from 0", 1.0, 1.0),
)

# Each conversion, and its inverse.
CONVERSIONS = tuple(way for each in KNOWN for way in (each, each.inverse()))

# Ratios of two units, and of spans of time.
RATIOS = np.array(
    [
        *(each.factor for each in KNOWN if each.factor > 1.0 and not each.offset),
        *(60, 24, 7, 365.25, 1e4, 1e5, 1e6),
    ]
)
