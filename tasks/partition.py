"""How examples are dealt to clients; each function returns one array of example indices a client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .randomness import generator

Indices = NDArray[np.intp]

FEWEST = 5
"""Examples a client needs, so that four fifths for training and a fifth for testing are both there."""


def iid(labels: NDArray[np.int64], clients: int, seed: int) -> list[Indices]:
    """Deal the examples at random, as evenly as possible."""
    order = generator(seed, "iid").permutation(len(labels))
    return np.array_split(order, clients)


def shards(labels: NDArray[np.int64], clients: int, per_client: int, seed: int) -> list[Indices]:
    """Sort by label, cut into clients · `per_client` shards and deal them at random: few labels a client.

    Source: McMahan et al., AISTATS 2017, section 3.

    Raises
    ------
    ValueError
        When there are more shards than examples.
    """
    number = clients * per_client
    if number > len(labels):
        raise ValueError(
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
    FEWEST examples is given some of the client that has the most.
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


def check_enough(parts: Sequence[Indices], examples: int) -> None:
    """Raise ValueError when a client has too few examples to train and test on."""
    fewest = min(map(len, parts))
    if fewest < FEWEST:
        raise ValueError(
            f"clients = {len(parts)} leaves a client with {fewest} of {examples} examples, at least {FEWEST} are "
            f"needed: at most {examples // FEWEST} clients can share them"
        )


def split(indices: Indices, seed: int, client: str) -> tuple[Indices, Indices]:
    """Return a client's training and test indices: a seeded fifth, at least one, is for testing."""
    order = generator(seed, "split", client).permutation(indices)
    tested = max(len(order) // 5, 1)
    return order[tested:], order[:tested]
