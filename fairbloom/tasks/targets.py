"""The target of a user's own files: classes, or a quantity.

PyTorch is imported late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.tables.schema import Schema

from .measures import (
    AUC,
    BALANCED_ACCURACY,
    MAE,
    R2,
    RMSE,
    OfEach,
    absolute_error,
    auc,
    balanced_accuracy,
    group_scores_of_classes,
    r2,
    rmse,
)
from .task import is_highest

if TYPE_CHECKING:
    from torch import Tensor

Measure: TypeAlias = "Callable[[Tensor, Tensor], Tensor | float]"

# Usual names of the positive class in lower case, in English and some other languages.
POSITIVE_WORDS = frozenset(
    (
        "yes",
        "y",
        "true",
        "t",
        "positive",
        "pos",
        "+",
        "present",
        "1",
        "ill",
        "sick",
        "disease",
        "diseased",
        "case",
        "patient",
        "affected",
        "infected",
        "abnormal",
        "malignant",
        "cancer",
        "tumor",
        "tumour",
        "event",
        "failure",
        "default",
        "dead",
        "died",
        "death",
        "deceased",
        "expired",
        "relapse",
        "relapsed",
        "recurrence",
        "recurred",
        "progression",
        "progressed",
        "readmitted",
        "complication",
        "fraud",
        "churn",
        "ja",
        "wahr",
        "positiv",
        "krank",
        "tot",
        "verstorben",
        "oui",
        "vrai",
        "positif",
        "malade",
        "mort",
        "décédé",
        "si",
        "sí",
        "positivo",
        "enfermo",
        "muerto",
        "sim",
        "malato",
    )
)


@dataclass(frozen=True)
class Target:
    """The meaning of a model's outputs: `classes` in their order, or a quantity if that is ().

    A quantity is learned in units of `scale` around `center`, as the schema states them, so that
    learning rates do not depend on its unit; scores are in its own unit.
    """

    classes: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 1.0
    unit: str = ""

    @property
    def outputs(self) -> int:
        """The number of outputs for an example."""
        return len(self.classes) or 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy, or the squared error in units of `scale`, of each example."""
        if self.classes:
            from torch.nn.functional import cross_entropy

            return cross_entropy(outputs, targets, reduction="none")
        return (outputs.reshape(targets.shape) - targets).square()

    def scores(self) -> Mapping[Score, Measure]:
        """Return the scores, the one that fairness is measured in first."""
        if not self.classes:
            return {
                replace(MAE, measured_in=self.unit): partial(absolute_error, scale=self.scale),
                R2: r2,
                replace(RMSE, measured_in=self.unit): partial(rmse, scale=self.scale),
            }
        scores: dict[Score, Measure] = {ACCURACY: is_highest, BALANCED_ACCURACY: balanced_accuracy}
        if len(self.classes) == 2:
            scores[AUC] = auc
        return scores

    def group_scores(self, positive: int) -> Mapping[GroupScore, OfEach]:
        """Return the scores of groups; `positive` is the index of the positive class of two."""
        if self.classes:
            return group_scores_of_classes(len(self.classes), positive, self.classes[positive])
        return {
            GroupScore(
                MAE.name, higher_is_better=MAE.higher_is_better, measured_in=self.unit
            ): partial(absolute_error, scale=self.scale)
        }

    @classmethod
    def of(cls, schema: Schema) -> Target:
        """Return the target of a schema."""
        field = schema.predicted
        if field.categories or field.center is None or field.scale is None:
            return cls(field.categories, unit=field.unit)
        return cls(center=field.center, scale=field.scale or 1.0, unit=field.unit)


def as_targets(values: Any, target: Target) -> Tensor:
    """Return indices of classes, or a quantity in units of its scale, as the loss expects them."""
    import torch

    if target.classes:
        return torch.as_tensor(values, dtype=torch.int64)
    return torch.as_tensor((values - target.center) / target.scale, dtype=torch.float32)
