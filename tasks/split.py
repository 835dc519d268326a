"""The split of a data set: who has which of its examples, as it is saved in a run folder and drawn."""

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

if TYPE_CHECKING:
    from .task import Task  # PyTorch is with it, which a file of the split does not need

PARTS = ("train", "test", "validation")
"""What a client's examples are for, in the order of their numbers in the file."""


@dataclass(frozen=True, eq=False)
class Split:
    """Which client has which example and for what: one entry per example in each array.

    `client` is a place in `clients`, `part` one in PARTS, `row` one in the data set; `label` is the
    class from 0. `marks` are those of the task, one for each client, "" for most.
    """

    clients: tuple[str, ...]
    client: NDArray[np.int32]
    part: NDArray[np.uint8]
    row: NDArray[np.int64]
    label: NDArray[np.int64]
    marks: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: "Task") -> "Split":
        """Return the split of a task.

        Where it deals no data set, rows count a client's own examples.
        """
        columns: list[list[NDArray[np.int64]]] = [[], [], [], []]
        for place, client in enumerate(task.clients):
            parts = _rows_and_labels(task, client) if task.dealt is None else task.dealt(client)
            for part, (rows, labels) in enumerate(parts):
                values = (np.full(len(rows), place), np.full(len(rows), part), rows, labels)
                for column, each in zip(columns, values, strict=True):
                    column.append(np.asarray(each, np.int64))
        client_of, part_of, row, label = (np.concatenate(column) for column in columns)
        marks = tuple(task.marks.get(client, "") for client in task.clients)
        return cls(
            task.clients, client_of.astype(np.int32), part_of.astype(np.uint8), row, label, marks
        )

    def to_bytes(self) -> bytes:
        """Return the file split.npz: the arrays by the names of the attributes, and `parts`, compressed."""
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
        """Return what `to_bytes` wrote."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                names = arrays["clients"].tolist()
                parts = arrays["parts"].tolist()
                columns = [arrays[name] for name in ("client", "part", "row", "label")]
                marks = arrays["marks"].tolist()
        except Exception as error:  # another file, or a hostile one, raises nearly anything
            raise ValueError(f"it is no split of a data set ({error})") from error
        words = [*names, *marks] if isinstance(names, list) and isinstance(marks, list) else [None]
        if (
            parts != [*PARTS]
            or not all(isinstance(word, str) for word in words)
            or len(marks) not in (0, len(names))
        ):
            raise ValueError(
                "it is no split of a data set: its clients, parts or marks are no list of names"
            )
        if len({*names}) != len(names):
            raise ValueError("it names a client twice")
        kinds = [np.int32, np.uint8, np.int64, np.int64]
        if [(each.dtype, each.shape) for each in columns] != [
            (np.dtype(kind), columns[0].shape) for kind in kinds
        ]:
            raise ValueError(
                "it is no split of a data set: its columns are of other types or lengths"
            )
        for each, limit in zip(columns, (len(names), len(PARTS), math.inf, 2**20), strict=True):
            if each.ndim != 1 or (each.size and not 0 <= each.min() <= each.max() < limit):
                raise ValueError("it is no split of a data set: a number in it is out of range")
        client, part, row, label = columns
        return cls(tuple(names), client, part, row, label, tuple(marks))

    def counts(self) -> NDArray[np.int64]:
        """Return how many examples of each class each client has, for whatever use.

        Shape (clients, classes).
        """
        counts = np.zeros((len(self.clients), int(self.label.max(initial=-1)) + 1), np.int64)
        np.add.at(counts, (self.client, self.label), 1)
        return counts


def _rows_and_labels(
    task: "Task", client: str
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    splits = task.splits(client)
    found = []
    start = 0
    for examples in (splits.train, splits.test, splits.validation):
        if examples is None:
            continue
        labels = examples.all_targets.numpy()
        if labels.dtype.kind != "i" or labels.ndim != 1 or labels.min(initial=0) < 0:
            raise FairbloomError(
                f"the targets of client {client} are no classes, of which a picture could be drawn"
            )
        found.append((np.arange(start, start + len(labels)), labels))
        start += len(labels)
    return found
