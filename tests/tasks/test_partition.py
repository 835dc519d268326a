"""How examples are dealt to clients, by partitions of ours and by a user's function."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import TASKS, Setup, Task, load_task
from fairbloom.tasks.partition import PARTITIONS, Indices, classes, deal, iid, shards, split
from fairbloom.tasks.split import Split

Labels = NDArray[np.int64]

KINDS = st.sampled_from([*PARTITIONS])


def setup(clients: int = 20, kind: str = "iid", **others: Any) -> Setup:
    one_each = {"shards_per_client": 1, "classes_per_client": 1}
    return Setup.of({}).model_copy(
        update={**one_each, "clients": clients, "partition": kind, **others}
    )


def parts_of(kind: str, labels: Labels, clients: int, seed: int, **others: Any) -> list[Indices]:
    own = {
        "shards_per_client": 2,
        "classes_per_client": len(np.unique(labels)),
        "dirichlet_alpha": 0.3,
    }
    return PARTITIONS[kind]([labels], setup(clients, kind, seed=seed, **own | others))[0]


def ten_balanced_labels(examples: int = 1000) -> Labels:
    return np.random.default_rng(1).permutation(np.arange(examples) % 10)


def labels_of(part: Indices, labels: Labels) -> set[int]:
    return set(labels[part].tolist())


def largest_share(parts: list[Indices], labels: Labels) -> float:
    """Return the share of a client's most frequent label, averaged over the clients."""
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


@given(
    kind=KINDS,
    labels=st.lists(st.integers(0, 9), min_size=40, max_size=200).map(np.array),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_every_example_is_dealt_exactly_once(
    kind: str, labels: Labels, clients: int, seed: int
) -> None:
    parts = parts_of(kind, labels, clients, seed)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_same_seed_deals_the_same_and_another_seed_otherwise(kind: str) -> None:
    labels = ten_balanced_labels()
    assert tuple(PARTITIONS) == TASKS["digits"].partitions
    once, again, other = (
        np.concatenate(parts_of(kind, labels, 20, seed)).tolist() for seed in (7, 7, 8)
    )
    assert once == again
    assert once != other


@given(clients=st.integers(1, 60), examples=st.integers(60, 300))
def test_iid_clients_differ_by_one_example_at_most(clients: int, examples: int) -> None:
    counts = [len(part) for part in iid([np.zeros(examples, np.int64)], setup(clients))[0]]
    assert max(counts) - min(counts) <= 1


@given(
    clients=st.integers(10, 40),
    per_client=st.sampled_from((1, 2, 3, 5, 10)),
    seed=st.integers(0, 1000),
)
def test_a_shard_holds_at_most_two_labels(clients: int, per_client: int, seed: int) -> None:
    labels = ten_balanced_labels()  # 100 examples a label
    dealt = shards([labels], setup(clients, seed=seed, shards_per_client=per_client))[0]
    numbers = [len(labels_of(part, labels)) for part in dealt]
    number = clients * per_client
    are_whole = 1000 % number == 0 and number % 10 == 0  # no shard has a border between two labels
    assert max(numbers) <= (1 if are_whole else 2) * per_client
    # only the nine borders between labels can be straddled
    assert sum(numbers) <= clients * per_client + 9


@pytest.mark.parametrize("seed", range(5))
def test_a_small_alpha_is_more_unequal_than_a_large_one(seed: int) -> None:
    labels = ten_balanced_labels()
    dealt = [
        parts_of("dirichlet", labels, 20, seed, dirichlet_alpha=alpha)
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    shares = [largest_share(parts, labels) for parts in dealt]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5
    assert shares[-1] < 0.2


@given(
    kind=st.sampled_from(["dirichlet", "sizes"]),
    alpha=st.floats(1e-6, 1e6),
    clients=st.integers(1, 20),
    fewest=st.integers(2, 50),
    seed=st.integers(0, 1000),
)
def test_no_client_has_fewer_examples_than_the_smallest_may(
    kind: str, alpha: float, clients: int, fewest: int, seed: int
) -> None:
    own = {"dirichlet_alpha": alpha, "smallest_client": fewest}
    assert min(map(len, parts_of(kind, ten_balanced_labels(), clients, seed, **own))) >= fewest


@pytest.mark.parametrize("seed", range(5))
def test_small_clients_are_filled_up_at_random(seed: int) -> None:
    """Not with the last class of the largest client; others keep what they had."""
    labels = ten_balanced_labels(20000)
    before = parts_of("dirichlet", labels, 20, seed, dirichlet_alpha=0.1, smallest_client=1)
    after = parts_of("dirichlet", labels, 20, seed, dirichlet_alpha=0.1, smallest_client=500)
    given = [np.setdiff1d(new, old) for old, new in zip(before, after, strict=True)]
    assert sum(map(len, given)) > 400
    giver = before[int(np.argmax([*map(len, before)]))]
    taken = np.intersect1d(np.concatenate(given), giver)
    expected = np.bincount(labels[giver], minlength=10) / len(giver)
    assert np.abs((np.bincount(labels[taken], minlength=10) / len(taken)) - expected).max() < 0.1
    again = parts_of("dirichlet", labels, 20, seed, dirichlet_alpha=0.1, smallest_client=500)
    assert all(map(np.array_equal, after, again))


def test_sizes_are_unequal_and_labels_are_not() -> None:
    labels = ten_balanced_labels(20000)
    parts = parts_of("sizes", labels, 10, 0, dirichlet_alpha=0.5)
    assert max(map(len, parts)) > 3 * min(map(len, parts))
    assert largest_share([part for part in parts if len(part) > 500], labels) < 0.2


@given(clients=st.integers(2, 30), per_client=st.integers(1, 10), seed=st.integers(0, 1000))
def test_each_client_has_as_many_classes_as_are_asked_for(
    clients: int, per_client: int, seed: int
) -> None:
    labels = np.arange(3000) % 10
    assume(clients * per_client >= 10)
    parts = classes([labels], setup(clients, seed=seed, classes_per_client=per_client))[0]
    assert {len(labels_of(part, labels)) for part in parts} == {per_client}
    holders = np.bincount(
        [label for part in parts for label in labels_of(part, labels)], minlength=10
    )
    assert holders.max() - holders.min() <= 2


# What cannot be dealt -----------------------------------------------------------------------------


def test_a_deal_that_is_impossible_is_refused_with_its_settings(subtests: pytest.Subtests) -> None:
    labels = np.zeros(39, np.int64)
    for kind in PARTITIONS:
        with subtests.test(kind=kind):
            with pytest.raises(FairbloomError, match=r"clients = 8 .* 4 of 39.* 7 "):
                deal(labels, setup(8, kind))
            # before dealing
            with pytest.raises(FairbloomError, match=f"clients = {10**12} .* 39 examples"):
                deal(labels, setup(10**12, kind))
            assert len(deal(labels, setup(7, kind))) == 7
    with pytest.raises(FairbloomError, match=r"clients = 7 .* 4 of 39"):
        deal(labels, setup(7, "shards", shards_per_client=4))
    with pytest.raises(
        FairbloomError, match=r"clients = 6 .*shards-per-client = 2 is 12 .* 10 examples"
    ):
        shards([labels[:10]], setup(6, shards_per_client=2))


@pytest.mark.parametrize(("clients", "per_client"), [(20, 11), (4, 2)])
def test_more_classes_for_each_client_than_fit_are_refused(clients: int, per_client: int) -> None:
    with pytest.raises(
        FairbloomError,
        match=f"classes-per-client = {per_client}.*10 classes.*clients = {clients}",
    ):
        classes([np.arange(3000) % 10], setup(clients, classes_per_client=per_client))


# A test set apart ---------------------------------------------------------------------------------


@given(
    kind=KINDS,
    sizes=st.tuples(st.integers(40, 200), st.integers(10, 100)),
    clients=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_a_test_set_is_dealt_whole(
    kind: str, sizes: tuple[int, int], clients: int, seed: int
) -> None:
    labels, tested = (np.arange(size) % 2 for size in sizes)
    parts = deal(
        labels, setup(clients, kind, seed=seed, shards_per_client=2, classes_per_client=2), tested
    )
    for which, count in ((0, len(labels)), (1, len(tested))):
        np.testing.assert_array_equal(
            np.sort(np.concatenate([part[which] for part in parts])), np.arange(count)
        )


@pytest.mark.parametrize("kind", ["shards", "classes", "dirichlet"])
def test_a_client_is_tested_on_the_classes_that_it_trains_on(kind: str) -> None:
    labels = np.arange(5000) % 10
    tested = np.arange(1000) % 10
    for seed in range(3):
        for part in deal(
            labels, setup(10, kind, seed=seed, shards_per_client=2, classes_per_client=2), tested
        ):
            ours, theirs = (
                np.bincount(each, minlength=10)
                for each in (labels[part.examples], tested[part.tested])
            )
            np.testing.assert_allclose(theirs, ours / 5, atol=1.0 if kind != "dirichlet" else 3.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", PARTITIONS)
def test_each_client_has_an_example_of_a_test_set(kind: str, seed: int) -> None:
    """However unequal they are, and however few test examples there are."""
    own = setup(
        100, kind, seed=seed, dirichlet_alpha=0.1, shards_per_client=2, classes_per_client=2
    )
    dealt = deal(np.arange(6000) % 10, own, np.arange(120) % 10)
    assert min(len(each.tested) for each in dealt) >= 1
    np.testing.assert_array_equal(
        np.sort(np.concatenate([each.tested for each in dealt])), np.arange(120)
    )


def test_a_test_set_of_too_few_examples_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"clients = 100: the test set has 99 examples"):
        deal(np.arange(6000) % 10, setup(100), np.arange(99) % 10)


# A client's examples ------------------------------------------------------------------------------


@given(
    size=st.integers(3, 300),
    shares=st.tuples(st.sampled_from([0.1, 0.2, 0.29, 0.5]), st.sampled_from([0.0, 0.29])),
)
def test_shares_are_counted_exactly_and_nothing_is_lost_or_twice(
    size: int, shares: tuple[float, float]
) -> None:
    indices = np.arange(size)
    asked = setup(test_share=shares[0], validation_share=shares[1])
    parts = split(indices, asked, "client-3")
    for part, share in zip(parts[1:], shares, strict=True):
        assert len(part) == (max(int(Fraction(str(share)) * size), 1) if share else 0)
    assert sorted(np.concatenate(parts)) == indices.tolist()
    whole, tested, held = split(indices, asked, "client-3", tested=np.arange(1000, 1010))
    assert tested.tolist() == [*range(1000, 1010)]
    assert sorted([*whole, *held]) == indices.tolist()
    assert len(held) == len(parts.validation)


def test_the_split_depends_on_seed_and_client() -> None:
    tested = {
        (seed, name): split(np.arange(100), setup(seed=seed), name).test.tolist()
        for seed in (0, 1)
        for name in "ab"
    }
    assert tested[0, "a"] == split(np.arange(100), setup(), "a").test.tolist()
    assert len({tuple(test) for test in tested.values()}) == 4
    with pytest.raises(
        FairbloomError,
        match=r"test-share = 0.5 and validation-share = 0.5 leave no example of ward-3",
    ):
        split(np.arange(6), setup(test_share=0.5, validation_share=0.5), "ward-3")


def test_without_a_test_share_all_examples_are_trained_on() -> None:
    """A data set with test examples of its own has no such choice."""
    parts = split(np.arange(50), setup(test_share=0.0), "a")
    assert [sorted(part.tolist()) for part in parts] == [[*range(50)], [], []]
    with pytest.raises(FairbloomError, match=r"test-share = 0: .* leave test-share out"):
        split(np.arange(50), setup(test_share=0.0), "a", tested=np.arange(50, 60))


# A user's function --------------------------------------------------------------------------------

MINE = """
import numpy as np


def halves(labels, clients, random):
    shuffled = random.permutation(len(labels))
    labels[:] = 0  # which are a copy
    return np.array_split(shuffled[: len(labels) // 2], clients)


def by_label(labels, clients, random):
    return [np.flatnonzero(labels % clients == client) for client in range(clients)]


def too_few(labels, clients, random):
    return [np.arange(4), *np.array_split(np.arange(4, len(labels)), clients - 1)]


def twice_alone(labels, clients, random):
    return [[7] * 9, *np.array_split(np.arange(8, len(labels)), clients - 1)]


too_many = lambda labels, clients, random: np.array_split(np.arange(len(labels)), clients + 1)
twice = lambda labels, clients, random: [np.arange(9)] * clients
beyond = lambda labels, clients, random: np.array_split(np.arange(len(labels)) + 1, clients)
below = lambda labels, clients, random: np.array_split(np.arange(len(labels)) - 1, clients)
floats = lambda labels, clients, random: [np.arange(9) / 2] * clients
masks = lambda labels, clients, random: [labels == client for client in range(clients)]
fails = lambda labels, clients, random: {}["share"]
nothing = lambda labels, clients, random: None
number = 3
"""


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"dealing_{abs(hash(request.node.nodeid))}"
    (here / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(here)
    return name


def dealt(partition: str, clients: int = 4, **others: Any) -> Task:
    return load_task(
        Settings.of(
            {"task": "digits", "partition": partition, "clients": clients, **others}
        ).run_config()
    )


def rows_of(task: Task) -> list[NDArray[np.int64]]:
    split = Split.of(task)
    return [np.sort(split.row[split.client == client]) for client in range(len(split.clients))]


def test_each_client_has_what_the_function_deals_by_the_seed(mine: str) -> None:
    whole = Split.of(dealt("iid"))
    labels = np.empty(len(whole.row), np.int64)
    labels[whole.row] = whole.label
    for client, rows in enumerate(rows_of(dealt(f"{mine}:by_label"))):
        np.testing.assert_array_equal(rows, np.flatnonzero(labels % 4 == client))
    first, again, other = (rows_of(dealt(f"{mine}:halves", seed=seed)) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not any(map(np.array_equal, first, other))
    assert len(np.concatenate(first)) == 1797 // 2
    assert set(Split.of(dealt(f"{mine}:halves")).label.tolist()) == set(range(10))


# The words of each function's error, besides its name.
IMPOSSIBLE = {
    "too_many": "4 arrays .* 5: int64",
    "twice": "0 to 1796, .* deals 0$",
    "twice_alone": "deals 7$",
    "beyond": "0 to 1796, .* deals 1797$",
    "below": "deals -1$",
    "floats": "4 arrays .*: float64",
    "masks": "4 arrays .*: bool",
    "fails": "KeyError: 'share'",
    "nothing": "TypeError: .*NoneType",
    "number": "it is a int",
    "shards": "no shards",
}


@pytest.mark.parametrize(("function", "said"), IMPOSSIBLE.items())
def test_an_impossible_deal_is_refused_with_the_function(
    mine: str, function: str, said: str
) -> None:
    with pytest.raises(FairbloomError, match=rf"partition = '{mine}:{function}': .*{said}"):
        dealt(f"{mine}:{function}")


def test_a_deal_is_refused_with_its_rows_or_its_task(mine: str) -> None:
    with pytest.raises(FairbloomError, match="a client with 4 of 1797"):
        dealt(f"{mine}:too_few")
    with pytest.raises(FairbloomError, match=r"partition = .*task heart-disease has hospital$"):
        load_task(
            Settings.of({"task": "heart-disease", "partition": f"{mine}:halves"}).run_config()
        )


def test_a_function_deals_a_test_set_alike(mine: str, subtests: pytest.Subtests) -> None:
    """A client has a test example in any case: one of its neighbour's where the function deals it
    none."""
    labels = np.arange(400) % 8
    tested = np.arange(80) % 8
    by_label = setup(4, f"{mine}:by_label")
    for client, (examples, tests) in enumerate(deal(labels, by_label, tested)):
        with subtests.test(client=client, examples=examples):
            assert set(labels[examples] % 4) == set(tested[tests] % 4) == {client}
    assert [len(each.tested) for each in deal(labels, by_label, np.repeat([1, 2, 3], 5))] == [
        1,
        4,
        5,
        5,
    ]
