"""Remarks on columns: peculiarities that are not faults, but that a person should look at."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ..schema import Field
from .encode import ColumnValues
from .targets import join_names

# Numbers that often stand for a missing value: 9, 99, -9, -1, 88 and so on.
SENTINELS = np.array(
    [sign * (10**k - 1) for k in range(1, 6) for sign in (1, -1)] + [-1, 88, 888, 8888, -88, -888]
)

# If a site's median is 4 times the other sites' medians, or a quarter, it may be in another unit.
OTHER_UNIT = 4.0


def present_values(values: ColumnValues) -> ColumnValues:
    """Return the values of a column that are neither missing nor faulty."""
    if values.dtype.kind == "f":
        return values[np.isfinite(values)]
    return values[values >= 0]


def find_remarks(
    name: str, field: Field, sites: Mapping[str, ColumnValues]
) -> Iterator[tuple[str, str]]:
    """Yield (site, remark) pairs on a column; the site "" stands for all sites.

    `sites` has the column's values of each site, encoded by the schema.
    """
    present = {site: present_values(values) for site, values in sites.items()}
    present = {site: values for site, values in present.items() if len(values)}
    together = np.concatenate([*present.values()]) if present else np.array([])
    if not len(together):
        yield "", "it has no value"
    elif together.min() == together.max():
        held = repr(field.categories[together[0]]) if field.categories else f"{together[0]:g}"
        yield "", f"it is {held} in every row, so that it says nothing"
    elif field.categories:
        yield from _compare_categories(field, present)
    else:
        for site, values in [*present.items()]:
            for code in (values.min(), values.max()):
                others = values[values != code]
                is_repeated = code in SENTINELS and 0 < len(others) < len(values) - 1
                if is_repeated and np.abs(others - code).min() > max(2.0 * others.std(), 1.0):
                    remark = (
                        f"{code:g} in {len(values) - len(others)} rows, far from the others: if it"
                        f' means a missing value, add "{code:g}" to missingValues of fields.{name}'
                    )
                    yield site, remark
                    present[site] = others
                    break
        yield from _compare_units(name, present)


def _compare_units(
    name: str, sites: Mapping[str, NDArray[np.float64]]
) -> Iterator[tuple[str, str]]:
    """Yield the sites with a median far from the others', if all numbers are positive."""
    medians = {site: float(np.median(values)) for site, values in sites.items()}
    if len(medians) < 2 or min(values.min() for values in sites.values()) <= 0.0:
        return
    for site, median in medians.items():
        others = [each for other, each in medians.items() if other != site]
        usual = float(np.median(others))
        apart = max(median, usual) / min(median, usual)
        if apart >= OTHER_UNIT and max(others) / min(others) < np.sqrt(apart):
            remark = (
                f"median {median:.4g}, and {usual:.4g} elsewhere: if it is in another unit, say so"
                f" by fields.{name} = {{unit, factor}} under the file"
            )
            yield site, remark


def _compare_categories(
    field: Field, sites: Mapping[str, ColumnValues]
) -> Iterator[tuple[str, str]]:
    """Yield the sites that share no category with any other site."""
    categories_of = {site: set(values.tolist()) for site, values in sites.items()}
    for site, places in categories_of.items():
        others = set().union(*(each for other, each in categories_of.items() if other != site))
        if others and not places & others:
            own = join_names([field.categories[place] for place in sorted(places)], 5)
            remark = (
                f"its categories, {own}, are at no other site: if they mean the same, make them"
                " spellings of one"
            )
            yield site, remark
