"""Hand-written digits: 1,797 real images of 8×8 pixels, which come with Fairbloom."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from ..task import Setup, Task
from .pictures.album import Album, Pictures, Shifts, task_of

SIDE = 8


@cache
def read() -> Pictures:
    """Return images, shape (1797, 1, 8, 8), from 0 to 16, and labels; there is no test set."""
    content = json.loads(Path(__file__).with_name("digits.json").read_bytes())
    pixels, labels = (
        np.frombuffer(text.encode(), np.uint8) - ord("0") for text in ("".join(content["images"]), content["labels"])
    )
    images = pixels.reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    return Pictures(images, labels.astype(np.int64), images[:0], labels[:0].astype(np.int64))


ALBUM = Album(
    name="digits",
    shape=(1, SIDE, SIDE),
    classes=("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    brightest=16.0,
    read=lambda setup: read(),
)


def load(setup: Setup, *, rotated_clients: int, noisy_clients: int, dimmed_clients: int) -> Task:
    """Return the digits, split into clients; some of these have another camera, as `pictures.Shifts` says."""
    task = task_of(ALBUM, setup, Shifts(rotated_clients, noisy_clients, dimmed_clients))
    task.splits(task.clients[0])  # so that what cannot be dealt is refused here, also by a server: the data are at hand
    return task
