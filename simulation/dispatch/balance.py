"""Which worker computes which clients, so that all workers are done at about the same time."""

import heapq
import zlib
from collections.abc import Sequence


def balance(costs: Sequence[float], workers: int, homes: Sequence[int] = ()) -> list[list[int]]:
    """Return the places of the costs by worker: the largest first, each with the worker that has least to do.

    With `homes`, the workers that have loaded the clients' data, a client stays at home unless its cost would exceed
    the home's fair part. So the lists depend on costs and homes alone.

    Without, the longest list takes at most 4/3 − 1/(3 · workers) times as long as it must.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17(2), 1969.
    """
    fair = sum(costs) / workers
    lists: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    least = [(0.0, worker) for worker in range(workers)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        while least[0][0] != loads[least[0][1]]:  # that worker has been given something since
            heapq.heapreplace(least, (loads[least[0][1]], least[0][1]))
        worker = least[0][1]
        if homes and loads[homes[place]] + costs[place] <= fair:
            worker = homes[place]
        loads[worker] += costs[place]
        lists[worker].append(place)
    return lists


def home(name: str, workers: int) -> int:
    """Return the worker that a client stays with from round to round."""
    return zlib.crc32(name.encode()) % workers
