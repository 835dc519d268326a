"""Clients that train side by side: who is in a block with whom, and the examples of each of their steps."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairbloom.client.local import LocalClient
from fairbloom.client.training import batch_of, batches
from fairbloom.client.work import LocalWork
from fairbloom.tasks import Examples
from fairbloom.tasks.inputs import Inputs, count_bytes, map_inputs

from .programs import in_tensors
from .together import Pool

PADDING = 1.5
"""The examples of a block, filled up to the longest batch of each step, are at most so many times the real ones."""


class Member(NamedTuple):
    """A client in a round.

    Attributes
    ----------
    local
        The client.
    place
        Its place in the order of names.
    epochs
        Passes over its examples.
    size
        How many training examples it has.
    batch
        How many examples a step takes, but for the last of an epoch.
    steps
        How many steps it takes.
    """

    local: LocalClient
    place: int
    epochs: int
    size: int
    batch: int
    steps: int

    @classmethod
    def of(cls, local: LocalClient, place: int, work: LocalWork, epochs: int) -> "Member":
        """Return a client that does this work in so many epochs.

        Raises
        ------
        FairbloomError
            When it has no example.
        """
        count = len(local.splits.train)
        batch = batch_of(count, work)
        steps = epochs * math.ceil(count / batch) if work.steps is None else work.steps
        return cls(local, place, epochs, count, batch, steps)

    @property
    def examples(self) -> Examples:
        """Its training examples."""
        return in_tensors(self.local.splits.train)


@dataclass(frozen=True)
class Step:
    """The examples of one step of k clients, b of each.

    Attributes
    ----------
    inputs, targets
        Tensors of shape (k, b, …); a short batch is filled up with an example of its own.
    counts
        How many of each client's examples count, shape (k,); None: all of them.
    """

    inputs: Inputs
    targets: Tensor
    counts: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(k, b)."""
        return self.targets.shape[0], self.targets.shape[1]

    @property
    def nbytes(self) -> int:
        """The memory that the examples take."""
        return count_bytes(self.inputs) + self.targets.nbytes

    def means(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return each client's mean, shape (k,), of values of shape (k, b); `weights` of this shape weight them."""
        if weights is not None:
            return self._sums(weights * values) / self._sums(weights)
        return values.mean(1) if self.counts is None else self._sums(values) / self.counts

    def _sums(self, values: Tensor) -> Tensor:
        """Return each client's sum, shape (k,), of values of shape (k, b)."""
        if self.counts is None:
            return values.sum(1)
        counted = torch.arange(values.shape[1], device=values.device) < self.counts.unsqueeze(1)
        return torch.where(counted, values, 0.0).sum(1)

    def first(self, count: int) -> "Step":
        """Return the step of the first clients alone."""
        if count == len(self.targets):
            return self
        inputs = map_inputs(self.inputs, lambda tensor: tensor[:count])
        return Step(inputs, self.targets[:count], None if self.counts is None else self.counts[:count])


def divide_into_blocks(members: Sequence[Member], most: int) -> Iterator[list[Member]]:
    """Yield the members in blocks of at most `most`, by their steps and sizes, the largest first.

    Clients that are done drop out at the end of a block, and there is little to fill up.
    """
    block: list[Member] = []
    longest = real = 0
    for member in sorted(members, key=lambda member: (-member.steps, -member.batch, member.place)):
        longest, real = max(longest, member.batch), real + member.batch
        if block and (len(block) == most or longest * (len(block) + 1) > PADDING * real):
            yield block
            block, longest, real = [], member.batch, member.batch
        block.append(member)
    if block:
        yield block


def takes_all(block: Sequence[Member]) -> bool:
    """Return whether each step of a block takes all examples of each client."""
    return all(member.batch == member.size for member in block)


def minibatches(
    block: Sequence[Member], work: LocalWork, batch_order: Callable[[Member], np.random.Generator]
) -> Iterator[Step]:
    """Yield the steps of a block, with the clients that take them: fewer and fewer of the first ones."""
    pool = Pool.of([member.examples for member in block])
    orders = [batches(member.size, replace(work, epochs=member.epochs, random=batch_order(member))) for member in block]
    for number in range(block[0].steps):
        taking = sum(member.steps > number for member in block)
        yield pad_step(pool, [next(order) for order in orders[:taking]])


def repeat_step(step: Step, block: Sequence[Member]) -> Iterator[Step]:
    """Yield a step that takes all examples as often as the block's clients take it."""
    for number in range(block[0].steps):
        yield step.first(sum(member.steps > number for member in block))


def full_batch(parts: Sequence[Examples]) -> Step:
    """Return the step that takes all examples of each client."""
    pool = Pool.of(parts)
    return pad_step(pool, [torch.arange(count) for count in pool.counts])


def pad_step(pool: Pool, chosen: Sequence[Tensor]) -> Step:
    """Return the step of the pool's first clients, who take these of their examples."""
    sizes = [len(each) for each in chosen]
    starts = torch.tensor(list(accumulate(pool.counts, initial=0))[: len(chosen)]).unsqueeze(1)
    if min(sizes) == max(sizes):
        return Step(*pool.at(torch.stack(list(chosen)) + starts), counts=None)
    counts = torch.tensor(sizes)
    places = pad_sequence(list(chosen), batch_first=True)
    real = torch.arange(places.shape[1]) < counts.unsqueeze(1)
    inputs, targets = pool.at(torch.where(real, places, places[:, :1]) + starts)
    return Step(inputs, targets, counts.to(targets.device))
