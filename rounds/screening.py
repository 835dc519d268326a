"""Which replies of a round are used, and whether its step is taken: reports, then buffers, lengths and the step.

Every check of a report raises ValueError with the reason for which the reply is refused.

The usual length r of a round is the larger of two lower medians: that of ‖u_k‖ over the round's
updates that are not zero, where there are at least two of them; and that of ‖u_k‖/e_k over the
replies that were used in the rounds t − 5 to t − 1. Where there is neither, or both are zero, r is
the larger of the received model's length and 1. The allowance e_k is a client's number of examples
over their lower median in the round, at least 1 and at most 1000: who has more rows takes more
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
    POSITIVES,
    STEP_SUM,
    TRAIN_LOSS,
    VALIDATION,
)

from .arrays import FloatArray, Model
from .clients import TrainReplies
from .layout import DTYPES, STATISTICS, Layout
from .method import Method
from .refusals import lacking_metric

LARGEST = sys.float_info.max

LARGEST_COUNT = 2**53
"""No client counts more examples; up to here every integer is a float64 of its own."""

ACCURACIES = tuple(
    f"{ACCURACY}{of}" for of in ("", f"-{PERSONAL}", f"-{VALIDATION}", f"-{VALIDATION}-{PERSONAL}")
)
"""What a client may tell of its test and validation splits as a share of the examples."""

LOSSES = frozenset({LOSS_BEFORE, LOSS_AFTER, LOSS_BASELINE, TRAIN_LOSS})

GROUP_COUNTS = frozenset({*POSITIVES, *HITS})

SMALLEST_STEP_SUM = 1e-12
"""Sums of learning rates below this are no client's: updates divided by them could leave the range
of numbers."""

USUAL_LOSS = 1.0
"""Where the median loss is smaller, losses are compared with this: one client may well be far from
the others' zero."""

LARGEST_ALLOWANCE = 1000.0
"""However many examples a client has, its update may be longer than others' by no more than
this."""


class BrokenModelError(FairbloomError):
    """A global model that cannot be trained; the message names the array that is broken."""


# What a client reports ----------------------------------------------------------------------------


def usable_metrics(
    record: Mapping[str, Any], weight_key: str, needs: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Return the finite numbers among a reply's metrics, if count, weight and the needed ones are there."""
    count = record.get(NUM_EXAMPLES)
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"num-examples must be an integer of at least 1, got {count!r}")
    if count > LARGEST_COUNT:
        raise ValueError(f"num-examples must be at most 2**53, got {count!r}")
    finite = {
        key: each
        for key, each in record.items()
        if isinstance(each, (int, float)) and abs(each) <= LARGEST
    }
    if not 0 < finite.get(weight_key, 0) <= LARGEST_COUNT:
        raise ValueError(
            f"{weight_key} must be a positive number of at most 2**53, got"
            f" {record.get(weight_key)!r}"
        )
    if missing := sorted(needs - finite.keys()):
        raise lacking_metric(missing[0], record.get(missing[0]))
    _check_shares(
        finite, (name for name in needs if name.startswith(ACCURACY) or name == DISPARITY)
    )
    if LEARNING_RATE in needs and finite[LEARNING_RATE] <= 0.0:
        raise ValueError(
            f"metric 'learning-rate' must be positive, got {finite['learning-rate']!r}"
        )
    if GROUP_COUNTS.intersection(needs):
        _check_group_counts(finite)
    if STEP_SUM in needs and not (finite[STEP_SUM] == 0.0 or finite[STEP_SUM] >= SMALLEST_STEP_SUM):
        words = f"metric {STEP_SUM!r} must be 0 or at least {SMALLEST_STEP_SUM:g}"
        raise ValueError(f"{words}, got {finite[STEP_SUM]!r}")
    return finite


def usable_evaluation(record: Mapping[str, Any], weight_key: str) -> dict[str, float]:
    """Return the finite numbers among what a client measured, if its count is one and its accuracies are shares."""
    if record.get(NUM_EXAMPLES) == 0:
        raise ValueError("it has no test examples, so it counts in no measure")
    metrics = usable_metrics(record, weight_key)
    _check_shares(metrics, ACCURACIES & metrics.keys())
    return metrics


def _check_shares(metrics: Mapping[str, float], names: Iterable[str]) -> None:
    for name in sorted(names):
        if not (lowest := -1.0 if name == DISPARITY else 0.0) <= metrics[name] <= 1.0:
            raise ValueError(f"metric {name!r} must lie in [{lowest:g}, 1], got {metrics[name]!r}")


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
    if (together := sum(metrics.get(name, 0) for name in POSITIVES)) > metrics[NUM_EXAMPLES]:
        raise ValueError(
            f"{' and '.join(POSITIVES)} are {together:g} together, of {metrics[NUM_EXAMPLES]:g}"
            " examples"
        )


def implausible_counts(
    reports: Mapping[str, Mapping[str, float]],
    weight_key: str,
    *,
    enrolled: Mapping[str, float],
    first: Mapping[str, float],
    max_growth: float,
    first_limit: float = math.inf,
) -> dict[str, str]:
    """Return why some clients' counts are refused: more examples than `enrolled`, or a weight far above the `first`.

    A client that joins is compared with the others: see `beyond_others`.
    """
    reasons: dict[str, str] = {}
    for name, report in reports.items():
        examples = report[NUM_EXAMPLES]
        weight = report[weight_key]
        if name in enrolled and examples > enrolled[name]:
            most = f"the {enrolled[name]} examples that it was enrolled with"
            reasons[name] = f"num-examples {examples} is more than {most}"
        elif name in first and weight > max_growth * first[name]:
            most = f"{max_growth:g} times (max_growth) the {first[name]} that it said at first"
            reasons[name] = f"{weight_key} {weight} is more than {most}"
        elif name not in {*enrolled, *first} and (
            words := beyond_others(name, examples, first, first_limit)
        ):
            reasons[name] = f"num-examples {examples} is {words}"
    return reasons


def beyond_others(name: str, size: float, sizes: Mapping[str, float], limit: float) -> str:
    """Return in words that a client has more than `limit` times the median of the others' examples, "" if not."""
    others = [each for other, each in sizes.items() if other != name]
    if not others or size <= limit * median(others):
        return ""
    return (
        f"more than {limit:g} times the median of the others ({median(others):g}), and the operator"
        f" has stated no number: if it is right, state it by fairbloom deploy enroll {name}"
        f" --examples N, or for this run by --set enrolled-sizes={name}=N"
    )


def out_of_proportion(
    replies: Mapping[str, Mapping[str, float]], needs: Collection[str], limit: float
) -> dict[str, str]:
    """Return the clients with needed losses or rates out of all proportion to the others', with the reason."""
    reasons: dict[str, str] = {}
    for metric in sorted(LOSSES & set(needs)):
        losses = {name: metrics[metric] for name, metrics in replies.items() if name not in reasons}
        # the least that the bound can be
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
    """Return `limit` times the lower median of the sizes, or of `floor` where that is more.

    As long as the largest size is beyond, it is left out and the median taken again: the bound is
    that of the sizes within it alone, whatever the others are. Of two sizes the smaller one is the
    median.
    """
    ascending = sorted(sizes)
    bound = math.inf
    while ascending and ascending[-1] > (
        bound := limit * max(floor, ascending[(len(ascending) - 1) // 2])
    ):
        ascending.pop()
    return bound


def proportionate_rates(rates: Iterable[float], limit: float) -> tuple[float, float]:
    """Return the lower median divided, and multiplied, by `limit`.

    Of two rates, either may be the wrong one.

    QFedSGD divides by the rate, and control variates by the sum of the steps' rates: one near zero
    would stop every client's step, or be the control variate of all.
    """
    ascending = sorted(rates)
    if len(ascending) < 3:
        return 0.0, math.inf
    median = ascending[(len(ascending) - 1) // 2]
    return median / limit, median * limit


def screen_reports(method: Method, trained: TrainReplies, first_limit: float = math.inf) -> None:
    """Leave out replies with implausible counts, or with losses out of proportion to the others.

    A client's first count may be `first_limit` times the others' median.
    """
    implausible = implausible_counts(
        trained.metrics,
        method.weighted_by_key,
        enrolled=method.enrolled_sizes,
        first=method.progress.first_counts,
        max_growth=method.max_growth,
        first_limit=first_limit,
    )
    trained.refuse(implausible)
    trained.refuse(out_of_proportion(trained.metrics, method.needs, method.loss_limit))


def usable_sizes(
    method: Method, sizes: Mapping[str, float], first_limit: float = math.inf
) -> dict[str, float]:
    """Return which of the sizes that clients say they have can be the weights of their replies.

    Where replies are weighted by another metric, none can; a client that was enrolled with fewer
    examples, or says that it has far more than the others, says in its first usable reply how many
    it has.
    """
    if method.weighted_by_key != NUM_EXAMPLES:
        return {}
    first = method.progress.first_counts
    enrolled = method.enrolled_sizes
    return {
        name: size
        for name, size in sizes.items()
        if (
            size <= enrolled[name]
            if name in enrolled
            else not beyond_others(name, size, first, first_limit)
        )
    }


def screen_buffers(method: Method, trained: TrainReplies) -> None:
    """Leave out replies with buffers that change out of proportion to the global model's and to the others' changes.

    Buffers are no part of the update; but they are averaged, and one absurd variance would spoil
    every evaluation.
    """
    layout = trained.updates.layout
    limit = method.update_limit
    if not layout.buffers or limit == math.inf:
        return
    changes = dict(zip(trained.names, trained.updates.buffer_changes().tolist(), strict=True))
    most = largest_in_proportion(changes.values(), limit, layout.distance(None, layout.buffers))
    trained.refuse(
        {
            name: (
                f"its buffers ({', '.join(layout.buffers)}) change by {change:g}, beyond {most:g}:"
                f" {limit:g} times (update_limit) the larger of the received model's buffers and"
                " the round's median change"
            )
            for name, change in changes.items()
            if change > most
        }
    )


# NormHistory of updates -------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormBounds:
    """What is usual among the replies that are left: the length r, and each client's e_k."""

    length: float
    allowances: FloatArray

    def times(self, factor: float) -> FloatArray:
        """Return `factor` · e_k · r for each reply."""
        with np.errstate(over="ignore"):
            return factor * self.length * self.allowances


def usual(
    lengths: FloatArray, counts: FloatArray, past: FloatArray, model_length: Callable[[], float]
) -> NormBounds:
    """Return the usual length of a round's updates, and each client's allowance, by ‖u_k‖ and n_k, shape (m,).

    `past` is what `NormHistory.before` returns; `model_length` computes ‖w‖ where it is needed.
    """
    moving = lengths[lengths > 0.0]
    medians = [
        lower_median(each)
        for each in (moving[:0] if len(moving) == 1 else moving, past)
        if len(each)
    ]
    length = max(medians, default=0.0)
    allowances = np.clip(counts / lower_median(counts), 1.0, LARGEST_ALLOWANCE)
    return NormBounds(length if length > 0.0 else max(model_length(), 1.0), allowances)


def find_outlier_norms(
    lengths: FloatArray,
    counts: FloatArray,
    past: FloatArray,
    model_length: Callable[[], float],
    limit: float,
    longest: FloatArray | None = None,
) -> tuple[dict[int, float], NormBounds | None]:
    """Return the updates longer than ‖w‖ and than `limit` · e_k · r, by place with their bounds, and what is usual.

    The one furthest beyond its bound is left out first; then r and e are computed again without it.
    Nothing is usual where no update is left. `longest` replaces ‖u_k‖ in the comparison where a
    reply has another model as well.
    """
    compared = lengths if longest is None else longest
    left = np.arange(len(lengths))
    refused = dict[int, float]()
    while len(left):
        found = usual(lengths[left], counts[left], past, model_length)
        bounds = found.times(limit)
        if (compared[left] <= bounds).all():  # all that a round of plausible replies needs
            return refused, found
        # an update as long as the model, but for rounding, is never refused
        bounds = np.maximum(bounds, model_length() * (1.0 + 1e-6))
        excess = compared[left] / bounds
        furthest = int(np.argmax(excess))
        if excess[furthest] <= 1.0:
            return refused, found
        refused[int(left[furthest])] = float(bounds[furthest])
        left = np.delete(left, furthest)
    return refused, None


def lower_median(values: FloatArray) -> float:
    """Return the median, of an even number of values the lower one of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def screen_lengths(method: Method, trained: TrainReplies, server_round: int) -> NormBounds | None:
    """Leave out replies whose update is too long.

    Return what is usual among the others, None where none is left.

    A snapshot keeps to the bound of its client's update. Second updates that are rows are compared
    with each other: a gradient of something else than the loss has another length.
    """
    layout = trained.updates.layout
    past = method.progress.norms.before(server_round)

    def refuse(
        lengths: FloatArray, what: str, longest: FloatArray | None = None
    ) -> NormBounds | None:
        names = trained.names
        counts = trained.column(NUM_EXAMPLES)
        compared = lengths if longest is None else longest
        refused, found = find_outlier_norms(
            lengths, counts, past, lambda: layout.norm, method.update_limit, longest
        )
        reasons: dict[str, str] = {}
        for place, bound in refused.items():
            which = what if longest is None or lengths[place] <= bound else "update"
            reasons[names[place]] = (
                f"its {which} has the length {compared[place]:g}, beyond {bound:g}: the larger of"
                f" the received model's length ({layout.norm:g}) and {method.update_limit:g}"
                " times (update_limit) what is usual for its number of examples"
            )
        trained.refuse(reasons)
        return found

    second = trained.second
    lengths = trained.updates.norms
    if second is None:
        return refuse(lengths, "update")
    if not method.has_second_rows:
        return refuse(lengths, method.second, np.maximum(lengths, second.norms))
    refuse(second.norms, method.second)
    return refuse(trained.updates.norms, "update")


# Steps --------------------------------------------------------------------------------------------


def check_step(method: Method, layout: Layout, step: float, longest_update: float) -> None:
    """Raise ValueError where a step of this length is too long for the received model, the updates and earlier steps.

    With a server optimizer it is the method's step: that an update is absurd shows there. An
    adaptive step is no longer for a longer update, and one with momentum is as long as several
    steps; the user's step size says how long.
    """
    limit = method.update_limit
    known = max(longest_update, method.progress.norms.longest_step)
    if step > limit * known and step > limit * layout.norm:
        raise ValueError(
            f"the step has the length {step:g}, beyond {limit:g} times (update_limit) the largest"
            f" of the received model's length ({layout.norm:g}), the longest update's and the"
            f" longest step's so far ({known:g})"
        )


# Models -------------------------------------------------------------------------------------------


def check_model(method: Method, model: Model) -> None:
    """Raise BrokenModelError where what is trained of the first model is not finite, or where it has integers alone."""
    if model and all(array.dtype.kind in "iub" for array in model.values()):
        arrays = ", ".join(f"{name} ({array.dtype})" for name, array in model.items())
        raise BrokenModelError(
            f"the model has no array of floats, which alone are trained: {arrays}. Send its"
            " parameters as float32"
        )
    for name, array in model.items():
        if array.dtype.kind not in "fiub":
            raise BrokenModelError(
                f"array {name!r} has dtype {array.dtype}; only {DTYPES} are supported"
            )
    statistics = [name for name in model if name.endswith(STATISTICS)]
    untrained = {*method.frozen, *(statistics if method.buffers is None else method.buffers)}
    finite = {
        name: array[np.isfinite(array)] if name in untrained else array
        for name, array in model.items()
    }
    for name, array in finite.items():
        if not np.isfinite(array).all():
            raise BrokenModelError(
                f"no client can train: array {name!r} has an entry of"
                f" {array[~np.isfinite(array)][0]:g}. A constant that nobody trains, as a mask, is"
                " a buffer (register_buffer) of a model of PyTorch; name others by frozen=(…,) or"
                " buffers=(…,) of the strategy"
            )
