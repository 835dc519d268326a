"""How examples are dealt to clients."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.tasks import Setup, partition
from fairbloom.tasks.partition import FEWEST, Indices, dirichlet, iid, shards, split

Labels = NDArray[np.int64]
Deal = Callable[[Labels, int, int], list[Indices]]

DEALS: dict[str, Deal] = {
    "iid": iid,
    "shards": lambda labels, clients, seed: shards(labels, clients, 2, seed),
    "dirichlet": lambda labels, clients, seed: dirichlet(labels, clients, 0.3, seed),
}

every_deal = pytest.mark.parametrize("deal", DEALS.values(), ids=DEALS)


def ten_balanced_labels(examples: int = 1000) -> Labels:
    return np.random.default_rng(1).permutation(np.arange(examples) % 10)


def labels_of(part: Indices, labels: Labels) -> set[int]:
    return set(labels[part].tolist())


def largest_share(parts: list[Indices], labels: Labels) -> float:
    """Return the share of a client's most frequent label, averaged over the clients."""
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


@every_deal
@given(
    labels=st.lists(st.integers(0, 9), min_size=40, max_size=200).map(np.array),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_every_example_is_dealt_exactly_once(deal: Deal, labels: Labels, clients: int, seed: int) -> None:
    parts = deal(labels, clients, seed)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@every_deal
def test_the_same_seed_deals_the_same_and_another_seed_otherwise(deal: Deal) -> None:
    labels = ten_balanced_labels()
    once, again, other = (np.concatenate(deal(labels, 20, seed)).tolist() for seed in (7, 7, 8))
    assert once == again
    assert once != other


@given(clients=st.integers(1, 60), examples=st.integers(60, 300))
def test_iid_clients_have_as_many_examples_as_each_other_give_or_take_one(clients: int, examples: int) -> None:
    sizes = [len(part) for part in iid(np.zeros(examples, np.int64), clients, seed=0)]
    assert max(sizes) - min(sizes) <= 1


@given(per_client=st.sampled_from((1, 2, 4, 5, 10)), seed=st.integers(0, 1000))
def test_shards_that_do_not_straddle_labels_give_a_client_no_more_labels_than_shards(
    per_client: int, seed: int
) -> None:
    labels = ten_balanced_labels()  # 100 examples a label, so every shard of 100 / per_client holds one label
    assert all(len(labels_of(part, labels)) <= per_client for part in shards(labels, 10, per_client, seed))


@given(clients=st.integers(10, 40), per_client=st.integers(1, 3), seed=st.integers(0, 1000))
def test_a_shard_holds_at_most_two_labels_and_few_shards_hold_two(clients: int, per_client: int, seed: int) -> None:
    labels = ten_balanced_labels()
    numbers = [len(labels_of(part, labels)) for part in shards(labels, clients, per_client, seed)]
    assert max(numbers) <= 2 * per_client
    assert sum(numbers) <= clients * per_client + 9  # only the nine borders between labels can be straddled


@pytest.mark.parametrize("seed", range(5))
def test_a_small_alpha_is_more_unequal_than_a_large_one(seed: int) -> None:
    labels = ten_balanced_labels()
    shares = [largest_share(dirichlet(labels, 20, alpha, seed), labels) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5
    assert shares[-1] < 0.2


@given(alpha=st.floats(1e-6, 1e6), clients=st.integers(1, 40), seed=st.integers(0, 1000))
def test_dirichlet_leaves_no_client_with_too_few_examples(alpha: float, clients: int, seed: int) -> None:
    assert min(map(len, dirichlet(ten_balanced_labels(200), clients, alpha, seed))) >= FEWEST


def test_too_many_shards_are_refused_with_the_settings_and_a_remedy() -> None:
    with pytest.raises(FairbloomError, match=r"clients = 6 times shards-per-client = 2 is 12 .* 10 examples: lower"):
        shards(np.zeros(10, np.int64), 6, 2, seed=0)


every_kind = pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])


@every_kind
def test_too_many_clients_are_refused_with_the_setting_and_a_remedy(kind: str) -> None:
    with pytest.raises(FairbloomError, match=r"clients = 8 leaves a client with 4 of 39.* at most 7 clients"):
        partition.deal(np.zeros(39, np.int64), Setup("", 8, kind, 1, 0.5, seed=0))


@every_kind
def test_far_too_many_clients_are_refused_before_they_are_dealt_to(kind: str) -> None:
    with pytest.raises(FairbloomError, match=f"clients = {10**12} .* 39 examples"):
        partition.deal(np.zeros(39, np.int64), Setup("", 10**12, kind, 1, 0.5, seed=0))


@every_kind
def test_as_many_clients_as_the_message_allows_are_not_refused(kind: str) -> None:
    assert len(partition.deal(np.zeros(39, np.int64), Setup("", 7, kind, 1, 0.5, seed=0))) == 7


def test_a_client_that_gets_too_few_of_enough_examples_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"clients = 7 leaves a client with 4 of 39"):
        partition.deal(np.zeros(39, np.int64), Setup("", 7, "shards", 4, 0.5, seed=0))


@given(size=st.integers(FEWEST, 300), seed=st.integers(0, 1000))
def test_a_fifth_of_each_client_is_for_testing_and_nothing_is_in_both(size: int, seed: int) -> None:
    indices = np.arange(1000, 1000 + size)
    train, test = split(indices, seed, "client-3")
    assert len(test) == size // 5
    assert sorted([*train, *test]) == indices.tolist()


def test_the_split_depends_on_seed_and_client() -> None:
    tested = {(seed, name): split(np.arange(100), seed, name)[1].tolist() for seed in (0, 1) for name in ("a", "b")}
    assert tested[0, "a"] == split(np.arange(100), 0, "a")[1].tolist()
    assert len({tuple(test) for test in tested.values()}) == 4
