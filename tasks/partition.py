"""The ways in which examples are dealt to clients, and a client's examples to training, testing and validation."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from .task import Examples, Setup, Splits
from .task_info import import_partition

Indices = NDArray[np.intp]
Labels = NDArray[np.int64]

MIN_EXAMPLES = 5
"""Number of examples that a client needs, so that four fifths for training and a fifth for testing
are both there."""


class Dealt(NamedTuple):
    """What a client is dealt: indices of examples, and of those in its test set, where it has one apart."""

    examples: Indices
    tested: Indices


def deal(labels: Labels, setup: Setup, tested: Labels | None = None) -> list[Dealt]:
    """Return what each client gets, at least MIN_EXAMPLES examples, by the run's partition.

    `labels` has shape (n,); the test set with labels `tested` is dealt alike: a client's shards,
    classes or shares, and at least one example.
    """
    clients = setup.clients
    if setup.partition != "shards":  # the number of shards is checked first
        _check_enough(len(labels) // clients, clients, len(labels))
    sets = (labels, np.empty(0, np.int64) if tested is None else tested)
    parts = PARTITIONS.get(setup.partition, by_function)(sets, setup)
    _check_enough(min(map(len, parts[0])), clients, len(labels))
    if tested is not None:
        parts[1] = _fill_up(parts[1], 1)
        if min(map(len, parts[1])) == 0:
            raise FairbloomError(
                f"clients = {clients}: the test set has {len(tested)} examples, so some clients"
                " would have none: lower clients"
            )
    return [Dealt(*each) for each in zip(*parts, strict=True)]


def _check_enough(fewest: int, clients: int, examples: int) -> None:
    """Raise FairbloomError when the client that has the fewest examples has too few to train and test on."""
    if fewest < MIN_EXAMPLES:
        raise FairbloomError(
            f"clients = {clients} leaves a client with {fewest} of {examples} examples, at least"
            f" {MIN_EXAMPLES} are needed: at most {examples // MIN_EXAMPLES} clients can share them"
        )


def iid(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Deal the examples of each set at random, as evenly as possible."""
    random = generator(setup.seed, "iid")
    return [np.array_split(random.permutation(len(labels)), setup.clients) for labels in sets]


def shards(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Sort the examples by label, cut them into shards and deal each client so many, alike in each set.

    Source: McMahan et al., AISTATS 2017, section 3.
    """
    number = setup.clients * setup.shards_per_client
    if number > len(sets[0]):
        raise FairbloomError(
            f"clients = {setup.clients} times shards-per-client = {setup.shards_per_client} is"
            f" {number} shards, more than the {len(sets[0])} examples: lower one of them"
        )
    random = generator(setup.seed, "shards")

    def cut(labels: Labels) -> list[Indices]:
        # else equal labels would keep the order of the file
        shuffled = random.permutation(len(labels))
        return np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], number)

    first = cut(sets[0])
    dealt = random.permutation(number).reshape(setup.clients, setup.shards_per_client)
    pieces = [first, *map(cut, sets[1:])]
    return [[np.concatenate([those[i] for i in mine]) for mine in dealt] for those in pieces]


def classes(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Let each client have examples of so many classes.

    The clients of a class have equal shares of it.

    Classes are dealt from a shuffled pack, then from another one, so that about as many clients
    have each class. Source: Zhao et al., Federated Learning with Non-IID Data, 2018.
    """
    there = np.unique(sets[0])
    clients = setup.clients
    per_client = setup.classes_per_client
    if not len(there) / clients <= per_client <= len(there):
        raise FairbloomError(
            f"classes-per-client = {per_client}: the examples are of {len(there)} classes, so that"
            f" clients = {clients} can have from {-(-len(there) // clients)} to {len(there)} each"
        )
    random = generator(setup.seed, "classes")
    holders: dict[int, list[int]] = {int(label): [] for label in there}
    for client in range(clients):
        rarest = sorted(random.permutation(there), key=lambda label: len(holders[label]))
        for label in rarest[:per_client]:
            holders[int(label)].append(client)
    parts: list[list[Indices]] = []
    for labels in sets:
        mine: list[list[Indices]] = [[] for _ in range(clients)]
        for label, having in holders.items():
            pieces = np.array_split(
                random.permutation(np.flatnonzero(labels == label)), len(having)
            )
            for client, piece in zip(having, pieces, strict=True):
                mine[client].append(piece)
        parts.append([np.concatenate(each) for each in mine])
    return parts


def dirichlet(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Deal each label's examples by shares drawn from Dirichlet(α), the same in each set.

    Small α is unequal.

    A client with too few examples of the first set gets some from the client that has the most.
    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.
    """
    random = generator(setup.seed, "dirichlet")
    pieces: list[list[list[Indices]]] = [[[] for _ in range(setup.clients)] for _ in sets]
    for label in np.unique(sets[0]):
        shuffled = random.permutation(np.flatnonzero(sets[0] == label))
        ends = np.cumsum(random.dirichlet(np.full(setup.clients, setup.dirichlet_alpha)))
        rest = (random.permutation(np.flatnonzero(labels == label)) for labels in sets[1:])
        for of_set, mine in zip(pieces, (shuffled, *rest), strict=True):
            for part, piece in zip(
                of_set, np.split(mine, (ends * len(mine)).round().astype(int)[:-1]), strict=True
            ):
                part.append(piece)
    first, *others = [[np.concatenate(part) for part in of_set] for of_set in pieces]
    return [_fill_up(first, setup.smallest_client), *others]


def sizes(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Deal the examples at random, by sizes drawn from Dirichlet(α): clients differ in how many they have."""
    random = generator(setup.seed, "sizes")
    clients = setup.clients
    ends = np.cumsum(random.dirichlet(np.full(clients, setup.dirichlet_alpha)))
    first, *others = (
        np.split(random.permutation(len(labels)), (ends * len(labels)).round().astype(int))[
            :clients
        ]
        for labels in sets
    )
    return [_fill_up(first, setup.smallest_client), *others]


def _fill_up(parts: Sequence[Indices], fewest: int) -> list[Indices]:
    """Return the parts with examples moved from the largest to the smallest until all have `fewest`, if they can."""
    filled = [part.tolist() for part in parts]
    while (
        len(smallest := min(filled, key=len)) < fewest
        and len(largest := max(filled, key=len)) > fewest
    ):
        smallest.append(largest.pop())
    return [np.array(part, np.intp) for part in filled]


def by_function(sets: Sequence[Labels], setup: Setup) -> list[list[Indices]]:
    """Deal each set by a user's function, as in my_module:deal.

    Its streams begin alike, so shares are the same.
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
            there = [np.asarray(each) for each in dealt]
        except Exception as error:
            said = " ".join(str(error).split())
            raise FairbloomError(
                f"partition = {setup.partition!r}: it failed with {type(error).__name__}: {said}"
            ) from error
        strange = [
            each for each in there if each.ndim != 1 or (each.size and each.dtype.kind not in "iu")
        ]
        if len(there) != clients or strange:
            fault = (
                f"; it deals {len(there)}:"
                f" {', '.join(f'{each.dtype} {each.shape}' for each in there[:3])}"
            )
        else:
            places, counts = np.unique(
                np.concatenate([each.astype(np.int64) for each in there]), return_counts=True
            )
            wrong = places[(places < 0) | (places >= len(labels)) | (counts > 1)]
            fault = (
                f", from 0 to {len(labels) - 1}, each for one client; it deals {wrong[0]}"
                if len(wrong)
                else ""
            )
        if fault:
            wanted = (
                f"it must deal {clients} arrays of whole numbers, the places of each client's"
                " examples"
            )
            raise FairbloomError(f"partition = {setup.partition!r}: {wanted}{fault}")
        parts.append([each.astype(np.intp) for each in there])
    return parts


PARTITIONS = {
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "sizes": sizes,
    "iid": iid,
}
"""What deals the examples of each set to clients, alike, by the partition's name."""


def number_clients(clients: int) -> tuple[str, ...]:
    """Return the names of clients that have no others: numbers, so that their order is that of partition ids."""
    width = len(str(clients - 1))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def name_clients(setup: Setup, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the names of clients that come with the data."""
    if setup.clients not in (0, len(clients)):
        raise FairbloomError(
            f"clients = {setup.clients}: partition = {setup.partition} has {len(clients)} clients,"
            f" {clients[0]} to {clients[-1]}: leave clients out"
        )
    return tuple(clients)


class Parts(NamedTuple):
    """The indices of a client's examples: those to train on, to be tested on, and to choose the best model by."""

    train: Indices
    test: Indices
    validation: Indices


def split(indices: Indices, setup: Setup, client: str, tested: Indices | None = None) -> Parts:
    """Return a client's examples as the seed splits them.

    Each share that is asked for has at least one of them.

    `indices` are at least three; `tested` are its examples of a separate test set, None where a
    share is held out.
    """
    if tested is not None and not setup.validation_share:
        return Parts(indices, tested, np.empty(0, np.intp))
    order = generator(setup.seed, "split", client).permutation(indices)
    ends = [0, 0 if tested is not None else _share(setup.test_share, len(order))]
    ends.append(ends[-1] + _share(setup.validation_share, len(order)))
    if ends[-1] >= len(order):
        raise FairbloomError(
            f"test-share = {setup.test_share:g} and validation-share = {setup.validation_share:g}"
            f" leave {client} none of its {len(order)} examples to train on: lower them"
        )
    test, validation = (order[start:end] for start, end in pairwise(ends))
    return Parts(order[ends[-1] :], test if tested is None else tested, validation)


def _share(share: float, count: int) -> int:
    """Return so large a share of a number, counted exactly and at least one; 0 for none."""
    return max(int(Fraction(str(share)) * count), 1) if share else 0


def add_labels(parts: Parts, labels: Labels) -> list[tuple[Indices, Labels]]:
    """Return each part's indices with their labels, for `Task.dealt`."""
    return [(rows, labels[rows]) for rows in parts]


def splits_of(
    inputs: Tensor, targets: Tensor, parts: Parts, groups: Tensor | None = None
) -> Splits:
    """Return a client's splits of tensors that hold its examples, and may hold those of others."""
    train, test, validation = (
        Examples(inputs, targets, torch.from_numpy(rows), groups) for rows in parts
    )
    return Splits(train, test, validation if len(validation) else None)
