"""The blocks of stacked clients, and the examples of each of their steps."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, islice, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairbloom.client.augmentation import DRAWS, augmentation_stream, change_together
from fairbloom.client.local import LocalClient
from fairbloom.client.work import LocalWork, batch_sizes, batches, count_steps
from fairbloom.tasks import Examples
from fairbloom.tasks.inputs import Inputs, count_bytes, map_inputs, move, names_of, tensors_of
from fairbloom.tasks.pooled import join_tensors

from .programs import in_tensors

# Most steps of a stretch, which one graph may take.
MOST_STEPS = 32

# Largest ratio of a block's examples with padding (up to the longest batch) to those without.
MAX_PADDING = 1.5


class StackedClient(NamedTuple):
    """A client in a round: its place by name, its work, and its examples and steps.

    `batch` is the largest number of examples of a step.
    """

    local: LocalClient
    place: int
    work: LocalWork
    size: int
    batch: int
    steps: int

    @classmethod
    def of(cls, local: LocalClient, place: int, work: LocalWork, epochs: int) -> "StackedClient":
        """Return a client that does this work for these epochs."""
        own = replace(work, epochs=epochs, smallest_batch=local.smallest_batch(work))
        size = len(local.splits.train)
        return cls(
            local,
            place,
            own,
            size,
            max(batch_sizes(size, own)),
            0 if work.idle else count_steps(size, own),
        )


@dataclass(frozen=True)
class StepBatch:
    """The examples of one step of k clients, b of each, as tensors of shape (k, b, …).

    A short batch is padded with an example of its own; `sizes` has the batch sizes without padding,
    and so has `counts`, shape (k,), None if all are b.
    """

    inputs: Inputs
    targets: Tensor
    sizes: Sequence[int]
    counts: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(k, b)."""
        return self.targets.shape[0], self.targets.shape[1]

    @property
    def nbytes(self) -> int:
        """The memory that the examples take."""
        return count_bytes(self.inputs) + self.targets.nbytes

    def means(self, values: Tensor) -> Tensor:
        """Return each client's mean, shape (k,), of values of shape (k, b)."""
        if self.counts is None:
            return values.mean(1)
        counted = torch.arange(values.shape[1], device=values.device) < self.counts.unsqueeze(1)
        # torch.where would copy its 0 to the device, and wait.
        return values.masked_fill(~counted, 0.0).sum(1) / self.counts

    def tensors(self) -> list[Tensor]:
        """Return inputs, targets and, with padding, `counts`."""
        batch = [*tensors_of(self.inputs), self.targets]
        return batch if self.counts is None else [*batch, self.counts]

    def of_tensors(self, tensors: Iterator[Tensor]) -> "StepBatch":
        """Return such a step of the next tensors."""
        return StepBatch(
            map_inputs(self.inputs, lambda _: next(tensors)),
            next(tensors),
            self.sizes,
            None if self.counts is None else next(tensors),
        )

    def own(self, values: Tensor) -> Tensor:
        """Return values of shape (k, b, …) without padding, one client's after the other's."""
        flat = values.flatten(0, 1)
        if self.counts is None:
            return flat
        places = [torch.arange(size) + row * values.shape[1] for row, size in enumerate(self.sizes)]
        return flat.index_select(0, move(torch.cat(places), values.device))

    def first(self, count: int) -> "StepBatch":
        """Return the step of the first `count` clients only."""
        if count == len(self.targets):
            return self
        return StepBatch(
            map_inputs(self.inputs, lambda tensor: tensor[:count]),
            self.targets[:count],
            self.sizes[:count],
            None if self.counts is None else self.counts[:count],
        )


@dataclass(frozen=True)
class Stretch:
    """Steps of k clients on batches of equal sizes, one after the other, which one graph may take.

    Each step takes `batch`. With `places`, shape (times, k, b), step i takes places[i] of `stored`,
    the examples of all clients, which has the inputs and targets of `batch`. They are `shared` if
    they are on the device, and the next rounds have the same tensors.
    """

    batch: StepBatch
    times: int = 1
    places: Tensor | None = None
    stored: Examples | None = None
    shared: bool = True

    @property
    def key(self) -> Hashable:
        """What steps of equal shapes, which differ in their `tensors`, have in common."""
        padded = self.batch.counts is not None
        if self.places is None:
            return names_of(self.batch.inputs), padded, self.times
        # A tensor is a key as an object, and the key keeps it alive.
        return *tensors_of(self.batch.inputs), self.batch.targets, padded, self.times

    def tensors(self) -> list[Tensor]:
        """Return what the steps are made of: the batch, or the places, and `counts` if padded."""
        if self.places is None:
            return self.batch.tensors()
        return [self.places] if self.batch.counts is None else [self.places, self.batch.counts]

    def steps(self, tensors: Sequence[Tensor] = ()) -> Iterator[StepBatch]:
        """Return the steps, made of these tensors in the place of its own."""
        if self.stored is None:
            batch = self.batch.of_tensors(iter(tensors)) if tensors else self.batch
            return repeat(batch, self.times)
        stored = self.stored
        places, *counts = tensors or self.tensors()
        return (
            StepBatch(*take_rows(stored, each), self.batch.sizes, next(iter(counts), None))
            for each in places
        )

    def singles(self) -> "Iterator[Stretch]":
        """Return each step as a stretch of its own."""
        return map(Stretch, self.steps())


def divide_into_blocks(
    members: Sequence[StackedClient], most: int
) -> Iterator[list[StackedClient]]:
    """Yield the members in blocks of at most `most`, by their steps and sizes, the largest first.

    So clients that are done drop out at the end of a block, and batches need little padding.
    """
    block: list[StackedClient] = []
    longest = 0
    real = 0
    by_place = sorted(members, key=attrgetter("place"))
    # The sort is stable, so that the place decides among members of equal size.
    for member in sorted(by_place, key=attrgetter("steps", "batch"), reverse=True):
        longest = max(longest, member.batch)
        real += member.batch
        if block and (len(block) >= most or longest * (len(block) + 1) > MAX_PADDING * real):
            yield block
            block = []
            longest = member.batch
            real = member.batch
        block.append(member)
    if block:
        yield block


def examples_of(block: Sequence[StackedClient]) -> list[Examples]:
    """Return the training examples of each client."""
    return in_tensors([member.local.splits.train for member in block])


def takes_all(block: Sequence[StackedClient]) -> bool:
    """Return whether each step of a block takes all examples of each client."""
    return [member.batch for member in block] == [member.size for member in block]


def minibatches(
    block: Sequence[StackedClient],
    batch_order: Callable[[StackedClient], np.random.Generator],
) -> Iterator[Stretch]:
    """Yield the steps of a block, each with the first clients, which still train."""
    parts = examples_of(block)
    joined = join_tensors(parts)
    starts = find_starts(parts)
    works = [replace(member.work, random=batch_order(member)) for member in block]
    orders = [batches(member.size, work) for member, work in zip(block, works, strict=True)]
    steps = ([*map(next, orders[:training])] for training in count_training(block))
    for _, equal in groupby(steps, key=lambda chosen: [*map(len, chosen)]):
        while several := [*islice(equal, MOST_STEPS)]:
            yield gather(joined, starts, several)


def repeat_step(step: StepBatch, block: Sequence[StackedClient]) -> Iterator[Stretch]:
    """Yield a step that takes all examples, once for each step of the block's clients."""
    for training, equal in groupby(count_training(block)):
        while several := len([*islice(equal, MOST_STEPS)]):
            yield Stretch(step.first(training), several)


def augment_steps(
    stretches: Iterable[Stretch], name: str, seeds: Sequence[int]
) -> Iterator[Stretch]:
    """Yield the steps with augmented images; each client draws by its seed, as by itself."""
    streams = [augmentation_stream(name, seed) for seed in seeds]
    for step in chain.from_iterable(each.steps() for each in stretches):
        draws = [
            torch.from_numpy(stream.random((size, DRAWS)))
            for stream, size in zip(streams, step.sizes, strict=False)
        ]
        yield Stretch(replace(step, inputs=change_together(name, step.inputs, draws)))


def count_training(block: Sequence[StackedClient]) -> Iterator[int]:
    """Yield the number of clients that take each step of a block; they are the first ones."""
    training = len(block)
    for number in range(block[0].steps):
        while block[training - 1].steps <= number:
            training -= 1
        yield training


def full_batch(parts: Sequence[Examples]) -> StepBatch:
    """Return the step that takes all examples of each client."""
    all_of_each = [torch.arange(len(part)) for part in parts]
    stretch = gather(join_tensors(parts), find_starts(parts), [all_of_each])
    return next(stretch.steps())


def find_starts(parts: Sequence[Examples]) -> Tensor:
    """Return the index of each client's first example among all clients' examples, shape (k, 1)."""
    sizes = map(len, parts[:-1])
    return torch.tensor([0, *accumulate(sizes)]).unsqueeze(1)


def gather(joined: Examples, starts: Tensor, steps: Sequence[Sequence[Tensor]]) -> Stretch:
    """Return steps of k clients on their examples at `starts` + each of `steps`, padded if needed.

    All steps have batches of the same sizes.
    """
    sizes = [len(each) for each in steps[0]]
    counts = None
    if min(sizes) == max(sizes):
        places = torch.stack([torch.stack([*chosen]) for chosen in steps])
    else:
        counts = torch.tensor(sizes)
        places = torch.stack([pad_sequence([*chosen], batch_first=True) for chosen in steps])
        real = torch.arange(places.shape[2]) < counts.unsqueeze(1)
        places = torch.where(real, places, places[..., :1])
        counts = move(counts, joined.device)
    places = move(places + starts[: len(sizes)], joined.targets.device)
    shared = joined.rows is not None and joined.streamed_to is None
    if joined.rows is not None:
        places = joined.rows[places]
    batch = StepBatch(joined.inputs, joined.targets, sizes, counts)
    return Stretch(batch, len(steps), places, replace(joined, rows=None), shared)


def take_rows(examples: Examples, places: Tensor) -> tuple[Inputs, Tensor]:
    """Return inputs and targets at places of shape (k, b), as tensors of shape (k, b, …)."""
    inputs, targets = examples[places.flatten()]

    def shaped(tensor: Tensor) -> Tensor:
        return tensor.view(*places.shape, *tensor.shape[1:])

    return map_inputs(inputs, shaped), shaped(targets)
