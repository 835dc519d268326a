"""Conversions between units in which sites often record the same quantity."""

from typing import NamedTuple


class Conversion(NamedTuple):
    """A site's number is `factor` times the others' number, plus `offset`.

    `unit` is the site's, and `other` the others'; "" where only the conversion has a name. Of some
    units the factor depends on the `substance`. An inverse one is called as the other way round.
    """

    unit: str
    other: str
    factor: float
    offset: float = 0.0
    substance: str = ""
    is_inverse: bool = False

    @property
    def units(self) -> str:
        """Both units, in the usual order."""
        pair = (self.other, self.unit) if self.is_inverse else (self.unit, self.other)
        return " and ".join(filter(None, pair))

    @property
    def about(self) -> str:
        """The units, and what they are of."""
        return f"{self.units} of {self.substance}" if self.substance else self.units

    def is_named_in(self, field: str) -> bool:
        """Return whether the name of a field says the substance."""
        return bool(self.substance) and self.substance.casefold() in field.casefold()

    def inverse(self) -> "Conversion":
        """Return the conversion the other way round."""
        return Conversion(
            unit=self.other,
            other=self.unit,
            factor=1.0 / self.factor,
            offset=-self.offset / self.factor,
            substance=self.substance,
            is_inverse=not self.is_inverse,
        )


# The most usual first.
KNOWN = (
    Conversion("lb", "kg", 2.2046),
    Conversion("cm", "inches", 2.54),
    Conversion("mmHg", "kPa", 7.5006),
    Conversion("°F", "°C", 1.8, 32.0),
    Conversion("km", "miles", 1.6093),
    Conversion("months", "years", 12.0),
    Conversion("a shifted decimal point", "", 10.0),
    Conversion("a shifted decimal point", "", 100.0),
    Conversion("a shifted decimal point", "", 1_000.0),
    Conversion("mg/dl", "mmol/l", 18.016, substance="glucose"),
    Conversion("mg/dl", "mmol/l", 38.67, substance="cholesterol"),
    Conversion("µmol/l", "mg/dl", 88.42, substance="creatinine"),
    Conversion("µmol/l", "mg/dl", 17.1, substance="bilirubin"),
    Conversion("mg/dl", "mmol/l", 6.006, substance="urea"),
    Conversion("mmol/mol", "%", 10.93, -23.5, substance="HbA1c"),
    Conversion("kJ", "kcal", 4.184),
    Conversion("feet", "m", 3.2808),
    Conversion("cm", "feet", 30.48),
    Conversion("K", "°C", 1.0, 273.15),
    Conversion("codes from 1 and from 0", "", 1.0, 1.0),
)

# Each conversion, and its inverse.
CONVERSIONS = tuple(way for each in KNOWN for way in (each, each.inverse()))

# Conversions that two units in one column may have: by no more than a factor, and of spans of time.
OF_FACTORS = (
    *(each for each in KNOWN if not each.offset),
    Conversion("minutes", "hours", 60.0),
    Conversion("hours", "days", 24.0),
    Conversion("days", "weeks", 7.0),
    Conversion("days", "years", 365.25),
    Conversion("a shifted decimal point", "", 1e4),
    Conversion("a shifted decimal point", "", 1e5),
    Conversion("a shifted decimal point", "", 1e6),
)
