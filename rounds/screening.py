"""What makes a reply usable; every check raises ValueError with the reason for which the reply is refused."""

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from fairbloom.logs import log
from fairbloom.protocol.helper import advice_on
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
    SNAPSHOT,
    STEP_SUM,
    TRAIN_LOSS,
    VALIDATION,
)

from .quorum import listed
from .updates import NotFiniteError

MAX_REASON_CHARACTERS = 2000
"""The longest reason that is kept: a client's error may be a whole traceback, or a flood."""

FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^/\s'\"]+/)+")
"""The folders of an absolute path, which are left out of a reason: they say where a site keeps its files."""

LARGEST_COUNT = 2**53
"""No client counts more examples; up to here every integer is a float64 of its own."""

ACCURACIES = tuple(f"{ACCURACY}{of}" for of in ("", f"-{PERSONAL}", f"-{VALIDATION}", f"-{VALIDATION}-{PERSONAL}"))
"""What a client may tell of its test and validation splits as a share of the examples."""

LOSSES = frozenset({LOSS_BEFORE, LOSS_AFTER, LOSS_BASELINE, TRAIN_LOSS})

GROUP_COUNTS = frozenset({*POSITIVES, *HITS})

SMALLEST_STEP_SUM = 1e-12
"""Sums of learning rates below this are no client's: updates divided by them could leave the range of numbers."""

USUAL_LOSS = 1.0
"""Where the median loss is smaller, losses are compared with this: one client may well be far from the others' zero."""


class MissingError(ValueError):
    """A reply without a part that the method needs of all; `what` names it, as "the metric 'loss-before'"."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class MissingMetricError(MissingError):
    """A reply without a metric that the method needs, or with one that is no finite number."""

    def __init__(self, metric: str, value: object) -> None:
        remedy = f": {advice_on([metric])}" if value is None else ""
        message = f"metric {metric!r} must be a finite number, got {value!r}{remedy}"
        super().__init__(f"the metric {metric!r}", message)
        self.metric, self.value = metric, value


class MissingSecondError(MissingError):
    """A reply without the record of the second model that the method needs of all."""

    def __init__(self, record: str) -> None:
        which = ", the model after `snapshot-step` of the `local-steps` steps" if record == SNAPSHOT else ""
        missing = f"ArrayRecord {record!r} is missing{which}: {advice_on([record])}"
        super().__init__(f"the ArrayRecord {record!r}", missing)


class Refusals:
    """Why replies of a round are not used, by client name; `log` says each reason once."""

    def __init__(self, server_round: int) -> None:
        self.round = server_round
        self._reasons: dict[str, list[str]] = {}
        self._lacking: dict[str, str] = {}
        self._strange: dict[str, tuple[str, float]] = {}
        self._not_finite: list[str] = []

    def add(self, name: str, reason: ValueError | str) -> None:
        """Note why a reply of `name` is not used."""
        words = FOLDERS.sub("", one_line(str(reason)))
        self._reasons.setdefault(name, []).append(words)
        if isinstance(reason, MissingMetricError) and isinstance(reason.value, float):
            self._strange[name] = reason.metric, reason.value
            self._not_finite.append(name)
        elif isinstance(reason, MissingError):
            self._lacking[name] = reason.what
        elif isinstance(reason, NotFiniteError):
            self._not_finite.append(name)

    def log(self) -> None:
        """Log each reason in a line, with the clients that it is about."""
        clients: dict[str, list[str]] = {}
        for name, reason in self.reasons.items():
            clients.setdefault(reason, []).append(name)
        for reason, names in clients.items():
            extra = {"client": ", ".join(names), "round": self.round}
            who = f"a reply of client {names[0]}" if len(names) == 1 else f"the replies of {len(names)} clients"
            them = f" ({listed(names)})" if len(names) > 1 else ""
            log.warning("refused %s%s: %s", who, them, reason, extra=extra)

    @property
    def not_finite(self) -> Sequence[str]:
        """The clients with arrays, or a needed metric, that are not finite numbers."""
        return self._not_finite

    def explain(self, name: str, words: str) -> None:
        """Add the cause to the last reason of a client that is refused already."""
        self._reasons[name][-1] += f"; {words}"

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons by client, in the order of names."""
        return {name: "; ".join(given) for name, given in sorted(self._reasons.items())}

    @property
    def count(self) -> int:
        """How many replies were refused; a client may have sent several."""
        return sum(map(len, self._reasons.values()))

    @property
    def lacked_by_all(self) -> str:
        """What every refused reply lacks and the method needs, "" where they were refused for something else."""
        lacking = set(self._lacking.values())
        return lacking.pop() if len(lacking) == 1 and self._lacking.keys() == self._reasons.keys() else ""

    @property
    def strange_at_all(self) -> str:
        """Which metric that the method needs is no finite number in every refused reply, with a value, or ""."""
        metrics = {metric for metric, _ in self._strange.values()}
        if len(metrics) != 1 or self._strange.keys() != self._reasons.keys():
            return ""
        value = next(iter(self._strange.values()))[1]
        return f"{metrics.pop()} is {'NaN' if math.isnan(value) else value}"


def one_line(text: str) -> str:
    """Return what a client may have written as one line that is safe to print, without its middle where it is long."""
    if len(text) > MAX_REASON_CHARACTERS:
        text = f"{text[: MAX_REASON_CHARACTERS // 2]} … {text[-MAX_REASON_CHARACTERS // 2 :]}"
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))


def usable_metrics(record: Mapping[str, Any], weight_key: str, needs: Collection[str] = ()) -> dict[str, float]:
    """Return the finite numbers among a reply's metrics, if count, weight and the needed ones are there."""
    count = record.get(NUM_EXAMPLES)
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"num-examples must be an integer of at least 1, got {count!r}")
    if count > LARGEST_COUNT:
        raise ValueError(f"num-examples must be at most 2**53, got {count!r}")
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    finite = {key: value for key, value in numbers.items() if abs(value) <= sys.float_info.max}
    if not 0 < finite.get(weight_key, 0) <= LARGEST_COUNT:
        raise ValueError(f"{weight_key} must be a positive number of at most 2**53, got {record.get(weight_key)!r}")
    for name in sorted(needs):
        if name not in finite:
            raise MissingMetricError(name, record.get(name))
    _check_shares({name: finite[name] for name in _shares_among(needs)})
    if LEARNING_RATE in needs and finite[LEARNING_RATE] <= 0.0:
        raise ValueError(f"metric 'learning-rate' must be positive, got {finite['learning-rate']!r}")
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
    _check_shares({name: metrics[name] for name in ACCURACIES if name in metrics})
    return metrics


def usable_reports(
    records: Mapping[str, Mapping[str, Any]], weight_key: str, needs: Collection[str] = ()
) -> tuple[dict[str, dict[str, float]], dict[str, ValueError]]:
    """Return what `usable_metrics` returns of each client's record, and the reasons of those that cannot be used."""
    shares = _shares_among(needs)
    return _screened(records, weight_key, needs, shares, lambda record: usable_metrics(record, weight_key, needs))


def usable_evaluations(
    records: Mapping[str, Mapping[str, Any]], weight_key: str
) -> tuple[dict[str, dict[str, float]], dict[str, ValueError]]:
    """Return what `usable_evaluation` returns of each client's record, and the reasons of those that cannot be used."""
    return _screened(records, weight_key, (), ACCURACIES, lambda record: usable_evaluation(record, weight_key))


def _screened(
    records: Mapping[str, Mapping[str, Any]],
    weight_key: str,
    needs: Collection[str],
    shares: Collection[str],
    usable: Callable[[Mapping[str, Any]], dict[str, float]],
) -> tuple[dict[str, dict[str, float]], dict[str, ValueError]]:
    """Look at columns first, which takes a tenth of the time; only where something is wrong, at one after the other."""
    if _all_usable(list(records.values()), weight_key, needs, shares):
        return {name: dict(record) for name, record in records.items()}, {}
    reports: dict[str, dict[str, float]] = {}
    reasons: dict[str, ValueError] = {}
    for name, record in records.items():
        try:
            reports[name] = usable(record)
        except ValueError as reason:
            reasons[name] = reason
    return reports, reasons


def _all_usable(
    rows: Sequence[Mapping[str, Any]], weight_key: str, needs: Collection[str], shares: Collection[str]
) -> bool:
    """Return True only where every record has the same keys, and in each column usable numbers of one type."""
    keys = rows[0].keys() if rows else set[str]()
    if GROUP_COUNTS.intersection(needs):  # which are compared with each other
        return False
    if [row.keys() for row in rows] != [keys] * len(rows) or not keys >= {NUM_EXAMPLES, weight_key, *needs}:
        return False
    columns = {key: [row[key] for row in rows] for key in keys}
    for column in columns.values():
        kinds = set(map(type, column))
        if kinds == {int}:
            if not -LARGEST_COUNT <= min(column) <= max(column) <= LARGEST_COUNT:
                return False
        elif kinds != {float} or not math.isfinite(sum(column)):  # a sum is finite only where all of it is
            return False
    positive = [weight_key, NUM_EXAMPLES, *({LEARNING_RATE} & set(needs))]
    return (
        type(columns[NUM_EXAMPLES][0]) is int
        and all(min(columns[key]) > 0 for key in positive)
        and (STEP_SUM not in needs or min(columns[STEP_SUM]) >= SMALLEST_STEP_SUM)
        and max(columns[weight_key]) <= LARGEST_COUNT
        and all(
            min(columns[key]) >= _lowest_share(key) and max(columns[key]) <= 1.0 for key in shares if key in columns
        )
    )


def _shares_among(metrics: Collection[str]) -> list[str]:
    return [name for name in metrics if name.startswith("accuracy") or name == DISPARITY]


def _lowest_share(metric: str) -> float:
    return -1.0 if metric == DISPARITY else 0.0


def _check_shares(metrics: Mapping[str, float]) -> None:
    for name, value in sorted(metrics.items()):
        if not (lowest := _lowest_share(name)) <= value <= 1.0:
            raise ValueError(f"metric {name!r} must lie in [{lowest:g}, 1], got {value!r}")


def _check_group_counts(metrics: Mapping[str, float]) -> None:
    for positives, hits in zip(POSITIVES, HITS, strict=True):
        bounds = {positives: metrics[NUM_EXAMPLES], hits: metrics.get(positives, metrics[NUM_EXAMPLES])}
        for name, most in bounds.items():
            value = metrics.get(name, 0)
            if value != int(value) or not 0 <= value <= most:
                raise ValueError(f"metric {name!r} must be a whole number from 0 to {most:g}, got {value!r}")
    if (together := sum(metrics.get(name, 0) for name in POSITIVES)) > metrics[NUM_EXAMPLES]:
        raise ValueError(f"{' and '.join(POSITIVES)} are {together:g} together, of {metrics[NUM_EXAMPLES]:g} examples")


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
        examples, weight = report[NUM_EXAMPLES], report[weight_key]
        if name in enrolled and examples > enrolled[name]:
            most = f"the {enrolled[name]} examples that it was enrolled with"
            reasons[name] = f"num-examples {examples} is more than {most}"
        elif name in first and weight > max_growth * first[name]:
            most = f"{max_growth:g} times (max_growth) the {first[name]} that it said at first"
            reasons[name] = f"{weight_key} {weight} is more than {most}"
        elif name not in {*enrolled, *first} and (words := beyond_others(name, examples, first, first_limit)):
            reasons[name] = f"num-examples {examples} is {words}"
    return reasons


def beyond_others(name: str, size: float, sizes: Mapping[str, float], limit: float) -> str:
    """Return in words that a client has more than `limit` times the median of the others' examples, "" if not."""
    others = [each for other, each in sizes.items() if other != name]
    if not others or size <= limit * median(others):
        return ""
    return (
        f"more than {limit:g} times the median of the others ({median(others):g}), and the operator has stated no "
        f"number: if it is right, state it by fairbloom deploy enroll {name} --examples N, or for this run by --set "
        f"enrolled-sizes={name}=N"
    )


def out_of_proportion(
    replies: Mapping[str, Mapping[str, float]], needs: Collection[str], limit: float
) -> dict[str, str]:
    """Return the clients with needed losses or rates out of all proportion to the others', with the reason."""
    reasons: dict[str, str] = {}
    for metric in sorted(LOSSES & set(needs)):
        losses = {name: metrics[metric] for name, metrics in replies.items() if name not in reasons}
        if max(map(abs, losses.values()), default=0.0) <= limit * USUAL_LOSS:  # the least that the bound can be
            continue
        most = largest_in_proportion(map(abs, losses.values()), limit, USUAL_LOSS)
        words = f"beyond {most:g}: {limit:g} times (loss_limit) the larger of the round's median and {USUAL_LOSS:g}"
        for name, loss in losses.items():
            if abs(loss) > most:
                reasons[name] = f"metric {metric!r} is {loss:g}, {words}"
    for metric in sorted({LEARNING_RATE, STEP_SUM} & set(needs)):
        rates = {name: metrics[metric] for name, metrics in replies.items() if name not in reasons and metrics[metric]}
        low, high = proportionate_rates(rates.values(), limit)
        for name, rate in rates.items():
            if not low <= rate <= high:
                words = (
                    f"outside {low:g} to {high:g}: the round's median divided and multiplied by {limit:g} (loss_limit)"
                )
                reasons[name] = f"metric {metric!r} is {rate:g}, {words}"
    return reasons


def largest_in_proportion(sizes: Iterable[float], limit: float, floor: float) -> float:
    """Return `limit` times the lower median of the sizes, or of `floor` where that is more.

    As long as the largest size is beyond, it is left out and the median taken again: the bound is that of the sizes
    within it alone, whatever the others are. Of two sizes the smaller one is the median.
    """
    ascending = sorted(sizes)
    bound = math.inf
    while ascending and ascending[-1] > (bound := limit * max(floor, ascending[(len(ascending) - 1) // 2])):
        ascending.pop()
    return bound


def proportionate_rates(rates: Iterable[float], limit: float) -> tuple[float, float]:
    """Return the lower median divided, and multiplied, by `limit`; of two rates, either may be the wrong one.

    QFedSGD divides by the rate, and control variates by the sum of the steps' rates: one near zero would stop every
    client's step, or be the control variate of all.
    """
    ascending = sorted(rates)
    if len(ascending) < 3:
        return 0.0, math.inf
    median = ascending[(len(ascending) - 1) // 2]
    return median / limit, median * limit
