"""FEMNIST, a part of LEAF: 814,277 hand-written digits and letters of 28×28 pixels, by writer."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..catalogue import TASKS
from ..partition import (
    MIN_EXAMPLES,
    Indices,
    Labels,
    add_labels,
    deal,
    number_clients,
    split,
    splits_of,
)
from ..task import Setup, Splits, Task
from .classification import classify, draw_clients, group_rows, numbered
from .hub import decode, read_columns, to_labels
from .store import locate

# The partition that makes a client of each writer.
WRITER = "writer"

# The shape of an image.
SHAPE = (1, 28, 28)

# Ten digits, 26 capitals and 26 small letters.
CLASSES = 62


class Characters(NamedTuple):
    """Undecoded images, labels from 0 to 61 (digits, capitals, small letters) and writers."""

    path: Path
    images: Any
    labels: Labels
    writers: list[str]


def load(setup: Setup) -> Task:
    """Return the task, with one client per writer, or split among any number of clients.

    The writers' names are read at once if writers are the clients. Images are decoded when a
    client's splits are needed: float32 from 0 (black) to 1.
    """

    @cache
    def characters() -> Characters:
        (path,) = locate(TASKS["femnist"], setup)
        columns = read_columns(path, "image", "character", "writer_id")
        return Characters(
            path,
            columns["image"],
            to_labels(path, columns["character"].to_numpy(zero_copy_only=False), CLASSES),
            columns["writer_id"].to_pylist(),
        )

    @cache
    def rows() -> dict[str, Indices]:
        if setup.partition == WRITER:
            return draw_clients(
                group_rows(characters().writers),
                setup,
                "writers",
                lambda count: count >= MIN_EXAMPLES,
            )
        parts = deal(characters().labels, setup)
        return {
            name: part.examples
            for name, part in zip(number_clients(setup.clients), parts, strict=True)
        }

    @cache
    def pixels(client: str) -> NDArray[np.uint8]:
        return decode(characters().path, characters().images, rows()[client].tolist(), "L", SHAPE)

    def splits(client: str) -> Splits:
        labels = torch.from_numpy(characters().labels[rows()[client]])
        images = torch.from_numpy(pixels(client) / np.float32(255))
        return splits_of(images, labels, split(np.arange(len(labels)), setup, client))

    def dealt(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(split(rows()[client], setup, client), characters().labels)

    names = tuple(rows()) if setup.partition == WRITER else number_clients(setup.clients)
    return classify(setup, names, SHAPE, numbered(CLASSES), splits, dealt)
