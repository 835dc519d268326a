"""Examples of a Dataset, loaded a batch at a time when they are needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from fairbloom.errors import ReportableError

from .inputs import Inputs, map_inputs, move, tensors_of

# Examples that are loaded at once if the run sets no number.
BATCH = 256

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class CollatedExamples:
    """The examples of one split of one client, at most a batch of them in memory.

    Attributes
    ----------
    device
        The device that batches are moved to. For the other attributes see `Examples.of`.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]
    rows: Tensor | None = None
    groups: Tensor | None = None
    target: str = "labels"
    device: torch.device = CPU
    units: ClassVar[None] = None  # each example is a unit of its own

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.dataset if self.rows is None else self.rows)

    def __getitem__(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of the examples at these indices of the split, as one batch."""
        places = torch.arange(len(self))[chosen] if isinstance(chosen, slice) else chosen
        rows = (places if self.rows is None else self.rows[places]).tolist()
        load_several = getattr(self.dataset, "__getitems__", None)  # as PyTorch's DataLoader does
        batch = self.collate_fn(
            load_several(rows) if load_several else [self.dataset[row] for row in rows]
        )
        inputs: Any = ()
        targets: Any = None
        if isinstance(batch, Mapping):
            inputs = {str(name): each for name, each in batch.items() if name != self.target}
            targets = batch.get(self.target)
        elif isinstance(batch, tuple | list) and len(batch) > 1:
            *first, targets = batch
            inputs = first[0] if len(first) == 1 else first
            if isinstance(inputs, list):
                inputs = tuple(inputs)
        are_tensors = all(isinstance(each, Tensor) for each in (*tensors_of(inputs), targets))
        if not are_tensors or targets.shape[:1] != (len(rows),):
            got = ", ".join(type(each).__name__ for each in tensors_of(inputs)) or "none"
            shape = f" of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else ""
            raise ReportableError(
                f"collate_fn must return (inputs, targets), or tensors by name with {self.target!r}"
                f" among them, all of them tensors with a row for each of {len(rows)} examples; it"
                f" returned a {type(batch).__name__}, with the inputs {got} and the targets"
                f" {type(targets).__name__}{shape}"
            )
        return map_inputs(inputs, lambda tensor: move(tensor, self.device)), move(
            targets, self.device
        )

    @cached_property
    def all_targets(self) -> Tensor:
        """The targets of this split; all its examples are loaded once for them, in batches."""
        with torch.random.fork_rng(devices=[]):  # a Dataset may draw random numbers
            parts = [self[start : start + BATCH][1] for start in range(0, len(self), BATCH)]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ReportableError(
                "the targets of batches have several lengths, so they are no classes of an example:"
                " fill all batches up to one length in collate_fn, or leave out what asks for"
                " classes"
            )
        return torch.cat(parts)

    def group_places(self) -> Tensor | None:
        """Return `groups` of the examples of this split; None if they have no groups."""
        if self.rows is None or self.groups is None:
            return self.groups
        return self.groups.index_select(0, self.rows)

    def rows_of_units(self, fewest: int) -> int:
        """Return `fewest`: so many examples are of as many units."""
        return fewest

    def count_units(self, which: Tensor) -> int:
        """Return the number of examples that `which` is true for."""
        return int(which.sum())

    def to(self, device: torch.device) -> "CollatedExamples":
        """Return the same examples, with their batches on `device`."""
        return replace(self, device=device)


def join_collated(parts: Sequence[CollatedExamples]) -> CollatedExamples:
    """Return the examples of all parts, one after the other."""
    first = parts[0]
    if any((part.collate_fn, part.target) != (first.collate_fn, first.target) for part in parts):
        raise ReportableError(
            "pooled = true: the clients' examples have several functions collate_fn: give all the"
            " same"
        )
    subsets = [
        part.dataset if part.rows is None else Subset(part.dataset, part.rows.tolist())
        for part in parts
    ]
    places = (part.group_places() for part in parts)
    groups = [each for each in places if each is not None]
    whole: ConcatDataset[Any] = ConcatDataset(subsets)
    return replace(first, dataset=whole, rows=None, groups=torch.cat(groups) if groups else None)
