"""What makes a reply usable; every check raises ValueError with the reason for which the reply is refused."""

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from .updates import Arrays, Layout

SNAPSHOT = "snapshot"
"""The ArrayRecord with the model that a client had in the midst of its local work."""

LARGEST_COUNT = 2**53
"""No client counts more examples; up to here every integer is a float64 of its own."""

ACCURACIES = ("accuracy", "accuracy-personal")
"""What a client may tell of its test split as a share of the examples."""

LOSSES = frozenset({"loss-before", "loss-after", "train-loss"})

USUAL_LOSS = 1.0
"""Where the median loss is smaller, losses are compared with this: one client may well be far from the others' zero."""


def usable_metrics(content: Any, weight_key: str, needs: Collection[str] = ()) -> dict[str, float]:
    """Return the finite numbers among a reply's metrics, if count, weight and the needed ones are there."""
    record = _only(content.metric_records, "metrics", "MetricRecord")
    count = record.get("num-examples")
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
            raise ValueError(f"metric {name!r} must be a finite number, got {record.get(name)!r}")
    _check_accuracies({name: finite[name] for name in needs if name.startswith("accuracy")})
    if "learning-rate" in needs and finite["learning-rate"] <= 0.0:
        raise ValueError(f"metric 'learning-rate' must be positive, got {finite['learning-rate']!r}")
    return finite


def usable_evaluation(content: Any, weight_key: str) -> dict[str, float]:
    """Return the finite numbers among what a client measured, if its count is one and its accuracies are shares."""
    metrics = usable_metrics(content, weight_key)
    _check_accuracies({name: metrics[name] for name in ACCURACIES if name in metrics})
    return metrics


def _check_accuracies(accuracies: Mapping[str, float]) -> None:
    for name, value in sorted(accuracies.items()):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"metric {name!r} must lie in [0, 1], got {value!r}")


def check_counts(
    metrics: Mapping[str, float], weight_key: str, *, enrolled: float, first: float, max_growth: float
) -> None:
    """Refuse more examples than a client was `enrolled` with, and a weight far above that of its `first` reply."""
    examples, weight = metrics["num-examples"], metrics[weight_key]
    if examples > enrolled:
        raise ValueError(f"num-examples {examples} is more than the {enrolled} examples that it was enrolled with")
    if weight > max_growth * first:
        growth = f"{max_growth:g} times (max_growth)"
        raise ValueError(f"{weight_key} {weight} is more than {growth} the {first} of its first usable reply")


def out_of_proportion(
    replies: Mapping[str, Mapping[str, float]], needs: Collection[str], limit: float
) -> dict[str, str]:
    """Return whose needed losses or learning rate are out of all proportion to the others', with the reason."""
    reasons: dict[str, str] = {}
    for metric in sorted(LOSSES & set(needs)):
        losses = {name: metrics[metric] for name, metrics in replies.items() if name not in reasons}
        most = largest_in_proportion(map(abs, losses.values()), limit, USUAL_LOSS)
        words = f"beyond {most:g}: {limit:g} times (loss_limit) the larger of the round's median and {USUAL_LOSS:g}"
        for name, loss in losses.items():
            if abs(loss) > most:
                reasons[name] = f"metric {metric!r} is {loss:g}, {words}"
    if "learning-rate" in needs:
        rates = {name: metrics["learning-rate"] for name, metrics in replies.items() if name not in reasons}
        low, high = proportionate_rates(rates.values(), limit)
        for name, rate in rates.items():
            if not low <= rate <= high:
                words = (
                    f"outside {low:g} to {high:g}: the round's median divided and multiplied by {limit:g} (loss_limit)"
                )
                reasons[name] = f"metric 'learning-rate' is {rate:g}, {words}"
    return reasons


def largest_in_proportion(sizes: Iterable[float], limit: float, floor: float) -> float:
    """Return `limit` times the lower median of the sizes, or of `floor` where that is more.

    As long as the largest size is beyond, it is left out and the median taken anew: the bound is the one that the sizes
    within it have by themselves, whatever the others are. Of two sizes the smaller one is the median.
    """
    ascending = sorted(sizes)
    bound = math.inf
    while ascending and ascending[-1] > (bound := limit * max(floor, ascending[(len(ascending) - 1) // 2])):
        ascending.pop()
    return bound


def proportionate_rates(rates: Iterable[float], limit: float) -> tuple[float, float]:
    """Return the lower median divided, and multiplied, by `limit`; of two rates, nothing tells which one is wrong.

    QFedSGD divides by the rate: one near zero would stop every client's step.
    """
    ascending = sorted(rates)
    if len(ascending) < 3:
        return 0.0, math.inf
    median = ascending[(len(ascending) - 1) // 2]
    return median / limit, median * limit


def usable_arrays(content: Any, key: str, layout: Layout) -> Arrays:
    """Return a reply's arrays, if their names, shapes and kinds of dtype are the model's."""
    arrays = {}
    for name, array in _only(content.array_records, key, "ArrayRecord").items():
        try:
            arrays[name] = view(array)
        except Exception as error:  # nothing bounds what a client's bytes make NumPy raise
            raise ValueError(f"array {name!r} can't be read: {error}") from error
    if (mismatch := layout.mismatch(arrays)) is not None:
        raise ValueError(mismatch)
    return arrays


def view(array: Any) -> NDArray[Any]:
    """Return the values of a Flower Array without a copy, read-only: its bytes are a file as numpy.save writes it.

    Raises
    ------
    ValueError
        When the bytes are no such file, or hold Python objects.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, not as 'numpy.ndarray'")
    file = BytesIO(array.data)
    if read_magic(file) == (1, 0):
        shape, fortran, dtype = read_array_header_1_0(file)
    else:
        shape, fortran, dtype = read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def usable_snapshot(content: Any, layout: Layout) -> Arrays:
    """Return the model that a client had in the midst of its local work, if it is like the model and finite."""
    arrays = usable_arrays(content, SNAPSHOT, layout)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} of the snapshot is not finite")
    return arrays


def _only(records: Mapping[str, Any], key: str, kind: str) -> Any:
    """Return the record named `key`, or the only one there is: foreign clients choose their own name."""
    if key in records:
        return records[key]
    others = [record for name, record in records.items() if name != SNAPSHOT]
    if key == SNAPSHOT or len(others) != 1:
        raise ValueError(f"{kind} {key!r} is missing")
    return others[0]
