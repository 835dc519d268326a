"""Loaders in place of a user's own: the same examples, in the batches that the server's terms ask for."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fairbloom.errors import ReportableError

Loader = DataLoader[Any]

Data = Any
"""What a training function is called with: a DataLoader, or a dataset of PyTorch's or Hugging Face's."""


def is_dataset(value: object) -> bool:
    """Return whether a value is a dataset; Hugging Face's library is not imported to find out."""
    return isinstance(value, Dataset) or type(value).__module__.partition(".")[0] == "datasets"


def draw_examples(dataset: Any, count: int) -> Any:
    """Return `count` examples of a dataset, in as many passes as they need, each in another random order."""
    size = len(dataset)
    passes = [torch.randperm(size) for _ in range(-(-count // size))]
    return choose_examples(dataset, torch.cat(passes)[:count].tolist())


def choose_examples(dataset: Any, indices: list[int]) -> Any:
    """Return some examples of a dataset; one of Hugging Face's stays one, with its columns."""
    return dataset.select(indices) if hasattr(dataset, "select") else Subset(dataset, indices)


class Batches:
    """Stands in for a loader: yields `count` batches in the first pass, and nothing in later ones.

    So a function that makes several passes takes exactly these batches. All else is the loader's own.
    """

    def __init__(self, loader: Loader, batches: Iterable[Any], count: Callable[[], int]) -> None:
        self._loader, self._left, self._count = loader, iter(batches), count

    def __iter__(self) -> Iterator[Any]:
        return self._left

    def __len__(self) -> int:
        return self._count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def steps_of(loader: Loader, steps: int) -> Batches:
    """Return `count` batches of a loader, in as many passes over it as they need."""
    return Batches(loader, itertools.islice(_passes(loader), steps), lambda: steps)


def epochs_of(data: Data | None, epochs: int) -> Any:
    """Return data that make one pass of a function several epochs; None: its own data."""
    if isinstance(data, DataLoader):
        passes = itertools.repeat(data, epochs)
        return Batches(data, itertools.chain.from_iterable(passes), lambda: epochs * len(data))
    return None if data is None or epochs == 1 else choose_examples(data, [*range(len(data))] * epochs)


def one_batch(loader: Data, term: str) -> Batches:
    """Return all examples of a loader as one batch; `term` says what asks for it, as key = value."""
    examples = examples_of(loader) if isinstance(loader, DataLoader) else None
    if examples is None:
        raise ReportableError(
            f"{term}: the training data cannot make one batch of all examples: give the training "
            "function a DataLoader that has a batch size, and whose Dataset has a length"
        )
    return Batches(loader, _like(loader, examples, len(examples)), lambda: 1)


def whole(loader: Data) -> list[Any]:
    """Return loaders that together have each training example once, in order; the batches of each are of one size.

    So the mean over a loader's batches is the mean over its examples. A loader that does not say which examples it has
    is returned itself, and so is what is no DataLoader.
    """
    examples = examples_of(loader) if isinstance(loader, DataLoader) else None
    if examples is None:
        return [loader]
    size = loader.batch_size or len(next(iter(loader.batch_sampler or [[0]])))
    rest = len(examples) % size
    full = len(examples) - rest
    if not full or not rest:
        return [_like(loader, examples, size)]
    return [_like(loader, Subset(examples, part), size) for part in (range(full), range(full, len(examples)))]


def examples_of(loader: Loader) -> Any:
    """Return the dataset of the examples that a loader draws from, None where it does not say which they are."""
    dataset: Dataset[Any] = loader.dataset
    if isinstance(dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    if loader.batch_size is None:  # batches are chosen by the user's own sampler
        return Subset(dataset, sorted({index for batch in loader.batch_sampler for index in batch}))
    sampler = loader.sampler
    if isinstance(sampler, SequentialSampler | RandomSampler | WeightedRandomSampler):
        return dataset
    return Subset(dataset, sorted(set(sampler.indices if isinstance(sampler, SubsetRandomSampler) else sampler)))


@contextmanager
def generators_kept(loader: Data) -> Iterator[None]:
    """Give a loader's own random generators, at the end, the state that they have now."""
    sampler = getattr(loader, "sampler", None)
    owned = [getattr(loader, "generator", None), getattr(sampler, "generator", None)]
    states = [(own, own.get_state()) for own in owned if isinstance(own, torch.Generator)]
    try:
        yield
    finally:
        for own, state in states:
            own.set_state(state)


def _passes(loader: Loader) -> Iterator[Any]:
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise ReportableError(
                "the training loader has no batch: with drop_last it needs at least batch_size examples"
            )


def _like(loader: Loader, examples: Any, size: int) -> Loader:
    """Return a loader of examples in order that collates them as another one does."""
    return DataLoader(
        examples,
        batch_size=size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
