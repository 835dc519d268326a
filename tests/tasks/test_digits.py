"""The digits, split into clients."""

from collections import Counter

import torch
from sklearn.datasets import load_digits

from fairbloom.server.settings import Settings, Value
from fairbloom.tasks import Task, load_task

from .made import everything

SPLITS: list[dict[str, Value]] = [
    {"partition": "shards", "clients": 20},
    {"partition": "shards", "clients": 7, "shards-per-client": 3},
    {"partition": "dirichlet", "clients": 12, "dirichlet-alpha": 0.2},
    {"partition": "iid", "clients": 359},
]


def load(config: dict[str, Value] | None = None, **others: Value) -> Task:
    general = {key.replace("_", "-"): value for key, value in others.items()}
    return load_task(Settings.of({**(config or {}), **general}).run_config())


def images_of(task: Task) -> Counter[tuple[bytes, int]]:
    """Return how often each pair of image and label occurs over all clients and both splits."""
    return Counter(
        (image.numpy().tobytes(), int(target))
        for name in task.clients
        for split in task.splits(name)
        for image, target in zip(*everything(split), strict=True)
    )


def test_every_digit_is_with_one_client_which_tests_on_a_fifth() -> None:
    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy((pixels / 16.0).astype("float32"))
    expected = Counter((image.numpy().tobytes(), int(label)) for image, label in zip(inputs, labels, strict=True))
    for config in SPLITS:
        task = load(config)
        assert images_of(task) == expected
        for name in task.clients:
            train, test = map(len, task.splits(name))
            assert test == (train + test) // 5 >= 1
