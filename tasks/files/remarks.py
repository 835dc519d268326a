"""What in the columns of several sites a person should look at, although it is no fault."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ..schema import Field
from .rows import ColumnValues
from .targets import join_names

SENTINELS = np.array([sign * (10**k - 1) for k in range(1, 6) for sign in (1, -1)] + [-1, 88, 888, 8888, -88, -888])
"""Numbers that often stand for a missing value: 9, 99, -9, -1, 88 and so on."""

OTHER_UNIT = 4.0
"""A site's median that is so many times those of the others, or such a part of them, may be in another unit."""


def find_remarks(name: str, field: Field, sites: Mapping[str, ColumnValues]) -> Iterator[tuple[str, str]]:
    """Yield (site, remark) pairs on a column, which each site has in the schema's values; "" is all sites."""
    if field.categories:
        yield from _on_categories(field, sites)
        return
    present = {site: values[~np.isnan(values)] for site, values in sites.items()}
    present = {site: values for site, values in present.items() if len(values)}
    if not present:
        yield "", "it has no value"
        return
    together = np.concatenate([*present.values()])
    if together.min() == together.max():
        yield "", f"it is {together[0]:g} in every row, so that it says nothing"
        return
    for site, values in [*present.items()]:
        if (code := find_sentinel(values)) is not None:
            count = int((values == code).sum())
            yield (
                site,
                f'{code:g} in {count} rows, far from the others: if it means a missing value, add "{code:g}" to '
                f"missingValues of fields.{name}",
            )
            present[site] = values[values != code]
    yield from _on_units(name, present)


def find_sentinel(values: NDArray[np.float64]) -> float | None:
    """Return a number that seems to stand for a missing value; None where there is none."""
    different = np.unique(values)
    for code, rest in ((different[0], different[1:]), (different[-1], different[:-1])):
        if not len(rest) or code not in SENTINELS or (values == code).sum() < 2:
            continue
        others = values[values != code]
        if np.abs(rest - code).min() > max(2.0 * others.std(), 1.0):
            return float(code)
    return None


def _on_units(name: str, sites: Mapping[str, NDArray[np.float64]]) -> Iterator[tuple[str, str]]:
    """Yield the sites with a median many times those of the others, of numbers above 0."""
    medians = {site: float(np.median(values)) for site, values in sites.items() if values.min() > 0.0}
    if len(medians) < 2 or len(medians) < len(sites):
        return
    for site, median in medians.items():
        others = [each for other, each in medians.items() if other != site]
        usual = float(np.median(others))
        apart = max(median, usual) / min(median, usual)
        among = max(others) / min(others)
        if apart >= OTHER_UNIT and among < np.sqrt(apart):
            yield (
                site,
                f"median {median:.4g}, and {usual:.4g} elsewhere: if it is in another unit, say so by "
                f"fields.{name} = {{unit, factor}} under the file",
            )


def _on_categories(field: Field, sites: Mapping[str, ColumnValues]) -> Iterator[tuple[str, str]]:
    there = {site: set(np.unique(values[values >= 0]).tolist()) for site, values in sites.items()}
    there = {site: places for site, places in there.items() if places}
    every = set().union(*there.values()) if there else set()
    if len(every) == 1:
        yield "", f"it is {field.categories[every.pop()]!r} in every row, so that it says nothing"
        return
    for site, places in there.items():
        others = set().union(*(each for other, each in there.items() if other != site))
        if others and not places & others:
            own = join_names([field.categories[place] for place in sorted(places)], 5)
            yield (
                site,
                f"its categories, {own}, are at no other site: if they mean the same, make them spellings of one",
            )
