"""Limits on local work by which a model would show a single row of a device's training data.

A few settings make an update forget all rows but the last, or end training after the first. These
limits close such ways in a single run. They do not close all: an update of many rows can still
reveal one of them, and so can the difference between two runs.
"""

from fairbloom.errors import ReportableError
from fairbloom.protocol.terms import Terms

from ..training import batch_of
from ..work import LocalWork

# The largest share of the model that one step may forget. Where the last step has one row, readings
# of that row from the tutorial's hospitals are wrong by 0.25 to 1.1 standard deviations just below
# this limit, by 0.4 and more without weight decay, and by 1e-7 if a step forgets all.
MAX_FORGETTING = 0.5

# The same if every step has few rows, so that at least 20 steps count.
MAX_FORGETTING_OF_FEW = 0.05

# The largest learning rate if a step has few rows: with a higher one, the last step of a network or
# of a linear regression can be larger than all before it together.
MAX_RATE_OF_FEW = 1.0

# The largest ratio of PropFair's M and ε if a step has few rows: M/ε is how much more the row with
# the highest loss may weigh than a row without a loss.
MAX_STEEPNESS_OF_FEW = 100.0


def check_influence(work: LocalWork, terms: Terms, rows: int, min_rows: int) -> None:
    """Raise ReportableError if a step of fewer than `min_rows` rows could outweigh the others.

    `rows` is the number of training rows.
    """
    _check_forgetting(work, MAX_FORGETTING, "the update would show little but the last step's rows")
    size = batch_of(rows, work)
    if size < min_rows:
        why = (
            f"batch-size = {work.batch_size} is below the {min_rows} rows that a number needs here"
        )
        _check_forgetting(work, MAX_FORGETTING_OF_FEW, why)
    if min(size, rows % size or size) >= min_rows:
        return
    why = (
        f"a step here has fewer than {min_rows} rows and could outweigh all others: lower it, or"
        " set batch-size = 0"
    )
    if work.learning_rate > MAX_RATE_OF_FEW:
        raise ReportableError(
            f"learning-rate = {work.learning_rate:g} is above {MAX_RATE_OF_FEW:g}, and {why}"
        )
    if terms.propfair_baseline is None or terms.propfair_epsilon is None:
        return
    steepness = terms.propfair_baseline / terms.propfair_epsilon
    if steepness > MAX_STEEPNESS_OF_FEW:
        raise ReportableError(
            f"propfair.baseline / propfair.epsilon = {steepness:g} is above"
            f" {MAX_STEEPNESS_OF_FEW:g}, and {why}"
        )


def check_rows(name: str, rows: int, steps: int, work: LocalWork, min_rows: int) -> None:
    """Raise ReportableError if a model is of at least one row, and of fewer than `min_rows`.

    `name` is the model's name in the message.
    """
    if 0 < rows < min_rows:
        raise ReportableError(
            f"{name} is of {rows} training rows, and {min_rows} are needed for a model to leave the"
            f" device: training ended, or a snapshot was taken, after {steps} of its steps with"
            f" batch-size = {work.batch_size}: raise batch-size, time-budget or the method's number"
            " of steps; the owner of the device may lower the floor (limits.rows in owner.toml)"
        )


def _check_forgetting(work: LocalWork, limit: float, why: str) -> None:
    """Raise ReportableError if one step forgets more than `limit` of the model before it."""
    # AdamW's decay is no part of the gradients, which its momentum adds up
    kept = 1.0 if work.optimizer == "adamw" else 1.0 - work.momentum
    forgotten = work.learning_rate * (work.weight_decay + work.pull) / kept
    if forgotten > limit:
        raise ReportableError(
            "learning-rate × (weight-decay + the method's mu or alpha) / (1 − momentum) ="
            f" {work.learning_rate:g} × ({work.weight_decay:g} + {work.pull:g}) / {kept:g} ="
            f" {forgotten:g} is above {limit:g}, and {why}: lower one of them"
        )
