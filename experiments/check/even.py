"""Even and odd digits in two groups, by where the ink is: what methods that compare groups of examples learn here."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbloom.tasks import TASKS, Examples, Setup, Task
from fairbloom.tasks.datasets.digits import SIDE
from fairbloom.tasks.task import AnyExamples


def task(setup: Setup) -> Task:
    """Return the digits as a task of two classes whose examples are grouped by the half that has more ink."""
    digits = TASKS["digits"].load(setup.model_copy(update={"model": "logistic"}), {})

    def model() -> nn.Module:
        torch.manual_seed(setup.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))

    def group(part: AnyExamples) -> Examples:
        inputs, targets = part[slice(None)]
        if not isinstance(inputs, Tensor):
            raise TypeError(f"digits are one tensor, got {type(inputs).__name__}")
        columns = inputs.reshape(-1, SIDE, SIDE).sum(dim=1)
        sides = (columns[:, SIDE // 2 :].sum(dim=1) > columns[:, : SIDE // 2].sum(dim=1)).long()
        return Examples(inputs, 1 - targets % 2, groups=sides[:, None])

    return replace(
        digits,
        model=model,
        splits=lambda client: digits.splits(client).map(group),
        classes=2,
        class_names=("odd", "even"),
        groupings={"side": ("left", "right")},
    )
