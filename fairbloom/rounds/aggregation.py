"""From the replies of a round to the model after its step."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fairbloom.logs import log
from fairbloom.protocol.names import LOSS_BEFORE, SNAPSHOT, TRAIN_LOSS
from fairbloom.text import text_if

from .accounts import NO_ACCOUNT
from .arrays import EXACT_SQUARES, FloatArray, Model, norm
from .clients import Metrics, Replies, TrainReplies
from .cohort import Cohort, Decision, Kept, MethodError, Needed, Probed
from .compatibility import EXACT_GRAM, GRAM, GRAM_BY_ARRAY
from .layout import Layout
from .method import CONFLICTS, Method
from .run_state import RunState
from .screening import NormBounds, check_step, out_of_proportion
from .server_optimizer import Moments
from .vectors import Vectors, combine, weighted_sum

# Metrics beyond this are absurd: their squares may be beyond the range of numbers.
LARGEST_METRIC = 1e150


class NoStepError(Exception):
    """A round without a step, because the step is beyond the range of numbers."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is known of a round's step, besides the model after it.

    Attributes
    ----------
    metrics
        The metrics that the method reports.
    coefficients
        c_k of the step, by client; empty without a step.
    """

    metrics: Metrics = field(default_factory=dict)
    coefficients: Mapping[str, float] = field(default_factory=dict)


# Replies ------------------------------------------------------------------------------------------


def screen_updates(method: Method, replies: TrainReplies, server_round: int) -> None:
    """Refuse replies that are not finite.

    The same pass computes the inner products that the method needs.
    """
    if GRAM not in method.requires or method.has_second_rows:
        replies.screen()
        return
    kept = recall_rows(method, replies, server_round).values()
    replies.screen(gram=True, by_array=GRAM_BY_ARRAY in method.requires, below=[*kept])


class CohortRows(NamedTuple):
    """A cohort, and the vectors of its rows: updates, second updates and kept rows."""

    cohort: Cohort
    vectors: Vectors


def build_cohort(
    method: Method,
    replies: TrainReplies,
    *,
    server_round: int,
    num_rounds: int | None,
    online: Sequence[str],
    draws: Mapping[str, int],
    sent: Mapping[str, float],
) -> CohortRows:
    """Return the cohort that the method sees, with its rows.

    Inner products that are not finite raise NoStepError when the method reads them: no method can
    use them.
    """
    updates = replies.updates
    counts = replies.column(method.weighted_by_key)
    kept = recall_rows(method, replies, server_round)
    moments = method.run_state.moments
    if moments is not None:
        check_row(method, "a server momentum", moments.first.size, updates.layout)
    second: list[Vectors] = []
    if method.has_second_rows and replies.second is not None:
        second.append(replies.second.vectors)
    vectors = Vectors.concat([updates.vectors, *second, *kept.values()])
    exact = EXACT_GRAM in method.requires
    drawn = np.array([draws[name] for name in replies.names], np.float64)
    weights = drawn
    if method.draw != "examples":
        weights = method.prior_weights_of(replies.names, counts.tolist())

    metrics = {metric: replies.column(metric) for metric in method.needs}
    if LOSS_BEFORE in metrics and method.run_state.accounts:
        metrics[LOSS_BEFORE] = smooth_losses(method, replies)

    @cache  # not the cohort's: in a cycle with it, the updates would stay for rounds
    def compute_grams() -> FloatArray:
        return _check_finite(updates.grams(vectors, exact=exact), replies)

    def compute_gram() -> FloatArray:
        if GRAM_BY_ARRAY in method.requires:
            return _check_finite(compute_grams().sum(axis=0), replies)
        return _check_finite(updates.gram(vectors, exact=exact), replies)

    cohort = Cohort(
        round=server_round,
        num_rounds=num_rounds,
        names=replies.names,
        online=tuple(online),
        counts=counts,
        prior=weights / weights.sum(),
        draws=drawn,
        metrics=Needed(type(method).__name__, metrics),
        memory=tuple(kept),
        past=method.past,
        second=bool(second),
        sent=sent,
        arrays=updates.layout.trainable,
        gram_of=compute_gram,
        grams_of=compute_grams,
        squared_norms_of=lambda: _check_finite(updates.squared_norms, replies),
    )
    return CohortRows(cohort, vectors)


def smooth_losses(method: Method, replies: Replies) -> FloatArray:
    """Return the losses of a round's replies, shape (m,), smoothed for accounts."""
    accounts = method.run_state.accounts
    smoothed = [
        accounts.get(name, NO_ACCOUNT).smooth(report[LOSS_BEFORE], method.largest_loss)
        for name, report in replies.metrics.items()
    ]
    return np.array(smoothed, np.float64)


def recall_rows(method: Method, replies: TrainReplies, server_round: int) -> dict[Kept, Vectors]:
    """Return the kept rows that the method weighs together with a round's replies."""
    kept = method.run_state.kept
    names = frozenset(replies.names)
    needed = method.recalls(kept.keys(), names, server_round) if names else ()
    recalled = {key: kept[key] for key in needed}
    for key, row in recalled.items():
        check_row(method, f"an update of round {key.round}", row.size, replies.updates.layout)
    return recalled


def check_row(method: Method, what: str, numbers: int, layout: Layout) -> None:
    """Raise MethodError if a kept vector does not have the size of the trainable model."""
    if numbers != layout.size:
        raise MethodError(
            f"{type(method).__name__} keeps {what} with {numbers} numbers, and {layout.size} are"
            " trained: other parameters are frozen now. Begin a new run, or go on with the earlier"
            " model"
        )


def _check_finite(products: FloatArray, replies: TrainReplies) -> FloatArray:
    if not np.isfinite(products).all():
        norms = replies.updates.norms
        place = int(np.argmax(norms))
        raise NoStepError(
            "inner products of the updates are not finite; the longest update, of the length "
            f"{norms[place]:g}, is that of client {replies.names[place]}"
        )
    return products


# Coefficients -------------------------------------------------------------------------------------


def decide(method: Method, cohort: Cohort) -> Decision:
    """Return the method's decision; coefficients alone are one that keeps the memory and no row.

    The coefficients are finite: one for each row, or a row for each array.

    Raises
    ------
    MethodError
        When the method returns anything else.
    NoStepError
        When a client reports a number so large that inner products or coefficients are not finite.
    """
    decided = method.weigh(cohort)
    decision = decided if isinstance(decided, Decision) else Decision(decided)
    coefficients = np.asarray(decision.coefficients)
    expected = (cohort.rows,), (len(cohort.arrays), cohort.rows)
    name = f"{type(method).__name__}.weigh, in round {cohort.round},"
    if coefficients.shape not in expected or coefficients.dtype.kind not in "fiu":
        raise MethodError(
            f"{name} returned {coefficients.dtype} of shape {coefficients.shape}: it must return"
            f" one number for each update and kept row, shape {expected[0]}, or such numbers for"
            f" each array that is trained, shape {expected[1]}"
        )
    by_array = np.isfinite(np.atleast_2d(coefficients))
    finite = np.asarray(by_array.all(axis=0))
    if not finite.all():
        absurd = find_absurd_metric(cohort)
        if absurd:
            raise NoStepError(f"the coefficients are beyond the range of numbers, since {absurd}")
        wrong = ", ".join(
            name for name, good in zip(cohort.names, finite, strict=False) if not good
        )
        of = text_if(wrong, f" (of {wrong})")
        raise MethodError(
            f"{name} returned coefficients that are not finite{of}: correct the method"
        )
    if decision is decided:
        check_remembered(method, decision, cohort)
    return replace(decision, coefficients=coefficients.astype(np.float64, copy=False))


def check_remembered(method: Method, decision: Decision, cohort: Cohort) -> None:
    """Check a decision's memory and rows.

    Raises
    ------
    MethodError
        When the memory is no mapping, or what is kept has not the shape of a row.
    NoStepError
        When a row is not finite, as one client's numbers may make it.
    """
    name = f"{type(method).__name__}.weigh, in round {cohort.round},"
    for what, value in (("memory", decision.memory), ("keep", decision.keep)):
        if not isinstance(value, Mapping | None) or (value is None and what == "keep"):
            raise MethodError(
                f"{name} returned a Decision with {what} = {value!r}, which is no mapping"
            )
    if not {*map(type, decision.keep)} <= {Kept}:
        raise MethodError(f"{name} keeps {[*decision.keep]}: a label is Kept(key, cohort.round)")
    rows = [mix for mix in decision.keep.values() if mix is not None]
    try:
        stacked = np.array(rows, np.float64).reshape(len(rows), -1 if rows else 0)
    except ValueError:  # rows of several shapes
        stacked = np.empty((0, 0))
    if rows and stacked.shape != (len(rows), cohort.rows):
        raise MethodError(
            f"{name} keeps rows of the wrong shape: each has one number for each update and kept"
            f" row, shape {(cohort.rows,)}"
        )
    if not np.isfinite(stacked).all():
        raise NoStepError("the rows that the method keeps are beyond the range of numbers")


def find_absurd_metric(cohort: Cohort) -> str:
    """Return as text which number of a client is absurdly large, "" if all are plausible."""
    for metric, values in cohort.metrics.items():
        place = int(np.argmax(np.abs(values)))
        if abs(values[place]) > LARGEST_METRIC:
            return (
                f"client {cohort.names[place]} reports {values[place]:g} as {metric!r}: lower"
                " loss_limit"
            )
    return ""


def average_over_arrays(cohort: Cohort, coefficients: FloatArray) -> FloatArray:
    """Return one coefficient for each row.

    Coefficients by array are averaged, weighted by each array's share in ‖u_k‖².
    """
    if coefficients.ndim == 1:
        return coefficients
    squares = np.diagonal(cohort.grams, axis1=1, axis2=2)
    whole = squares.sum(axis=0)
    # A row of zeros has no shares.
    shares = np.divide(squares, whole, out=np.zeros_like(squares), where=whole > 0.0)
    return np.asarray((coefficients * shares).sum(axis=0))


# The step -----------------------------------------------------------------------------------------


def aggregate(
    method: Method,
    replies: TrainReplies,
    norm_bounds: NormBounds,
    rows: CohortRows,
    evaluate_probe: Callable[[Model], Replies],
) -> tuple[Model, Step, RunState]:
    """Weigh a round's rows and take the step.

    Return the model after the step, what is known of the step, and the state of the run after it.
    `evaluate_probe` makes a second sample of clients report their loss at a model.

    Raises
    ------
    NoStepError
        When the step is beyond the range of numbers.
    """
    cohort = rows.cohort
    decision = decide(method, cohort)
    coefficients = decision.coefficients
    norms = replies.updates.norms
    try:
        model, step_norm, moments = _apply_step(method, replies, rows, coefficients)
    except ValueError as reason:
        with np.errstate(over="ignore"):
            parts = np.abs(average_over_arrays(cohort, coefficients)[: cohort.size]) * norms
        client = cohort.names[int(np.argmax(parts))]
        raise NoStepError(
            f"{reason}; the largest part of it is that of client {client}"
        ) from reason
    # From here on, the step is taken.
    losses = _probe(method, replies, cohort, coefficients, evaluate_probe)
    memory, kept = remember(method, decision, rows, losses)
    history = method.run_state.norms.plus(cohort.round, norms / norm_bounds.allowances, step_norm)
    of_clients = average_over_arrays(cohort, coefficients)[: cohort.size]
    step = Step(
        metrics=measure_conflicts(method, cohort) | method.own_metrics(cohort, coefficients),
        coefficients=dict(zip(cohort.names, of_clients.tolist(), strict=True)),
    )
    return model, step, method.run_state.stepped(cohort.round, memory, kept, moments, history)


def measure_conflicts(method: Method, cohort: Cohort) -> dict[str, float]:
    """Return CONFLICTS for a method that reports it.

    It is {} for fewer than two updates, or if the method has read no inner products: these cost a
    pass over the rows.
    """
    m = cohort.size
    if CONFLICTS not in method.all_reports or m < 2:
        return {}
    read = vars(cohort)  # a cached property is there once it was read
    if "gram" in read:
        gram = cohort.gram
    elif "grams" in read:
        gram = cohort.grams.sum(axis=0)
    else:
        return {}
    pairs = m * (m - 1)  # each pair is twice in the matrix, and squared norms are not negative
    return {CONFLICTS: float(np.count_nonzero(gram[:m, :m] < 0.0) / pairs)}


def remember(
    method: Method, decision: Decision, rows: CohortRows, probed: Probed
) -> tuple[Mapping[str, Any], dict[Kept, Vectors]]:
    """Return the memory and the rows that a method's decision keeps, and `learn` then changes."""
    state = method.run_state
    cohort = rows.cohort
    kept = dict[Kept, Vectors]()
    for key, mix in decision.keep.items():
        if mix is not None:
            kept[key] = combine(mix, rows.vectors)
        elif key in state.kept:
            kept[key] = state.kept[key]
        else:
            raise MethodError(
                f"{type(method).__name__}.weigh, in round {cohort.round}, keeps {key}"
                " without a row: with None, only one of cohort.past.kept stays as it is"
            )
    return learn(method, decision, cohort, kept, probed), kept


def learn(
    method: Method, decision: Decision, cohort: Cohort, kept: Iterable[Kept], probed: Probed
) -> dict[str, Any]:
    """Return the memory after a decision: what the method learns of its round, or as it was."""
    memory = method.run_state.memory if decision.memory is None else decision.memory
    past = replace(cohort.past, memory=MappingProxyType({**memory}), kept=tuple(kept))
    return {**method.learn(past, cohort, probed)}


def _apply_step(
    method: Method,
    replies: TrainReplies,
    rows: CohortRows,
    coefficients: FloatArray,
) -> tuple[Model, float, Moments | None]:
    """Return the model after the step, the norm of the method's step, and the optimizer's moments.

    The step is −Σ c_k u_k; a server optimizer may change it. Raise ValueError if the step is too
    long.
    """
    cohort, vectors = rows
    updates = replies.updates
    layout = updates.layout
    max_norm = float(updates.norms.max())
    if method.has_second_rows and replies.second is not None:
        max_norm = max(max_norm, float(replies.second.norms.max()))
    if method.server_optimizer is None:
        model, square = updates.model_after(coefficients, vectors, cohort.prior, cohort.counts)
        if EXACT_SQUARES[0] < square < EXACT_SQUARES[1]:
            step_norm = math.sqrt(square)
        else:
            step_norm = layout.distance(model, layout.trainable)
        check_step(method, layout, step_norm, max_norm)
        return model, step_norm, None
    direction = weighted_sum(coefficients, vectors, ends=layout.ends)
    step_norm = norm(direction)
    check_step(method, layout, step_norm, max_norm)
    flat, moments = method.server_optimizer.step(layout.flat, direction, method.run_state.moments)
    return updates.model_with(flat, cohort.prior, cohort.counts), step_norm, moments


def _probe(
    method: Method,
    replies: TrainReplies,
    cohort: Cohort,
    coefficients: FloatArray,
    evaluate_probe: Callable[[Model], Replies],
) -> Probed:
    """Return other clients' losses at the combination of snapshots that the method probes.

    Unusable answers are refused.
    """
    mix = method.probe(cohort, coefficients)
    snapshots = replies.second if method.second == SNAPSHOT else None
    if mix is None or snapshots is None:
        return {}
    try:
        model, _ = snapshots.model_after(mix, snapshots.vectors, cohort.prior, cohort.counts)
    except ValueError as reason:
        log.warning("no losses at the snapshots of round %d: %s", cohort.round, reason)
        return {}
    answers = evaluate_probe(model)
    losses = {
        name: {TRAIN_LOSS: report[TRAIN_LOSS]}
        for name, report in answers.metrics.items()
        if TRAIN_LOSS in report
    }
    missing = f"metric {TRAIN_LOSS!r} is missing or no finite number"
    silent = answers.metrics.keys() - losses.keys()
    too_large = out_of_proportion(losses, {TRAIN_LOSS}, method.loss_limit)
    reasons = {**answers.refused.reasons, **dict.fromkeys(silent, missing), **too_large}
    for name, words in reasons.items():
        replies.refused.add(name, f"loss at the snapshot: {words}")
    return {name: report[TRAIN_LOSS] for name, report in losses.items() if name not in too_large}
