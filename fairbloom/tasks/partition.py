"""Partitions: split examples among clients, and a client's into training, test and validation.

PyTorch is imported late.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from .task import Examples, Setup, Splits
from .task_info import import_partition

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.intp]
Labels = NDArray[np.int64]

# Examples that a client needs: four fifths for training, at least one for testing.
MIN_EXAMPLES = 5


class Dealt(NamedTuple):
    """A client's part of a data set: indices of examples, and of official test examples."""

    examples: Indices
    tested: Indices


def deal(labels: Labels, setup: Setup, tested: Labels | None = None) -> list[Dealt]:
    """Return each client's part by the run's partition, at least MIN_EXAMPLES examples.

    `labels` has shape (n,). An official test set, with labels `tested`, is split alike: each client
    gets the same shards, classes or shares of it, and at least one example.
    """
    clients = setup.clients
    if setup.partition != "shards":  # shards checks their number first
        _check_enough(len(labels) // clients, clients, len(labels))
    cut = PARTITIONS.get(setup.partition, by_function)
    parts = cut((labels, np.empty(0, np.int64) if tested is None else tested), setup)
    _check_enough(min(map(len, parts[0])), clients, len(labels))
    if tested is not None:
        parts[1] = _fill_up(parts[1], 1, setup.seed)
        if min(map(len, parts[1])) == 0:
            raise FairbloomError(
                f"clients = {clients}: the test set has {len(tested)} examples, so some clients"
                " would have none: lower clients"
            )
    return [Dealt(*each) for each in zip(*parts, strict=True)]


def draw_held_out(setup: Setup, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the clients that are not in training, in their order; () without `held-out-clients`.

    Of N clients they are ⌊share · N⌋, and at least one; the share is read in decimal. The stream of
    (seed, "held-out") permutes the places 0 to N − 1 in `clients`, and the first places are held
    out. Raise FairbloomError if no client would be left.
    """
    share = setup.held_out_clients
    number = _count_share(share, len(clients))
    if number == len(clients):
        raise FairbloomError(
            f"held-out-clients = {share:g}: the task has only the client {clients[0]}, which would"
            " not train: leave it out, or take more clients"
        )
    places = generator(setup.seed, "held-out").permutation(len(clients))[:number]
    places.sort()
    return tuple(clients[place] for place in places)


def _check_enough(fewest: int, clients: int, examples: int) -> None:
    """Raise FairbloomError if the smallest client has too few examples to train and test on."""
    if fewest < MIN_EXAMPLES:
        raise FairbloomError(
            f"clients = {clients} leaves a client with {fewest} of {examples} examples, at least"
            f" {MIN_EXAMPLES} are needed: at most {examples // MIN_EXAMPLES} clients can share them"
        )


def iid(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Split the examples of each set at random, as evenly as possible."""
    random = generator(setup.seed, "iid")
    orders = [random.permutation(len(labels)) for labels in sets]
    return [np.array_split(order, setup.clients) for order in orders]


def shards(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Sort the examples by label, cut them into shards, and give each client several shards.

    Each set is split alike. Source: McMahan et al., AISTATS 2017, section 3.
    """
    number = setup.clients * setup.shards_per_client
    if number > len(sets[0]):
        raise FairbloomError(
            f"clients = {setup.clients} times shards-per-client = {setup.shards_per_client} is"
            f" {number} shards, more than the {len(sets[0])} examples: lower one of them"
        )
    random = generator(setup.seed, "shards")

    def cut(labels: Labels) -> list[Indices]:
        shuffled = random.permutation(len(labels))  # else equal labels would keep the file's order
        return np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], number)

    first = cut(sets[0])
    dealt = random.permutation(number).reshape(setup.clients, setup.shards_per_client)
    pieces = [first, *(cut(labels) for labels in sets[1:])]
    parts: list[list[Indices]] = []
    for of_set in pieces:
        hands = ([of_set[place] for place in hand] for hand in dealt)
        parts.append([np.concatenate(hand) for hand in hands])
    return parts


def classes(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Give each client examples of `classes-per-client` classes.

    The clients of a class have equal shares of it. Classes are given out like cards from shuffled
    packs, so that about as many clients have each class. Source: Zhao et al., Federated Learning
    with Non-IID Data, 2018.
    """
    known = np.unique(sets[0])
    clients = setup.clients
    per_client = setup.classes_per_client
    if not len(known) / clients <= per_client <= len(known):
        fewest = -(-len(known) // clients)
        raise FairbloomError(
            f"classes-per-client = {per_client}: the examples are of {len(known)} classes, so that"
            f" clients = {clients} can have from {fewest} to {len(known)} each"
        )
    random = generator(setup.seed, "classes")
    holders: dict[int, list[int]] = {int(label): [] for label in known}
    for client in range(clients):
        rarest = sorted(random.permutation(known), key=lambda label: len(holders[label]))
        for label in rarest[:per_client]:
            holders[int(label)].append(client)
    parts: list[list[Indices]] = []
    for labels in sets:
        mine: list[list[Indices]] = [[] for _ in range(clients)]
        for label, owners in holders.items():
            shuffled = random.permutation(np.flatnonzero(labels == label))
            for client, piece in zip(owners, np.array_split(shuffled, len(owners)), strict=True):
                mine[client].append(piece)
        parts.append([np.concatenate(each) for each in mine])
    return parts


def dirichlet(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Split each label's examples by shares drawn from Dirichlet(α), the same in each set.

    The smaller α, the more unequal the shares. A client with too few examples of the first set
    gets random ones from the client with the most. Source: Hsu et al., Measuring the Effects of
    Non-Identical Data Distribution, 2019.
    """
    random = generator(setup.seed, "dirichlet")
    pieces: list[list[list[Indices]]] = []
    for _ in sets:
        pieces.append([[] for _ in range(setup.clients)])
    for label in np.unique(sets[0]):
        shuffled = random.permutation(np.flatnonzero(sets[0] == label))
        ends = np.cumsum(random.dirichlet(np.full(setup.clients, setup.dirichlet_alpha)))
        rest = (random.permutation(np.flatnonzero(labels == label)) for labels in sets[1:])
        for of_set, examples in zip(pieces, (shuffled, *rest), strict=True):
            cuts = (ends * len(examples)).round().astype(int)[:-1]
            for part, piece in zip(of_set, np.split(examples, cuts), strict=True):
                part.append(piece)
    first, *others = (list(map(np.concatenate, of_set)) for of_set in pieces)
    return [_fill_up(first, setup.smallest_client, setup.seed), *others]


def sizes(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Split the examples at random into parts of sizes drawn from Dirichlet(α)."""
    random = generator(setup.seed, "sizes")
    ends = np.cumsum(random.dirichlet(np.full(setup.clients, setup.dirichlet_alpha)))
    parts: list[list[Indices]] = []
    for labels in sets:
        order = random.permutation(len(labels))
        cuts = (ends * len(labels)).round().astype(int)
        parts.append(np.split(order, cuts)[: setup.clients])
    first, *others = parts
    return [_fill_up(first, setup.smallest_client, setup.seed), *others]


def _fill_up(parts: Sequence[Indices], fewest: int, seed: int) -> list[Indices]:
    """Return the parts, with examples moved from large to small ones until all have `fewest`.

    Examples are taken at random: the last ones of a part may all be of one label. If there are not
    enough examples, all parts have about as many.
    """
    random = generator(seed, "fill up")
    filled = [part.tolist() for part in parts]
    while True:
        smallest = min(filled, key=len)
        largest = max(filled, key=len)
        if len(smallest) >= fewest or len(largest) <= fewest:
            break
        moved = int(random.integers(len(largest)))
        smallest.append(largest.pop(moved))
    return [np.array(part, np.intp) for part in filled]


def by_function(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Split each set by a user's function, as in my_module:deal.

    Each call gets the same random numbers, so that the sets' shares are the same.
    """
    function = import_partition(setup.partition)
    clients = setup.clients
    parts = []
    for labels in sets:
        if not len(labels):
            parts.append([np.empty(0, np.intp)] * clients)
            continue
        try:
            dealt = function(
                labels.copy(), clients, generator(setup.seed, "partition", setup.partition)
            )
            arrays = [np.asarray(each) for each in dealt]
        except Exception as error:  # a user's function may raise anything
            why = " ".join(str(error).split())
            raise FairbloomError(
                f"partition = {setup.partition!r}: it failed with {type(error).__name__}: {why}"
            ) from error
        fault = _find_fault(arrays, clients, len(labels))
        if fault:
            raise FairbloomError(
                f"partition = {setup.partition!r}: it must deal {clients} arrays of whole numbers,"
                f" the places of each client's examples{fault}"
            )
        parts.append([array.astype(np.intp) for array in arrays])
    return parts


def _find_fault(arrays: Sequence[NDArray[Any]], clients: int, examples: int) -> str:
    """Return why arrays are not a partition of a set's indices among clients; "" if they are."""
    strange = [
        array
        for array in arrays
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu")
    ]
    if len(arrays) != clients or strange:
        forms = ", ".join(f"{each.dtype} {each.shape}" for each in arrays[:3])
        return f"; it deals {len(arrays)}: {forms}"
    dealt = np.concatenate([array.astype(np.int64) for array in arrays])
    places, counts = np.unique(dealt, return_counts=True)
    wrong = places[(places < 0) | (places >= examples) | (counts > 1)]
    if len(wrong):
        return f", from 0 to {examples - 1}, each for one client; it deals {wrong[0]}"
    return ""


# Functions by the partition's name; each splits all sets alike.
PARTITIONS = {
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "sizes": sizes,
    "iid": iid,
}


def number_clients(clients: int, word: str = "client") -> tuple[str, ...]:
    """Return numbered names, for clients that have no others; they sort as partition ids do."""
    width = len(str(clients - 1))
    return tuple(f"{word}-{i:0{width}d}" for i in range(clients))


def name_clients(setup: Setup, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the names of clients that come with the data.

    Raise FairbloomError if the run sets another number of clients.
    """
    if setup.clients not in (0, len(clients)):
        raise FairbloomError(
            f"clients = {setup.clients}: partition = {setup.partition} has {len(clients)} clients,"
            f" {clients[0]} to {clients[-1]}: leave clients out"
        )
    return tuple(clients)


class Parts(NamedTuple):
    """The indices of a client's training, test and validation examples."""

    train: Indices
    test: Indices
    validation: Indices


def split(indices: Indices, setup: Setup, client: str, tested: Indices | None = None) -> Parts:
    """Split a client's examples by the seed; each share above 0 gets at least one of them.

    `indices` are at least three. `tested` are the client's examples of an official test set; None
    to hold out a share of `indices`.
    """
    if tested is not None and not setup.test_share:
        raise FairbloomError(
            "test-share = 0: the data set has test examples of its own, which no client trains on:"
            " leave test-share out"
        )
    if tested is not None and not setup.validation_share:
        return Parts(indices, tested, np.empty(0, np.intp))
    order = generator(setup.seed, "split", client).permutation(indices)
    test_end = 0 if tested is not None else _count_share(setup.test_share, len(order))
    validation_end = test_end + _count_share(setup.validation_share, len(order))
    if validation_end >= len(order):
        raise FairbloomError(
            f"test-share = {setup.test_share:g} and validation-share = {setup.validation_share:g}"
            f" leave no example of {client} to train on, of {len(order)}: lower them"
        )
    return Parts(
        order[validation_end:],
        order[:test_end] if tested is None else tested,
        order[test_end:validation_end],
    )


def _count_share(share: float, count: int) -> int:
    """Return the number of examples in a share, without rounding errors; at least 1 if above 0."""
    return max(int(_fraction_of(share) * count), 1) if share else 0


@cache  # called for each of a thousand clients
def _fraction_of(share: float) -> Fraction:
    return Fraction(str(share))


def add_labels(parts: Parts, labels: Labels) -> list[tuple[Indices, Labels]]:
    """Return each part's indices and labels, for `Task.dealt`."""
    return [(rows, labels[rows]) for rows in parts]


def splits_of(
    inputs: "Tensor",
    targets: "Tensor",
    parts: Parts,
    groups: "Tensor | None" = None,
    units: Indices | None = None,
) -> Splits:
    """Return a client's splits; the tensors may hold the examples of other clients, too.

    `units` has the unit of each example in the tensors.
    """
    import torch

    def part_of(rows: Indices) -> Examples:
        own_units = None if units is None else units[rows]
        return Examples(inputs, targets, torch.from_numpy(rows), groups=groups, units=own_units)

    train, test, validation = map(part_of, parts)
    return Splits(train, test, validation if len(validation) else None)
