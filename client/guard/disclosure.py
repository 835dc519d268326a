"""The gate of a device: it decides which numbers leave it, by the rows behind each number."""

from collections.abc import Mapping

import torch

from fairbloom.protocol.names import LARGER_CLASS
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits, Task
from fairbloom.tasks.tables.reasons import DataError
from fairbloom.tasks.task import AnyExamples

from ..metrics import OF_TRAINING, Measurement
from ..training import count_rows, min_batch_of
from ..work import LocalWork
from .audit_log import hold_back
from .row_influence import check_influence, check_rows

# Scores from which scores, or counts, of single classes can be computed.
CLASS_SCORES = frozenset(
    {"balanced-accuracy", "auc", "f1", "sensitivity", "specificity", LARGER_CLASS}
)


class Gate:
    """Decides which numbers may leave the device: those of at least `min_rows` rows."""

    def __init__(self, min_rows: int, task: Task, splits: Splits) -> None:
        self.min_rows = min_rows
        self._task = task
        self._splits = splits

    def check_training(self) -> None:
        """Raise DataError if a model would leave that is trained on too few rows."""
        self._check("few-to-train", len(self._splits.train))

    def check_work(self, work: LocalWork, terms: Terms) -> None:
        """Raise ReportableError if the work could make a model that shows single rows."""
        if self.min_rows > 1 and not work.idle:
            check_influence(work, terms, len(self._splits.train), self.min_rows)

    def check_steps(
        self, work: LocalWork, terms: Terms, steps: int, model: torch.nn.Module
    ) -> None:
        """Raise ReportableError if a model would leave after steps on too few rows."""
        taken = {"the trained model": steps}
        if terms.snapshot_step is not None:
            taken["the snapshot"] = min(steps, terms.snapshot_step)
        for name, number in taken.items():
            rows = count_rows(len(self._splits.train), work, number, min_batch_of(model))
            check_rows(name, rows, number, work, self.min_rows)

    def pass_scores(
        self, measurement: Measurement, scores: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the scores that may leave, by their names.

        Raise DataError if scores of training may not leave: methods need all of them.
        """
        part = measurement.examples
        examples: AnyExamples = getattr(self._splits, part)
        if measurement in OF_TRAINING:
            self._check("few-to-measure", len(examples))
        if len(examples) < self.min_rows:
            hold_back(
                f"loss and scores of its {part} examples, because there are fewer than"
                f" {self.min_rows}"
            )
            return {}
        of_classes = {name for name in scores if name.partition("-at-")[0] in CLASS_SCORES}
        if not of_classes:
            return dict(scores)
        targets = examples.all_targets.cpu()
        why = "their targets are not classes"
        if targets.dim() == 1 and not targets.is_floating_point():
            counts = torch.bincount(
                targets, minlength=self._task.classes or len(self._task.class_names) or 2
            )
            if int(counts.min()) >= self.min_rows:
                return dict(scores)
            why = f"a class has fewer than {self.min_rows} of them"
        hold_back(f"{', '.join(sorted(of_classes))} of its {part} examples, because {why}")
        return {name: score for name, score in scores.items() if name not in of_classes}

    def _check(self, why: str, rows: int) -> None:
        if rows < self.min_rows:
            reason = DataError("", why, min_rows=self.min_rows).reportable
            raise DataError(f"{rows} training rows: {reason}", why, min_rows=self.min_rows)
