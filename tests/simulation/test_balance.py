"""Every client has one worker, and no worker has much more to do than it must."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairbloom.simulation.dispatch.balance import balance


@given(costs=st.lists(st.integers(0, 30), max_size=7), workers=st.integers(1, 3))
def test_every_client_is_placed_once_and_evenly(costs: list[int], workers: int) -> None:
    lists = balance(costs, workers)
    assert len(lists) == workers
    assert sorted(itertools.chain(*lists)) == list(range(len(costs)))

    def longest(of: list[list[int]]) -> int:
        return max(sum(costs[place] for place in places) for places in of)

    best = sum(costs)
    for chosen in itertools.product(range(workers), repeat=len(costs)):
        best = min(best, longest([[k for k, who in enumerate(chosen) if who == worker] for worker in range(workers)]))
    assert longest(lists) <= best * (4 / 3 - 1 / (3 * workers)) + 1e-9


def test_a_worker_begins_with_its_largest_client() -> None:
    assert balance([1, 5, 3, 5], 2) == [[1, 2], [3, 0]]
