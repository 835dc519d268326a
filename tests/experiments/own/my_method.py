"""A method as a user writes one."""

from math import ceil
from typing import Annotated

import numpy as np

from fairbloom.rounds.ranges import Range
from fairbloom.strategies import FairStrategy


class WorstHalf(FairStrategy):
    """The mean of the clients with the highest losses.

    Parameters
    ----------
    share : float, default 0.5
        Share of the clients that count.
    """

    needs = frozenset({"loss-before"})

    def __init__(self, *, share: Annotated[float, Range("(0, 1]")] = 0.5, **options):
        super().__init__(**options)
        self.share = share

    def weigh(self, cohort):
        count = ceil(self.share * cohort.size)
        worst = cohort.losses >= np.sort(cohort.losses)[-count]
        return worst / worst.sum()
