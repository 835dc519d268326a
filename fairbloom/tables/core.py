"""Who stands out among sites, by a core: the half of them that lies closest together.

Compared with all others, a second odd site hides the first one; compared with a core, it does not.
The core is the half of the sites, rounded up, that is nearest to one of them. All that are within
the floor join, again and again, and then the nearest one, while it is within the limit: a multiple
of the usual distance in the core. Who is beyond the limit then stands out, with all that are alike.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.float64]
Chosen = NDArray[np.bool_]

# With at most as many sites in a group, each is compared with the group without itself.
FEW_SITES = 40

# The quantile of the core's own distances that is usual, and the fewest of them.
USUAL_SHARE = 0.9
FEWEST_OWN = 3


class Compared(ABC):
    """Sites that are compared, each with each and with the mixture of a group.

    Attributes
    ----------
    floor
        The distance within which two sites agree.
    times
        The limit, in usual distances.
    usual_of_few
        The usual distance in a core of fewer than FEWEST_OWN distances.
    largest
        The largest limit, where distances have a maximum.
    """

    floor: ClassVar[float]
    times: ClassVar[float]
    usual_of_few: ClassVar[float]
    largest: ClassVar[float] = math.inf

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of sites."""

    @abstractmethod
    def pairs(self) -> Distances:
        """Return the distance of each site from each, infinite if unknown; shape (sites, sites)."""

    @abstractmethod
    def measure(self, group: Chosen) -> Distances:
        """Return the distance of each site from the mixture of a group, NaN if unknown.

        That of a member is from the others of its group.
        """

    def floors(self, group: Chosen) -> Distances:
        """Return the distance within which each site agrees with a group."""
        return np.full(len(group), self.floor)

    def start(self, pairs: Distances, may_lead: Chosen) -> Chosen:
        """Return the half of the sites that may lead, rounded up, that is nearest to one of them.

        `pairs` has the distances of each from each.
        """
        leaders = np.flatnonzero(may_lead)
        half = (len(leaders) + 1) // 2
        between = pairs[np.ix_(leaders, leaders)]
        np.fill_diagonal(between, -1.0)  # each is the nearest to itself
        radii = np.partition(between, half - 1, axis=1)[:, half - 1]
        nearest = np.argsort(between[int(radii.argmin())], kind="stable")[:half]
        return choose(leaders[nearest], len(may_lead))


@dataclass(frozen=True, eq=False)
class Split:
    """The core of sites, and the groups outside of it that stand out.

    Attributes
    ----------
    core
        Which sites are in the core.
    groups
        The sites that stand out, as indices: those that are alike are one group.
    sizes
        How far each group stands out, in multiples of its limit.
    usual
        The usual distance in the core.
    unknown
        The sites with an unknown distance, as indices.
    agrees
        Whether there is a core at all: not where most of its sites are farther from each other than
        the largest limit, and then no site stands out; nor of three of which no two agree.
    """

    core: Chosen
    groups: Sequence[NDArray[np.int64]]
    sizes: Sequence[float]
    usual: float
    unknown: Sequence[int]
    agrees: bool


def choose(places: NDArray[np.int64], count: int) -> Chosen:
    """Return which of `count` sites are at these places."""
    chosen = np.zeros(count, np.bool_)
    chosen[places] = True
    return chosen


def split(sites: Compared, may_lead: Chosen | None = None) -> Split:
    """Return the core of at least one site, and who stands out of it.

    `may_lead` says which sites may be in the core, one at least; None for all.
    """
    leading = np.ones(len(sites), np.bool_) if may_lead is None else may_lead
    pairs = sites.pairs()
    core = _grow(sites, sites.start(pairs, leading), leading)
    distances = sites.measure(core)
    usual = _usual(sites, distances[core])
    sizes = distances / _limits(sites, core, usual)
    own = distances[core & ~np.isnan(distances)]
    is_core = not len(own) or bool(np.median(own) <= sites.largest)
    outside = np.flatnonzero(~core & (sizes > 1.0) & is_core)
    differ = len(sites) == 3 and len(outside) == 1 and bool((own > sites.floor).any())
    between = pairs[np.ix_(outside, outside)]
    groups = [outside[group] for group in _link(between <= sites.floor)]
    farthest = [float(sizes[group].max()) for group in groups]
    unknown = np.flatnonzero(~core & np.isnan(distances))
    return Split(
        core=core,
        groups=groups,
        sizes=farthest,
        usual=usual,
        unknown=unknown.tolist(),
        agrees=is_core and not differ,
    )


def _grow(sites: Compared, core: Chosen, may_lead: Chosen) -> Chosen:
    """Return a core with all that join it."""
    while (waiting := may_lead & ~core).any():
        distances = sites.measure(core)
        joining = waiting & (distances <= sites.floors(core))
        if not joining.any():
            limits = _limits(sites, core, _usual(sites, distances[core]))
            sizes = np.where(waiting & ~np.isnan(distances), distances / limits, np.inf)
            nearest = int(sizes.argmin())
            if not sizes[nearest] <= 1.0:
                break
            joining[nearest] = True
        core = core | joining
    return core


def _usual(sites: Compared, own: Distances) -> float:
    """Return the usual distance in a core, by its sites' `own` distances from the rest of it."""
    known = own[~np.isnan(own)]
    if len(known) < FEWEST_OWN:
        return sites.usual_of_few
    return float(np.quantile(known, USUAL_SHARE))


def _limits(sites: Compared, core: Chosen, usual: float) -> Distances:
    return np.minimum(np.maximum(sites.floors(core), sites.times * usual), sites.largest)


def _link(is_near: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yield groups of sites that are linked by near ones, as indices."""
    rest = np.ones(len(is_near), np.bool_)
    is_near = is_near | is_near.T
    while rest.any():
        group = choose(np.flatnonzero(rest)[:1], len(rest))
        reached = group
        while reached.any():
            reached = is_near[reached].any(axis=0) & ~group
            group = group | reached
        yield np.flatnonzero(group)
        rest &= ~group
