"""Sentences of eight clinics, as two tensors by name."""

from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Setup, Splits, Task
from fairbloom.tasks.models import build_user_defined

TOPICS = 3
LONGEST = 12


def sentences(client: int, count: int, seed: int) -> Examples:
    """Sentences of 4 to 12 words. Each client has one topic above all, and every other one words of
    its own."""
    rng = np.random.default_rng([seed, client])
    topics = rng.choice(TOPICS, count, p=np.roll([0.6, 0.2, 0.2], client))
    words = 10 + 20 * topics[:, None] + 60 * (client % 2) + rng.integers(20, size=(count, LONGEST))
    mask = np.arange(LONGEST) < rng.integers(4, LONGEST + 1, size=(count, 1))
    inputs = {
        "input_ids": torch.from_numpy(words * mask),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }
    return Examples(inputs, torch.from_numpy(topics))


def task(setup: Setup) -> Task:
    """The topics of sentences, at eight clinics."""
    names = tuple(f"clinic-{number}" for number in range(1, 9))

    def model() -> torch.nn.Module:
        torch.manual_seed(setup.seed)
        return build_user_defined(setup.model or "my_models:adapter", (LONGEST,), TOPICS)

    def splits(name: str) -> Splits:
        place = names.index(name)
        return Splits(
            train=sentences(place, 40, setup.seed), test=sentences(place, 30, setup.seed + 1)
        )

    return Task(
        clients=names, model=model, loss=partial(cross_entropy, reduction="none"), splits=splits
    )
