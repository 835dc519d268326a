"""How examples are dealt to clients."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.tasks import Setup, partition
from fairbloom.tasks.partition import MIN_EXAMPLES, Indices, classes, dirichlet, iid, shards, sizes, split

Labels = NDArray[np.int64]
Deal = Callable[[Labels, int, int], list[Indices]]

DEALS: dict[str, Deal] = {
    "iid": lambda labels, clients, seed: iid([labels], clients, seed)[0],
    "shards": lambda labels, clients, seed: shards([labels], clients, 2, seed)[0],
    "dirichlet": lambda labels, clients, seed: dirichlet([labels], clients, 0.3, seed)[0],
    "sizes": lambda labels, clients, seed: sizes([labels], clients, 0.3, seed)[0],
    "classes": lambda labels, clients, seed: classes([labels], clients, len(np.unique(labels)), seed)[0],
}

every_deal = pytest.mark.parametrize("deal", DEALS.values(), ids=DEALS)


def setup(clients: int = 20, kind: str = "iid", **others: Any) -> Setup:
    one_each = Setup.of({"shards-per-client": 1, "classes-per-client": 1})
    return replace(one_each, clients=clients, partition=kind, **others)


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
def test_iid_clients_differ_by_one_example_at_most(clients: int, examples: int) -> None:
    sizes = [len(part) for part in iid([np.zeros(examples, np.int64)], clients, seed=0)[0]]
    assert max(sizes) - min(sizes) <= 1


@given(per_client=st.sampled_from((1, 2, 4, 5, 10)), seed=st.integers(0, 1000))
def test_whole_shards_give_no_more_labels_than_shards(per_client: int, seed: int) -> None:
    labels = ten_balanced_labels()  # 100 examples a label, so every shard of 100 / per_client holds one label
    assert all(len(labels_of(part, labels)) <= per_client for part in shards([labels], 10, per_client, seed)[0])


@given(clients=st.integers(10, 40), per_client=st.integers(1, 3), seed=st.integers(0, 1000))
def test_a_shard_holds_at_most_two_labels(clients: int, per_client: int, seed: int) -> None:
    labels = ten_balanced_labels()
    numbers = [len(labels_of(part, labels)) for part in shards([labels], clients, per_client, seed)[0]]
    assert max(numbers) <= 2 * per_client
    assert sum(numbers) <= clients * per_client + 9  # only the nine borders between labels can be straddled


@pytest.mark.parametrize("seed", range(5))
def test_a_small_alpha_is_more_unequal_than_a_large_one(seed: int) -> None:
    labels = ten_balanced_labels()
    shares = [largest_share(dirichlet([labels], 20, alpha, seed)[0], labels) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5
    assert shares[-1] < 0.2


@given(alpha=st.floats(1e-6, 1e6), clients=st.integers(1, 40), seed=st.integers(0, 1000))
def test_dirichlet_leaves_no_client_with_too_few_examples(alpha: float, clients: int, seed: int) -> None:
    assert min(map(len, dirichlet([ten_balanced_labels(200)], clients, alpha, seed)[0])) >= MIN_EXAMPLES


def test_too_many_shards_are_refused_with_a_remedy() -> None:
    with pytest.raises(FairbloomError, match=r"clients = 6 times shards-per-client = 2 is 12 .* 10 examples: lower"):
        shards([np.zeros(10, np.int64)], 6, 2, seed=0)


KINDS = ("iid", "dirichlet", "shards", "sizes", "classes")


def test_too_many_clients_are_refused_with_those_that_would_do() -> None:
    labels = np.zeros(39, np.int64)
    for kind in KINDS:
        with pytest.raises(FairbloomError, match=r"clients = 8 .* 4 of 39.* at most 7 "):
            partition.deal(labels, setup(8, kind))
        with pytest.raises(FairbloomError, match=f"clients = {10**12} .* 39 examples"):  # before dealing
            partition.deal(labels, setup(10**12, kind))
        assert len(partition.deal(labels, setup(7, kind))) == 7


def test_a_client_with_too_few_examples_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"clients = 7 leaves a client with 4 of 39"):
        partition.deal(np.zeros(39, np.int64), setup(7, "shards", shards_per_client=4))


@given(
    sizes=st.tuples(st.integers(40, 200), st.integers(10, 100)),
    clients=st.integers(1, 8),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 1000),
)
def test_a_test_set_is_dealt_whole_and_alike(sizes: tuple[int, int], clients: int, kind: str, seed: int) -> None:
    labels, tested = (np.arange(size) % 2 for size in sizes)
    own = setup(clients, kind, seed=seed, shards_per_client=2, classes_per_client=2)
    parts = partition.deal(labels, own, tested)
    for which, count in ((0, len(labels)), (1, len(tested))):
        np.testing.assert_array_equal(np.sort(np.concatenate([part[which] for part in parts])), np.arange(count))


@pytest.mark.parametrize("kind", ["shards", "classes", "dirichlet"])
@pytest.mark.parametrize("seed", range(3))
def test_a_client_is_tested_on_the_classes_that_it_trains_on(kind: str, seed: int) -> None:
    labels, tested = np.arange(5000) % 10, np.arange(1000) % 10
    parts = partition.deal(labels, setup(10, kind, seed=seed, shards_per_client=2, classes_per_client=2), tested)
    for part in parts:
        ours, theirs = (np.bincount(each, minlength=10) for each in (labels[part.examples], tested[part.tested]))
        np.testing.assert_allclose(theirs, ours / 5, atol=1.0 if kind != "dirichlet" else 3.0)


@given(clients=st.integers(2, 30), per_client=st.integers(1, 10), seed=st.integers(0, 1000))
def test_each_client_has_as_many_classes_as_are_asked_for(clients: int, per_client: int, seed: int) -> None:
    labels = np.arange(3000) % 10
    assume(clients * per_client >= 10)
    parts = classes([labels], clients, per_client, seed)[0]
    assert {len(labels_of(part, labels)) for part in parts} == {per_client}
    holders = np.bincount([label for part in parts for label in labels_of(part, labels)], minlength=10)
    assert holders.max() - holders.min() <= 2


@pytest.mark.parametrize(("clients", "per_client"), [(20, 11), (4, 2)])
def test_classes_that_cannot_be_had_are_refused_with_the_range(clients: int, per_client: int) -> None:
    with pytest.raises(FairbloomError, match=f"classes-per-client = {per_client}.*10 classes.*clients = {clients}"):
        classes([np.arange(3000) % 10], clients, per_client, seed=0)


@pytest.mark.parametrize("deal", [dirichlet, sizes])
@given(alpha=st.floats(1e-3, 1e3), fewest=st.integers(2, 50), seed=st.integers(0, 1000))
def test_no_client_has_fewer_examples_than_the_smallest_may(
    deal: Callable[..., list[list[Indices]]], alpha: float, fewest: int, seed: int
) -> None:
    assert min(map(len, deal([ten_balanced_labels()], 20, alpha, seed, fewest)[0])) >= fewest


def test_sizes_are_unequal_and_labels_are_not() -> None:
    labels = ten_balanced_labels(20000)
    parts = sizes([labels], 10, 0.5, seed=0)[0]
    assert max(map(len, parts)) > 3 * min(map(len, parts))
    assert largest_share([part for part in parts if len(part) > 500], labels) < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_has_an_example_of_a_test_set(kind: str) -> None:
    """However unequal they are, and however few test examples there are."""
    labels, tested = np.arange(6000) % 10, np.arange(120) % 10
    for seed in range(5):
        own = setup(100, kind, seed=seed, dirichlet_alpha=0.1, shards_per_client=2, classes_per_client=2)
        dealt = partition.deal(labels, own, tested)
        assert min(len(each.tested) for each in dealt) >= 1
        np.testing.assert_array_equal(np.sort(np.concatenate([each.tested for each in dealt])), np.arange(120))
    with pytest.raises(FairbloomError, match=r"clients = 100: the test set has 99 examples.*: lower clients"):
        partition.deal(labels, setup(100, kind, dirichlet_alpha=0.1, shards_per_client=2), tested[:99])


# A client's examples --------------------------------------------------------------------------------------------------


@given(size=st.integers(MIN_EXAMPLES, 300), seed=st.integers(0, 1000))
def test_a_fifth_of_each_client_is_for_testing_alone(size: int, seed: int) -> None:
    indices = np.arange(1000, 1000 + size)
    train, test, validation = split(indices, setup(seed=seed), "client-3")
    assert len(test) == size // 5
    assert not len(validation)
    assert sorted([*train, *test]) == indices.tolist()


@given(size=st.integers(3, 300), shares=st.tuples(st.sampled_from([0.1, 0.29, 0.5]), st.sampled_from([0.0, 0.1, 0.29])))
def test_shares_are_counted_exactly_and_nothing_is_lost_or_twice(size: int, shares: tuple[float, float]) -> None:
    indices = np.arange(size)
    told = setup(test_share=shares[0], validation_share=shares[1])
    parts = split(indices, told, "client-3")
    for part, share in zip(parts[1:], shares, strict=True):
        assert len(part) == (max(int(Fraction(str(share)) * size), 1) if share else 0)
    assert sorted(np.concatenate(parts)) == indices.tolist()
    whole, tested, held = split(indices, told, "client-3", tested=np.arange(1000, 1010))
    assert tested.tolist() == [*range(1000, 1010)]
    assert sorted([*whole, *held]) == indices.tolist()
    assert len(held) == len(parts.validation)


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(FairbloomError, match=r"test-share = 0.5 and validation-share = 0.5 leave ward-3 none of its 6"):
        split(np.arange(6), setup(test_share=0.5, validation_share=0.5), "ward-3")


def test_the_split_depends_on_seed_and_client() -> None:
    tested = {
        (seed, name): split(np.arange(100), setup(seed=seed), name).test.tolist() for seed in (0, 1) for name in "ab"
    }
    assert tested[0, "a"] == split(np.arange(100), setup(), "a").test.tolist()
    assert len({tuple(test) for test in tested.values()}) == 4
