"""Checks of a round's replies (reports, buffers, norms) and of its step.

Every check of a report raises ValueError with the reason for which the reply is refused.

The usual norm r of a round is the larger of two lower medians: that of ‖u_k‖ over the round's
updates that are not zero, if there are at least two of them; and that of ‖u_k‖/e_k over the replies
that were used in the rounds t − 5 to t − 1. If there is neither, or both are zero, r is the larger
of the received model's norm and 1. The allowance e_k is a client's number of examples over their
lower median in the round, at least 1 and at most 1000: a client with more examples takes more
steps.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import (
    ACCURACY,
    DISPARITY,
    HITS,
    LEARNING_RATE,
    LOSS_AFTER,
    LOSS_BASELINE,
    LOSS_BEFORE,
    NUM_EXAMPLES,
    PERSONAL,
    PERSONAL_ROUND,
    POSITIVES,
    ROWS_MISSING,
    ROWS_VERSION,
    STEP_SUM,
    TRAIN,
    TRAIN_LOSS,
    VALIDATION,
)
from fairbloom.protocol.patterns import match_names, split_words
from fairbloom.protocol.scores import Score

from .arrays import FloatArray, Model
from .clients import Replies, TrainReplies
from .layout import DTYPES, STATISTICS, Layout
from .method import Method
from .refusals import lacking_metric

LARGEST = sys.float_info.max

# The largest count of examples that is accepted: float64 holds every integer up to here.
LARGEST_COUNT = 2**53

# Endings of the names of scores in an evaluation, the last one first.
ENDINGS = (f"-{PERSONAL}", f"-{VALIDATION}")

LOSSES = frozenset({LOSS_BEFORE, LOSS_AFTER, LOSS_BASELINE, TRAIN_LOSS})

# The smallest sum of learning rates above 0 that is accepted: updates are divided by it, and could
# leave the range of numbers.
SMALLEST_STEP_SUM = 1e-12

# The least loss that others are compared with: a client may well be far from a median near 0.
USUAL_LOSS = 1.0

# A client's first count of test examples may be this many times the median of the others.
MOST_TESTS = 1e6

# The largest deviation of noise in a score that is believed: clients state it.
LARGEST_DEVIATION = 10.0

# The largest factor by which a client's update may be longer because it has more examples.
LARGEST_ALLOWANCE = 1000.0


class BrokenModelError(FairbloomError):
    """A global model that cannot be trained; the message names the array that is broken."""


# What a client reports ----------------------------------------------------------------------------


def usable_metrics(
    record: Mapping[str, Any], weight_key: str, needs: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Return the finite numbers among a reply's metrics.

    Raise ValueError if the count, the weight or a needed metric is missing or wrong.
    """
    count = record.get(NUM_EXAMPLES)
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"num-examples must be an integer of at least 1, got {count!r}")
    if count > LARGEST_COUNT:
        raise ValueError(f"num-examples must be at most 2**53, got {count!r}")
    finite = {
        key: value
        for key, value in record.items()
        if isinstance(value, (int, float)) and abs(value) <= LARGEST
    }
    if not 0 < finite.get(weight_key, 0) <= LARGEST_COUNT:
        raise ValueError(
            f"{weight_key} must be a positive number of at most 2**53, got"
            f" {record.get(weight_key)!r}"
        )
    missing = sorted(needs - finite.keys())
    if missing:
        raise lacking_metric(missing[0], record.get(missing[0]))
    for name in sorted(name for name in needs if name.startswith(ACCURACY) or name == DISPARITY):
        lowest = -1.0 if name == DISPARITY else 0.0
        if not lowest <= finite[name] <= 1.0:
            raise ValueError(f"metric {name!r} must lie in [{lowest:g}, 1], got {finite[name]!r}")
    if LEARNING_RATE in needs and finite[LEARNING_RATE] <= 0.0:
        raise ValueError(
            f"metric 'learning-rate' must be positive, got {finite['learning-rate']!r}"
        )
    if not needs.isdisjoint((*POSITIVES, *HITS)):
        _check_group_counts(finite)
    if STEP_SUM in needs and finite[STEP_SUM] != 0.0 and finite[STEP_SUM] < SMALLEST_STEP_SUM:
        raise ValueError(
            f"metric {STEP_SUM!r} must be 0 or at least {SMALLEST_STEP_SUM:g}, got"
            f" {finite[STEP_SUM]!r}"
        )
    return finite


def usable_evaluation(record: Mapping[str, Any], weight_key: str) -> dict[str, float]:
    """Return the finite numbers among a client's evaluation metrics.

    The count may be missing only if no metric is measured on test examples: a device does not say
    how many it has if these are fewer than its owner's floor. Raise ValueError if the count is not
    positive. `screen_evaluations` checks the scores.
    """
    if record.get(NUM_EXAMPLES) == 0:
        raise ValueError("it has no test examples, so it counts in no measure")
    others = (f"{TRAIN}-", PERSONAL_ROUND, ROWS_VERSION, ROWS_MISSING)
    if NUM_EXAMPLES not in record and all(
        name.startswith(others) or f"-{VALIDATION}" in name for name in record
    ):
        finite = usable_metrics({**record, NUM_EXAMPLES: 1}, NUM_EXAMPLES)
        del finite[NUM_EXAMPLES]
        return finite
    return usable_metrics(record, weight_key)


def find_score(metric: str, scores: Mapping[str, Score]) -> Score:
    """Return the score that a metric's name on the wire means, in a group or of all examples.

    `scores` has the scores of a run by name; others are known by name, or have no interval.
    """
    name = metric.partition("[")[0]
    for ending in ENDINGS:
        if name not in scores:
            name = name.removesuffix(ending)
    return scores.get(name) or Score(name, higher_is_better=name not in ("loss", "mae", "rmse"))


def impossible_scores(
    reports: Mapping[str, Mapping[str, float]], scores: Mapping[str, Score]
) -> dict[str, str]:
    """Return the clients with a score outside its interval, with the reason.

    `scores` has the score behind each metric. The noise of a privacy account may leave the
    interval.
    """
    reasons: dict[str, str] = {}
    for metric in sorted(scores):
        score = scores[metric]
        low, high = score.interval
        start = f"[{low:g}" if low > -math.inf else "(-inf"
        end = f"{high:g}]" if high < math.inf else "inf)"
        for name, report in reports.items():
            noise = min(report.get(f"{metric}-deviation", 0.0), LARGEST_DEVIATION)
            if name not in reasons and metric in report and not score.has(report[metric], noise):
                reasons[name] = (
                    f"metric {metric!r} must lie in {start}, {end}, got {report[metric]!r}"
                )
    return reasons


def _check_group_counts(metrics: Mapping[str, float]) -> None:
    for positives, hits in zip(POSITIVES, HITS, strict=True):
        bounds = {
            positives: metrics[NUM_EXAMPLES],
            hits: metrics.get(positives, metrics[NUM_EXAMPLES]),
        }
        for name, most in bounds.items():
            value = metrics.get(name, 0)
            if value != int(value) or not 0 <= value <= most:
                raise ValueError(
                    f"metric {name!r} must be a whole number from 0 to {most:g}, got {value!r}"
                )
    together = sum(metrics.get(name, 0) for name in POSITIVES)
    if together > metrics[NUM_EXAMPLES]:
        raise ValueError(
            f"{' and '.join(POSITIVES)} are {together:g} together, of {metrics[NUM_EXAMPLES]:g}"
            " examples"
        )


def implausible_counts(
    method: Method,
    reports: Mapping[str, Mapping[str, float]],
    first_limit: float,
    first: Mapping[str, float],
) -> dict[str, str]:
    """Return the clients with implausible counts, with the reason.

    A client may have at most the examples that it is enrolled with, and a weight of at most
    `max_growth` times its `first`. A client that joins may have `first_limit` times the others'
    median: see `beyond_others`.
    """
    weight_key = method.weighted_by_key
    enrolled = method.enrolled_sizes
    reasons: dict[str, str] = {}
    for name, report in reports.items():
        if NUM_EXAMPLES not in report:  # an evaluation by a device that holds it back
            continue
        examples = report[NUM_EXAMPLES]
        weight = report[weight_key]
        is_new = name not in enrolled and name not in first
        if name in enrolled and examples > enrolled[name]:
            most = f"the {enrolled[name]} examples that it was enrolled with"
            reasons[name] = f"num-examples {examples} is more than {most}"
        elif name in first and weight > method.max_growth * first[name]:
            most = (
                f"{method.max_growth:g} times (max_growth) the {first[name]} that it said at first"
            )
            reasons[name] = f"{weight_key} {weight} is more than {most}"
        elif is_new:
            words = beyond_others(name, examples, first, first_limit)
            if words:
                reasons[name] = f"num-examples {examples} is {words}"
    return reasons


def beyond_others(name: str, size: float, sizes: Mapping[str, float], limit: float) -> str:
    """Return as text that `size` exceeds `limit` times the median of the others, "" if not."""
    others = [other_size for other, other_size in sizes.items() if other != name]
    if not others or size <= limit * median(others):
        return ""
    return (
        f"more than {limit:g} times the median of the others ({median(others):g}), and the operator"
        f" has stated no number: if it is right, state it by fairbloom deploy enroll {name}"
        f" --examples N, or for this run by --set enrolled-sizes={name}=N"
    )


def too_large_losses(
    reports: Mapping[str, Mapping[str, float]], names: Iterable[str], limit: float
) -> dict[str, str]:
    """Return the clients with one of these losses far beyond the others', with the reason."""
    reasons: dict[str, str] = {}
    for metric in sorted(names):
        losses = {
            name: report[metric]
            for name, report in reports.items()
            if name not in reasons and metric in report
        }
        # The bound is at least this. The test saves the sort in a round of plausible replies.
        if max(map(abs, losses.values()), default=0.0) <= limit * USUAL_LOSS:
            continue
        most = largest_in_proportion(map(abs, losses.values()), limit, USUAL_LOSS)
        words = (
            f"beyond {most:g}: {limit:g} times (loss_limit) the larger of the round's median and"
            f" {USUAL_LOSS:g}"
        )
        for name, loss in losses.items():
            if abs(loss) > most:
                reasons[name] = f"metric {metric!r} is {loss:g}, {words}"
    return reasons


def out_of_proportion(
    replies: Mapping[str, Mapping[str, float]], needs: Collection[str], limit: float
) -> dict[str, str]:
    """Return the clients with needed losses or rates far beyond the others', with the reason."""
    reasons = too_large_losses(replies, LOSSES & set(needs), limit)
    for metric in sorted({LEARNING_RATE, STEP_SUM} & set(needs)):
        rates = {
            name: metrics[metric]
            for name, metrics in replies.items()
            if name not in reasons and metrics[metric]
        }
        low, high = proportionate_rates(rates.values(), limit)
        for name, rate in rates.items():
            if not low <= rate <= high:
                words = (
                    f"outside {low:g} to {high:g}: the round's median divided and multiplied by"
                    f" {limit:g} (loss_limit)"
                )
                reasons[name] = f"metric {metric!r} is {rate:g}, {words}"
    return reasons


def largest_in_proportion(sizes: Iterable[float], limit: float, floor: float) -> float:
    """Return `limit` times the lower median of the sizes, or of `floor` if that is larger.

    While the largest size is beyond the bound, it is left out and the median is taken again. So
    only the sizes within the bound determine it.
    """
    ascending = sorted(sizes)
    bound = math.inf
    while ascending:
        bound = limit * max(floor, ascending[(len(ascending) - 1) // 2])
        if ascending[-1] <= bound:
            break
        ascending.pop()
    return bound


def proportionate_rates(rates: Iterable[float], limit: float) -> tuple[float, float]:
    """Return the lower median divided, and multiplied, by `limit`.

    QFedSGD divides by the rate, and control variates by the sum of the steps' rates. So one rate
    near zero would stop every client's step, or dominate the control variate.
    """
    ascending = sorted(rates)
    if len(ascending) < 3:
        return 0.0, math.inf  # of two rates, either may be the wrong one
    median = ascending[(len(ascending) - 1) // 2]
    return median / limit, median * limit


def screen_evaluations(
    method: Method,
    replies: Replies,
    scores: Mapping[str, Score],
    first_limit: float = math.inf,
) -> Mapping[str, float]:
    """Refuse evaluations with impossible scores, implausible counts, or losses out of proportion.

    Return the numbers of test examples that the usable ones state, by client.

    The limits are those of training: a client may not have more test examples than `max_growth`
    times those of its first usable evaluation. Scores are known by their names, or by
    `scores`, which has those of the run; other metrics need only be finite.
    """
    metrics = {metric for report in replies.metrics.values() for metric in report}
    found = {metric: find_score(metric, scores) for metric in metrics}
    # Of the others, every finite number is possible.
    bounded = {
        metric: score for metric, score in found.items() if score.interval != (-math.inf, math.inf)
    }
    replies.refuse(impossible_scores(replies.metrics, bounded))
    first = method.run_state.first_tests
    key = method.weighted_by_key
    counts = {name: report[key] for name, report in replies.metrics.items() if key in report}
    limit = math.inf if method.max_growth == math.inf else min(first_limit, MOST_TESTS)
    new = [name for name in counts if name not in first]
    beyond = {name: beyond_others(name, counts[name], {**counts, **first}, limit) for name in new}
    replies.refuse({name: f"{key} {counts[name]} is {why}" for name, why in beyond.items() if why})
    replies.refuse(implausible_counts(method, replies.metrics, first_limit, first))
    endless = {metric for metric, score in found.items() if score.is_error} | (metrics & LOSSES)
    replies.refuse(too_large_losses(replies.metrics, endless, method.loss_limit))
    return {name: count for name, count in counts.items() if name in replies.metrics}


def usable_sizes(
    method: Method, sizes: Mapping[str, float], first_limit: float = math.inf
) -> dict[str, float]:
    """Return those of the clients' reported sizes that can be the weights of their replies.

    If replies are weighted by another metric, no size can. Sizes above the enrolled one, or far
    above the others, are left out: the count in the client's first usable reply decides.
    """
    if method.weighted_by_key != NUM_EXAMPLES:
        return {}
    first = method.run_state.first_counts
    usable: dict[str, float] = {}
    for name, size in sizes.items():
        if name in method.enrolled_sizes:
            is_usable = size <= method.enrolled_sizes[name]
        else:
            is_usable = size <= math.inf and not beyond_others(name, size, first, first_limit)
        if is_usable:
            usable[name] = size
    return usable


def screen_buffers(method: Method, replies: TrainReplies) -> None:
    """Refuse replies with buffers that change far more than the others', or than the model's size.

    Buffers are not part of the update. But they are averaged, and one absurd variance would spoil
    every evaluation.
    """
    layout = replies.updates.layout
    limit = method.update_limit
    if not layout.buffers or limit == math.inf:
        return
    moved = replies.updates.buffer_changes().tolist()
    changes = dict(zip(replies.names, moved, strict=True))
    most = largest_in_proportion(changes.values(), limit, layout.distance(None, layout.buffers))
    reasons: dict[str, str] = {}
    for name, change in changes.items():
        if change > most:
            reasons[name] = (
                f"its buffers ({', '.join(layout.buffers)}) change by {change:g}, beyond {most:g}:"
                f" {limit:g} times (update_limit) the larger of the received model's buffers and"
                " the round's median change"
            )
    replies.refuse(reasons)


# Norms of updates ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormBounds:
    """The usual norm r of the usable updates, and the allowance e_k of each."""

    norm: float
    allowances: FloatArray


def compute_norm_bounds(
    norms: FloatArray, counts: FloatArray, past: FloatArray, model_norm: Callable[[], float]
) -> NormBounds:
    """Return the norm bounds of a round by ‖u_k‖ and n_k, shape (m,).

    `past` is what `NormHistory.before` returns; `model_norm` computes ‖w‖ if it is needed.
    """
    moving = norms[norms > 0.0]
    medians = [lower_median(past)] if len(past) else []
    if len(moving) > 1:
        medians.append(lower_median(moving))
    return NormBounds(
        norm=max(medians, default=0.0) or max(model_norm(), 1.0),
        allowances=np.clip(counts / lower_median(counts), 1.0, LARGEST_ALLOWANCE),
    )


def find_outlier_norms(
    norms: FloatArray,
    counts: FloatArray,
    past: FloatArray,
    model_norm: Callable[[], float],
    limit: float,
    compared: FloatArray | None = None,
) -> tuple[dict[int, float], NormBounds | None]:
    """Return the updates beyond ‖w‖ and `limit` · e_k · r, by place with their bounds.

    Also return the norm bounds of the others, None if none remain. The update furthest beyond its
    bound is left out first; then r and e are computed again without it. `compared` replaces ‖u_k‖
    in the comparison if a reply has another model as well.
    """
    compared = norms if compared is None else compared
    left = np.arange(len(norms))
    refused = dict[int, float]()
    while len(left):
        norm_bounds = compute_norm_bounds(norms[left], counts[left], past, model_norm)
        with np.errstate(over="ignore"):
            bounds = limit * norm_bounds.norm * norm_bounds.allowances
        if (compared[left] <= bounds).all():  # a round of plausible replies needs no more
            return refused, norm_bounds
        # An update with the model's norm is never refused; the factor allows for rounding.
        bounds = np.maximum(bounds, model_norm() * (1.0 + 1e-6))
        excess = compared[left] / bounds
        furthest = int(np.argmax(excess))
        if excess[furthest] <= 1.0:
            return refused, norm_bounds
        refused[int(left[furthest])] = float(bounds[furthest])
        left = np.delete(left, furthest)
    return refused, None


def lower_median(values: FloatArray) -> float:
    """Return the median; of an even number of values, the lower one of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def screen_norms(method: Method, replies: TrainReplies, server_round: int) -> NormBounds | None:
    """Refuse replies whose update norm exceeds the limit.

    Return the norm bounds of the others, None if none remain.

    A snapshot keeps to the bound of its client's update. Second updates that are rows are compared
    with each other: a gradient of something other than the loss has another norm.
    """
    layout = replies.updates.layout
    past = method.run_state.norms.before(server_round)

    def refuse(
        norms: FloatArray, kind: str, compared: FloatArray | None = None
    ) -> NormBounds | None:
        names = replies.names
        counts = replies.column(NUM_EXAMPLES)
        refused, norm_bounds = find_outlier_norms(
            norms, counts, past, lambda: layout.norm, method.update_limit, compared
        )
        reasons: dict[str, str] = {}
        for place, bound in refused.items():
            which = kind if compared is None or norms[place] <= bound else "update"
            excessive = norms[place] if compared is None else compared[place]
            reasons[names[place]] = (
                f"its {which} has the length {excessive:g}, beyond {bound:g}: the larger of"
                f" the received model's length ({layout.norm:g}) and {method.update_limit:g}"
                " times (update_limit) what is usual for its number of examples"
            )
        replies.refuse(reasons)
        return norm_bounds

    second = replies.second
    norms = replies.updates.norms
    if second is None:
        return refuse(norms, "update")
    if not method.has_second_rows:
        return refuse(norms, method.second, np.maximum(norms, second.norms))
    refuse(second.norms, method.second)
    # Replies may have left since, so the norms are read again.
    return refuse(replies.updates.norms, "update")


def screen_replies(
    method: Method, replies: TrainReplies, server_round: int, first_limit: float = math.inf
) -> NormBounds | None:
    """Refuse a round's implausible replies; return the norm bounds of the others, if any."""
    replies.refuse(
        implausible_counts(method, replies.metrics, first_limit, method.run_state.first_counts)
    )
    replies.refuse(out_of_proportion(replies.metrics, method.needs, method.loss_limit))
    screen_buffers(method, replies)
    return screen_norms(method, replies, server_round)


# Steps --------------------------------------------------------------------------------------------


def check_step(method: Method, layout: Layout, step_norm: float, max_norm: float) -> None:
    """Raise ValueError if a step is too long for the model, the updates and the earlier steps.

    With a server optimizer, the step is the method's: it shows whether an update is absurd. The
    optimizer's own step does not: an adaptive one is not longer for a longer update, and one with
    momentum is as long as several steps.

    Parameters
    ----------
    step_norm
        The norm of the step.
    max_norm
        The norm of the round's longest update.
    """
    limit = method.update_limit
    known = max(max_norm, method.run_state.norms.longest_step)
    if step_norm > limit * known and step_norm > limit * layout.norm:
        raise ValueError(
            f"the step has the length {step_norm:g}, beyond {limit:g} times (update_limit) the"
            f" largest of the received model's length ({layout.norm:g}), the longest update's and"
            f" the longest step's so far ({known:g})"
        )


# Models -------------------------------------------------------------------------------------------


def check_model(method: Method, model: Model) -> None:
    """Raise BrokenModelError if the first model has no floats, or trains values not finite."""
    if model and all(array.dtype.kind in "iub" for array in model.values()):
        arrays = ", ".join(f"{name} ({array.dtype})" for name, array in model.items())
        raise BrokenModelError(
            f"the model has no float array, and only those are trained: {arrays}. Send its"
            " parameters as float32"
        )
    wrong = [name for name, array in model.items() if array.dtype.kind not in "fiub"]
    if wrong:
        raise BrokenModelError(
            f"array {wrong[0]!r} has dtype {model[wrong[0]].dtype}; only {DTYPES} are supported"
        )
    for word in split_words(method.personal_parameters):
        kept = match_names(model, word)
        lacking = [name for name in kept if name not in method.frozen_in(model)]
        if lacking or not (kept or method.frozen):
            raise BrokenModelError(
                f"personal_parameters = {method.personal_parameters!r}: {word!r} matches"
                f" {', '.join(lacking) or 'no array'}; name arrays by patterns, as in fc2.*, and"
                f" all that match in frozen, or leave frozen out; the model has {', '.join(model)}"
            )
    statistics = [name for name in model if name.endswith(STATISTICS)]
    untrained = {*method.frozen, *(statistics if method.buffers is None else method.buffers)}
    for name, array in model.items():
        if name not in untrained and not np.isfinite(array).all():
            raise BrokenModelError(
                f"no client can train: array {name!r} has an entry of"
                f" {array[~np.isfinite(array)][0]:g}. A constant, such as a mask, is a buffer"
                " (register_buffer) of a PyTorch model; name others by frozen=(…,) or buffers=(…,)"
                " of the strategy"
            )
