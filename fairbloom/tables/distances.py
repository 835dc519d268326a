"""Distances between sites, by their profiles: of numbers, of categories, and of shares of rows."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .core import FEW_SITES, Chosen, Compared, Distances
from .profiles import PROBABILITIES

# The smallest range of a site's numbers that divides a distance, in shares of the others'.
SMALLEST_RANGE = 0.02

# Points of a site's distribution in a mixture of sites.
POINTS = 40
GRID = (np.arange(POINTS) + 0.5) / POINTS

# The standard errors beyond which a share is far from the core's, and a row's least variance.
ERRORS = 4.0
LEAST_VARIANCE = 0.05


def distance(sites: Distances, others: Distances) -> Distances:
    """Return the mean difference of distributions' quantiles, in shares of the smaller range.

    The first axis is of the quantiles, NaN for each that is not given. NaN without two of them, or
    if the others have one number only. The range is that of nine tenths of the numbers; a site's
    counts as a fiftieth of the others' at least.
    """
    apart, site_range, others_range = _compare(sites, others)
    ranges = np.minimum(others_range, np.maximum(site_range, SMALLEST_RANGE * others_range))
    return _divide(apart, np.where(others_range > 0.0, ranges, np.nan))


def _compare(first: Distances, second: Distances) -> tuple[Distances, Distances, Distances]:
    """Return the mean difference of quantiles that both have, and the ranges of these.

    The first axis is of the quantiles: sums along it are ten times as fast as along the last.
    """
    is_given = ~np.isnan(first) & ~np.isnan(second)
    count = is_given.sum(axis=0)
    apart = np.where(is_given, np.abs(first - second), 0.0).sum(axis=0)
    ranges = [
        np.where(is_given, each, -np.inf).max(axis=0) - np.where(is_given, each, np.inf).min(axis=0)
        for each in (first, second)
    ]
    with np.errstate(invalid="ignore"):
        mean = apart / np.where(count >= 2, count, np.nan)
    return mean, ranges[0], ranges[1]


def _divide(apart: Distances, ranges: Distances) -> Distances:
    """Return a difference in shares of a range; a difference of 0 is 0 of any range."""
    with np.errstate(divide="ignore", invalid="ignore"):
        divided = apart / ranges
    return np.where(apart == 0.0, 0.0, divided)


@dataclass(frozen=True, eq=False)
class SiteNumbers(Compared):
    """Sites' numbers: quantiles of shape (sites, 7), NaN for none, and the rows of each."""

    floor = 0.75
    times = 3.0
    usual_of_few = 0.25

    quantiles: Distances
    rows: Distances

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.rows)

    def pairs(self) -> Distances:
        """Return the distance of each site from each, by the smaller range of both."""
        rows = []
        for own in self.quantiles:
            apart, first, second = _compare(own[:, None], self._by_quantile)
            smallest = SMALLEST_RANGE * np.maximum(first, second)
            ranges = np.maximum(np.minimum(first, second), smallest)
            rows.append(_divide(apart, ranges))
        return np.nan_to_num(np.stack(rows), nan=np.inf)

    def measure(self, group: Chosen) -> Distances:
        """Return the distance of each site from the mixture of a group."""
        found = distance(self._by_quantile, self.mix(group)[:, None])
        if group.sum() <= FEW_SITES:
            for place in np.flatnonzero(group).tolist():
                rest = group.copy()
                rest[place] = False
                found[place] = distance(self.quantiles[place], self.mix(rest))
        return found

    def mix(self, group: Chosen) -> Distances:
        """Return the quantiles of a group's sites together; NaN of none."""
        if not group.any():
            return np.full(len(PROBABILITIES), np.nan)
        weights = np.repeat(np.where(group, self.rows, 0.0) / POINTS, POINTS)[self._order]
        shares = np.cumsum(weights) - weights / 2.0
        quantiles: Distances = np.interp(PROBABILITIES * weights.sum(), shares, self._ordered)
        return quantiles

    @cached_property
    def _by_quantile(self) -> Distances:
        return np.ascontiguousarray(self.quantiles.T)

    @cached_property
    def _points(self) -> Distances:
        points = []
        for row in self.quantiles:
            is_given = ~np.isnan(row)
            points.append(np.interp(GRID, PROBABILITIES[is_given], row[is_given]))
        return np.concatenate(points)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self._points, kind="stable")

    @cached_property
    def _ordered(self) -> Distances:
        return self._points[self._order]


def variation(counts: Distances, present: Distances, others: Distances) -> Distances:
    """Return the total variation between sites' categories and the others', along the last axis.

    Of a site's `present` rows those that its profile does not list may be as the others' are. NaN
    if the others have none.
    """
    shares = counts / np.maximum(present, 1.0)[..., None]
    total = others.sum(axis=-1, keepdims=True)
    rest = others / np.where(total > 0.0, total, np.nan)
    apart: Distances = np.maximum(shares - rest, 0.0).sum(axis=-1)
    return apart


@dataclass(frozen=True, eq=False)
class SiteCategories(Compared):
    """Sites' categories: the rows of each, of shape (sites, categories), and all of a site."""

    floor = 0.5
    times = 2.0
    usual_of_few = 0.4
    largest = 0.9

    counts: Distances
    present: Distances

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.present)

    def pairs(self) -> Distances:
        """Return the distance of each site from each."""
        shares = self.counts / np.maximum(self.present, 1.0)[:, None]
        by_value = np.ascontiguousarray(shares.T)
        rows = []
        for own in shares:
            listed = own > 0.0  # of many categories, a site has few
            in_common = np.minimum(own[listed, None], by_value[listed]).sum(axis=0)
            rows.append(own.sum() - in_common)
        return np.stack(rows)

    def measure(self, group: Chosen) -> Distances:
        """Return the distance of each site from the mixture of a group."""
        others = self.counts[group].sum(axis=0) - np.where(group[:, None], self.counts, 0.0)
        return variation(self.counts, self.present, others)


@dataclass(frozen=True, eq=False)
class SiteShares(Compared):
    """Shares of sites' rows, the rows, and the number to a multiple of which they are rounded."""

    floor = 0.25
    times = 2.0
    usual_of_few = 0.1

    shares: Distances
    rows: Distances
    steps: Distances

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.rows)

    def pairs(self) -> Distances:
        """Return the difference of each site's share from each."""
        apart: Distances = np.abs(self.shares[:, None] - self.shares)
        return apart

    def measure(self, group: Chosen) -> Distances:
        """Return the difference of each site's share from the median of a group."""
        found = np.abs(self.shares - self.middle(group))
        if group.sum() <= FEW_SITES:
            for place in np.flatnonzero(group).tolist():
                rest = group.copy()
                rest[place] = False
                found[place] = abs(self.shares[place] - self.middle(rest))
        return found

    def middle(self, group: Chosen) -> float:
        """Return the median of a group's shares; NaN of none."""
        return float(np.median(self.shares[group])) if group.any() else np.nan

    def floors(self, group: Chosen) -> Distances:
        """Return the difference within which each site agrees: by rounding, or by chance."""
        middle = self.middle(group)
        variance = np.maximum(self.shares * (1.0 - self.shares), middle * (1.0 - middle))
        rows = np.maximum(self.rows, 1.0)
        of_both = 1.0 / rows + 1.0 / max(float(self.rows[group].sum()), 1.0)
        errors = np.sqrt(np.maximum(variance, LEAST_VARIANCE) * of_both)
        by_chance: Distances = ERRORS * errors
        return np.maximum(self.floor + (self.steps - 1.0) / rows, by_chance)

    def start(self, pairs: Distances, may_lead: Chosen) -> Chosen:
        """Return the half of the sites, rounded up, in the shortest interval of shares."""
        del pairs
        leaders = np.flatnonzero(may_lead)
        half = (len(leaders) + 1) // 2
        ordered = leaders[np.argsort(self.shares[leaders], kind="stable")]
        ends = self.shares[ordered]
        first = int((ends[half - 1 :] - ends[: len(ends) - half + 1]).argmin())
        core = np.zeros(len(may_lead), np.bool_)
        core[ordered[first : first + half]] = True
        return core
