"""The split of a data set among clients, as run folders save it and figures draw it."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

if TYPE_CHECKING:
    from .task import Task

# The uses of a client's examples, in the order of their numbers in the file.
PARTS = ("train", "test", "validation")


@dataclass(frozen=True, eq=False)
class Split:
    """Each example's client and use, one entry per example in each array.

    `client` is an index into `clients`, `part` one into PARTS, `row` one into the data set; `label`
    is the class from 0. `marks` has the task's mark of each client, "" for most.
    """

    clients: tuple[str, ...]
    client: NDArray[np.int32]
    part: NDArray[np.uint8]
    row: NDArray[np.int64]
    label: NDArray[np.int64]
    marks: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: "Task") -> "Split":
        """Return the split of a task; without a common data set, rows count a client's examples."""
        dealt = task.dealt or partial(_rows_and_labels, task)
        parts = [
            (place, part, rows, labels)
            for place, client in enumerate(task.clients)
            for part, (rows, labels) in enumerate(dealt(client))
        ]
        lengths = [len(rows) for _, _, rows, _ in parts]
        places = np.array([place for place, _, _, _ in parts], np.int32)
        sides = np.array([part for _, part, _, _ in parts], np.uint8)
        return cls(
            task.clients,
            np.repeat(places, lengths),
            np.repeat(sides, lengths),
            np.concatenate([rows for _, _, rows, _ in parts]).astype(np.int64),
            np.concatenate([labels for _, _, _, labels in parts]).astype(np.int64),
            tuple(task.marks.get(client, "") for client in task.clients),
        )

    def to_bytes(self) -> bytes:
        """Return the compressed file split.npz: `parts`, and arrays with the attributes' names."""
        file = io.BytesIO()
        np.savez_compressed(
            file,
            clients=np.array(self.clients),
            parts=np.array(PARTS),
            client=self.client,
            part=self.part,
            row=self.row,
            label=self.label,
            marks=np.array(self.marks, np.str_),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Split":
        """Return the split that `to_bytes` wrote; raise ValueError for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                names = arrays["clients"].tolist()
                parts = arrays["parts"].tolist()
                columns = [arrays[name] for name in ("client", "part", "row", "label")]
                marks = arrays["marks"].tolist()
        except Exception as error:  # another file, or a hostile one, raises nearly anything
            raise ValueError(f"it is not a split of a data set ({error})") from error
        # A scalar array has no list: hostile files are read, too.
        if (
            parts != [*PARTS]
            or not (isinstance(names, list) and isinstance(marks, list))
            or not all(isinstance(word, str) for word in (*names, *marks))
            or len(marks) not in (0, len(names))
        ):
            raise ValueError(
                "it is not a split of a data set: clients, parts or marks are not lists of names"
            )
        if len({*names}) != len(names):
            raise ValueError("it names a client twice")
        if [(each.dtype, each.shape) for each in columns] != [
            (np.dtype(kind), columns[0].shape) for kind in (np.int32, np.uint8, np.int64, np.int64)
        ]:
            raise ValueError(
                "it is not a split of a data set: its columns are of other types or lengths"
            )
        for column, limit in zip(columns, (len(names), len(PARTS), math.inf, 2**20), strict=True):
            if column.ndim != 1 or (column.size and not 0 <= column.min() <= column.max() < limit):
                raise ValueError("it is not a split of a data set: a number in it is out of range")
        client, part, row, label = columns
        return cls(tuple(names), client, part, row, label, tuple(marks))

    def counts(self) -> NDArray[np.int64]:
        """Return the number of examples by client and class, shape (clients, classes)."""
        counts = np.zeros((len(self.clients), int(self.label.max(initial=-1)) + 1), np.int64)
        np.add.at(counts, (self.client, self.label), 1)
        return counts


def _rows_and_labels(
    task: "Task", client: str
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    splits = task.splits(client)
    start = 0
    for examples in (splits.train, splits.test, splits.validation):
        if examples is None:
            continue
        labels = examples.all_targets.numpy()
        if labels.dtype.kind != "i" or labels.ndim != 1 or labels.min(initial=0) < 0:
            raise FairbloomError(
                f"the targets of client {client} are not classes, so the split cannot be drawn"
            )
        yield np.arange(start, start + len(labels)), labels
        start += len(labels)
