"""Which worker computes which clients, so that all workers are done at about the same time."""

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Return the places of the costs by worker: the largest first, each with the worker that has least to do.

    The longest list takes at most 4/3 − 1/(3 · workers) times as long as it must.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17(2), 1969.
    """
    lists: list[list[int]] = [[] for _ in range(workers)]
    loads = [(0.0, worker) for worker in range(workers)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, worker = loads[0]
        heapq.heapreplace(loads, (load + costs[place], worker))
        lists[worker].append(place)
    return lists
