"""The gate of a device: it decides which numbers leave it, by the rows behind each number.

A few settings make an update forget all rows but the last, or end training after the first. The
gate closes such ways in a single run. It does not close all: an update of many rows can still
reveal one of them, and so can the difference between two runs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import LARGER_CLASS, NUM_EXAMPLES, ROWS_MISSING
from fairbloom.protocol.terms import Terms
from fairbloom.tables import DataError
from fairbloom.tasks import Splits, Task
from fairbloom.tasks.task import AnyExamples

from ..gate import OpenGate, hold_back
from ..local import LocalClient
from ..metrics import OF_TRAINING, Measurement
from ..states import REPORTED, ClientStates
from ..work import LocalWork, batch_of, batch_sizes, count_rows, min_batch_of
from .order import secret_order

# Scores from which scores, or counts, of single classes can be computed.
CLASS_SCORES = frozenset(
    {"balanced-accuracy", "auc", "f1", "recall", "sensitivity", "specificity", LARGER_CLASS}
)

# The largest share of the model that one step may forget. Where the last step has one row, readings
# of that row from the tutorial's hospitals are wrong by 0.25 to 1.1 standard deviations just below
# this limit, by 0.4 and more without weight decay, and by 1e-7 if a step forgets all.
MAX_FORGETTING = 0.5

# The same if every step has few rows, so that at least 20 steps count.
MAX_FORGETTING_OF_FEW = 0.05

# The largest learning rate. With a higher one, the last step of a network or of a linear regression
# can be larger than all before it together; with one of 10,000, a full batch of logistic regression
# has the gradient of the few rows that are on the wrong side.
MAX_RATE = 1.0

# The largest ratio of PropFair's M and ε if a step has few rows: M/ε is how much more the row with
# the highest loss may weigh than a row without a loss.
MAX_STEEPNESS_OF_FEW = 100.0


class Gate(OpenGate):
    """Decides which numbers may leave the device: those of at least `min_rows` rows.

    If examples have units, for example persons, they are of at least that number of units.
    """

    def __init__(self, min_rows: int, task: Task, splits: Splits) -> None:
        self.min_rows = min_rows
        self._task = task
        self._splits = splits
        self._to_train = splits.train.rows_of_units(min_rows)

    def check_training(self) -> None:
        """Raise DataError if a model would leave that is trained on too few rows."""
        self._check("few-to-train", self._splits.train)

    def check_work(self, work: LocalWork, terms: Terms) -> None:
        """Raise ReportableError if the work could make a model that shows single rows."""
        if self.min_rows > 1 and not work.idle:
            timed = work.time_budget < math.inf
            if (terms.snapshot_step is not None or timed) and (
                batch_of(len(self._splits.train), work) < self._to_train
            ):
                what = "time-budget" if timed else "snapshot"
                raise ReportableError(
                    f"batch-size = {work.batch_size} is below the {self.min_rows} rows, or units of"
                    f" the schema, that a {what} needs here: raise it"
                )
            check_influence(work, terms, len(self._splits.train), self._to_train)

    def check_steps(self, work: LocalWork, steps: int, model: torch.nn.Module) -> None:
        """Raise ReportableError if a model would leave after steps on too few rows."""
        rows = count_rows(len(self._splits.train), work, steps, min_batch_of(model))
        if 0 < rows < self._to_train:
            raise ReportableError(
                f"the trained model, after {steps} of its steps with batch-size ="
                f" {work.batch_size}, is of {rows} training rows, and {self.min_rows} rows, or"
                " units of the schema, are needed for a model to leave the device: raise"
                " batch-size, time-budget or the method's number of steps; the owner of the device"
                " may lower the floor (limits.rows in owner.toml)"
            )

    def check_carried(self, factors: torch.Tensor) -> None:
        """Raise ReportableError if a step on a disparity is carried by too few rows.

        `factors` has each row's factor of its logit's gradient. With w the sum of the magnitudes of
        a row, or of a unit, (Σw)² / Σw² of them carry a step.
        """
        weights = factors.abs()
        units = self._splits.train.units
        if units is not None:
            weights = torch.from_numpy(np.bincount(units, weights.numpy()))
        carried = float(weights.sum() ** 2 / weights.square().sum())
        if not carried >= self.min_rows:  # by how many, would count single rows
            raise ReportableError(
                f"a step on the disparity is carried by fewer than {self.min_rows} training rows,"
                " or units of the schema: lower the disparity's sharpness, or the learning rate of"
                " the rounds before"
            )

    def shows_loss(self, work: LocalWork) -> bool:
        """Return False for a message without a step: it is told no loss of the model in it."""
        return not work.idle and work.steps != 0

    def pass_count(self, part: str, examples: AnyExamples) -> dict[str, int]:
        """Return the number of train or test examples by its name, {} if it may not leave."""
        if self._are_enough(examples):
            return {NUM_EXAMPLES: len(examples)}
        hold_back(f"number of its {part} examples, because it is below {self.min_rows}")
        return {}

    def pass_missing(self) -> dict[str, int]:
        """Return the number of missing rows, or units, by its name, {} if there are none.

        A number below the floor is held back, as that of any other few rows.
        """
        missing = self._splits.missing
        if not missing:
            return {}
        if missing < self.min_rows:
            hold_back(f"number of its missing rows, because it is below {self.min_rows}")
            return {}
        return {ROWS_MISSING: missing}

    def pass_scores(
        self, measurement: Measurement, scores: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the scores that may leave, by their names.

        Raise DataError if scores of training may not leave: methods need all of them.
        """
        part = measurement.examples
        examples: AnyExamples = getattr(self._splits, part)
        if measurement in OF_TRAINING:
            self._check("few-to-measure", examples)
        if not self._are_enough(examples):
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
            classes = self._task.classes or len(self._task.class_names) or 2
            counts = [examples.count_units(targets == each) for each in range(classes)]
            if min(counts) >= self.min_rows:
                return dict(scores)
            why = f"a class has fewer than {self.min_rows} of them"
        hold_back(f"{', '.join(sorted(of_classes))} of its {part} examples, because {why}")
        return {name: score for name, score in scores.items() if name not in of_classes}

    def pass_numbers(
        self, work: str, numbers: Mapping[str, int | float], terms: Terms, states: ClientStates
    ) -> dict[str, int | float]:
        """Return numbers of a model as they leave with a message of this `work` of a round.

        A server chooses the arrays that the client does not keep, and could solve exact numbers for
        those that it keeps. So a device reports numbers of both in three digits, and in a round no
        other ones. With other data, it reports them again.
        """
        if not terms.keeps_arrays:
            return dict(numbers)
        reported = dict(states.at(REPORTED, terms.server_round) or {})
        leaving = dict[str, int | float]()
        for name, number in numbers.items():
            rounded = number if isinstance(number, int) else float(f"{number:.3g}")
            first = reported.setdefault(
                f"{work} {name} {len(self._splits.train)} {len(self._splits.test)}",
                torch.tensor(rounded, dtype=torch.float64),
            )
            if float(first) == rounded:
                leaving[name] = rounded
            else:
                hold_back(f"{name}, because another one has left in round {terms.server_round}")
        states.keep(REPORTED, terms.server_round, reported)
        return leaving

    def _are_enough(self, examples: AnyExamples) -> bool:
        return len(examples) >= examples.rows_of_units(self.min_rows)

    def _check(self, why: str, examples: AnyExamples) -> None:
        if not self._are_enough(examples):
            reason = DataError("", why, min_rows=self.min_rows).reportable
            raise DataError(f"{len(examples)} training rows: {reason}", why, min_rows=self.min_rows)


def guarded(client: LocalClient, min_rows: int, order: int | str | None = None) -> LocalClient:
    """Return a client as it is on a device: behind a gate, and with an order of its rows.

    `order` is the seed of the order; None: a secret.
    """
    return replace(
        client,
        gate=Gate(min_rows, client.task, client.splits),
        order=secret_order(client.settings) if order is None else order,
    )


def check_influence(work: LocalWork, terms: Terms, rows: int, min_rows: int) -> None:
    """Raise ReportableError if a step of fewer than `min_rows` rows could outweigh the others.

    `rows` is the number of training rows.
    """
    _check_forgetting(work, MAX_FORGETTING, "the update would show little but the last step's rows")
    if batch_of(rows, work) < min_rows:
        _check_forgetting(
            work,
            MAX_FORGETTING_OF_FEW,
            f"batch-size = {work.batch_size} is below the rows that a number needs here",
        )
    if not work.learning_rate <= MAX_RATE:
        raise ReportableError(
            f"learning-rate = {work.learning_rate:g} is above {MAX_RATE:g}, and single rows could"
            " outweigh all others: lower it"
        )
    if min(batch_sizes(rows, work)) >= min_rows:
        return
    if terms.propfair_baseline is None or terms.propfair_epsilon is None:
        return
    steepness = terms.propfair_baseline / terms.propfair_epsilon
    if not steepness <= MAX_STEEPNESS_OF_FEW:
        raise ReportableError(
            f"propfair.baseline / propfair.epsilon = {steepness:g} is above"
            f" {MAX_STEEPNESS_OF_FEW:g}, and a step here has few rows and could outweigh all"
            " others: lower it, or set batch-size = 0"
        )


def _check_forgetting(work: LocalWork, limit: float, why: str) -> None:
    """Raise ReportableError if one step forgets more than `limit` of the model before it."""
    # AdamW's decay is no part of the gradients, which its momentum adds up
    kept = 1.0 if work.optimizer == "adamw" else 1.0 - work.momentum
    forgotten = work.learning_rate * (work.weight_decay + work.pull) / kept
    if not forgotten <= limit:
        raise ReportableError(
            "learning-rate × (weight-decay + the method's mu or alpha) / (1 − momentum) ="
            f" {work.learning_rate:g} × ({work.weight_decay:g} + {work.pull:g}) / {kept:g} ="
            f" {forgotten:g} is above {limit:g}, and {why}: lower one of them"
        )
