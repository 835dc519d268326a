"""The ways in which examples are dealt to clients; each function returns an array of example indices per client."""

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from .task import Setup

Indices = NDArray[np.intp]

FEWEST = 5
"""Number of examples that a client needs, so that four fifths for training and a fifth for testing are both there."""


def deal(labels: NDArray[np.int64], setup: Setup) -> list[Indices]:
    """Return each client's example indices, at least FEWEST each, by the partition that a run asks for.

    Raises
    ------
    FairbloomError
        When there are too few examples for so many clients or shards.
    """
    if setup.partition != "shards":  # whose number is checked as well before any client is dealt to
        check_enough(len(labels) // setup.clients, setup.clients, len(labels))
    match setup.partition:
        case "shards":
            parts = shards(labels, setup.clients, setup.shards_per_client, setup.seed)
        case "dirichlet":
            parts = dirichlet(labels, setup.clients, setup.dirichlet_alpha, setup.seed)
        case _:
            parts = iid(labels, setup.clients, setup.seed)
    check_enough(min(map(len, parts)), setup.clients, len(labels))
    return parts


def iid(labels: NDArray[np.int64], clients: int, seed: int) -> list[Indices]:
    """Deal the examples at random, as evenly as possible."""
    order = generator(seed, "iid").permutation(len(labels))
    return np.array_split(order, clients)


def shards(labels: NDArray[np.int64], clients: int, per_client: int, seed: int) -> list[Indices]:
    """Sort the examples by label, cut them into shards and deal each client `per_client` of these: few labels a client.

    Source: McMahan et al., AISTATS 2017, section 3.

    Raises
    ------
    FairbloomError
        When there are more shards than examples.
    """
    number = clients * per_client
    if number > len(labels):
        raise FairbloomError(
            f"clients = {clients} times shards-per-client = {per_client} is {number} shards, more than the "
            f"{len(labels)} examples: lower one of them"
        )
    random = generator(seed, "shards")
    shuffled = random.permutation(len(labels))  # else equal labels would keep the order of the file
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], number)
    dealt = random.permutation(number).reshape(clients, per_client)
    return [np.concatenate([pieces[i] for i in mine]) for mine in dealt]


def dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, seed: int) -> list[Indices]:
    """Deal each label's examples by shares drawn from Dirichlet(`alpha`): the smaller alpha, the more unequal.

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019. A client that gets fewer than
    FEWEST examples is given some from the client that has the most.
    """
    random = generator(seed, "dirichlet")
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        ends = (np.cumsum(random.dirichlet(np.full(clients, alpha))) * len(mine)).round().astype(int)
        for part, piece in zip(parts, np.split(mine, ends[:-1]), strict=True):
            part.extend(piece.tolist())
    while len(smallest := min(parts, key=len)) < FEWEST and len(largest := max(parts, key=len)) > FEWEST:
        smallest.append(largest.pop())
    return [np.array(part) for part in parts]


def check_enough(fewest: int, clients: int, examples: int) -> None:
    """Raise FairbloomError when the client that has the fewest examples has too few to train and test on."""
    if fewest < FEWEST:
        raise FairbloomError(
            f"clients = {clients} leaves a client with {fewest} of {examples} examples, at least {FEWEST} are "
            f"needed: at most {examples // FEWEST} clients can share them"
        )


def split(indices: Indices, seed: int, client: str) -> tuple[Indices, Indices]:
    """Return a client's training and test indices: a fifth that the seed draws, at least one, is for testing."""
    order = generator(seed, "split", client).permutation(indices)
    tested = max(len(order) // 5, 1)
    return order[tested:], order[:tested]
