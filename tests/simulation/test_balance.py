"""Every client has one worker, and no worker has much more to do than it must."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairbloom.simulation.dispatch.balance import balance, home


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


@given(sizes=st.lists(st.integers(0, 50), max_size=40), workers=st.integers(1, 5))
def test_with_homes_no_worker_has_much_more_than_its_fair_part(sizes: list[int], workers: int) -> None:
    lists = balance(sizes, workers, [home(f"client-{k}", workers) for k in range(len(sizes))])
    assert len(lists) == workers
    assert sorted(itertools.chain(*lists)) == list(range(len(sizes)))
    for places in lists:
        assert sum(sizes[place] for place in places) <= sum(sizes) / workers + max(sizes, default=0)


def test_a_client_stays_at_home_unless_it_has_its_fair_part() -> None:
    homes = [home(f"client-{k}", 4) for k in range(1000)]
    lists = balance([7] * 1000, 4, homes)
    moved = [place for worker, places in enumerate(lists) for place in places if homes[place] != worker]
    assert [len(places) for places in lists] == [250] * 4
    assert len(moved) == sum(max(0, homes.count(worker) - 250) for worker in range(4)) < 100
