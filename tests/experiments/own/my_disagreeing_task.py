"""A task whose test examples have the opposite answers of the others, so that tests and validation disagree."""

from typing import Annotated

import torch
from torch import nn

from fairbloom.protocol.parameters import Range
from fairbloom.tasks import Examples, Setup, Splits, Task

SITES = ("a", "b", "c")


def flipped(setup: Setup, *, unjudged: Annotated[int, Range("[0, inf)")] = 0) -> Task:
    """Sites whose test answers are flipped.

    Parameters
    ----------
    unjudged : int, default 0
        How many sites have no validation examples.
    """

    def splits(site):
        number = SITES.index(site)
        generator = torch.Generator().manual_seed(100 * setup.seed + number)
        examples = torch.randn(60, 4, generator=generator)
        answers = (examples[:, 0] + 0.2 * torch.randn(60, generator=generator) > 0.0).long()
        judged = bool(setup.validation_share) and number >= unjudged
        validation = Examples(examples[30:45], answers[30:45]) if judged else None
        return Splits(Examples(examples[:30], answers[:30]), Examples(examples[45:], 1 - answers[45:]), validation)

    def model():
        torch.manual_seed(setup.seed)
        return nn.Linear(4, 2)

    return Task(clients=SITES, model=model, loss=nn.CrossEntropyLoss(reduction="none"), splits=splits)
