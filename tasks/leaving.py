"""What may leave a device: how many rows stand behind a number, and by which rows two numbers may differ.

In one process no floor applies, since all rows lie on one machine: it is 0 there.
"""

from collections.abc import Mapping

from fairbloom.protocol.names import LARGER_CLASS

from .files.reasons import DataError, Heading

FLOOR_ROWS = 20
"""Fewest rows behind a mean, a category or a count that leaves a device, unless the device's owner says otherwise."""

SCORE_ROWS = 5
"""Fewest rows behind a loss or a score, and fewest of each class behind a score of classes, on a device."""

CLASS_SCORES = frozenset({"balanced-accuracy", "auc", "f1", "sensitivity", "specificity", LARGER_CLASS})
"""Numbers from which the classes' own scores, or counts, can be worked out."""


def score_floor(floor: int) -> int:
    """Return the fewest rows behind a score, where `floor` is the device's."""
    return min(SCORE_ROWS, floor)


def check_rows(why: str, rows: int, floor: int, **values: int | Heading) -> None:
    """Raise DataError where fewer rows than the floor are behind what a device would send.

    `why` is few-behind, few-targets, few-to-train or few-to-measure; `values` fill that reason's braces.
    """
    if rows < floor:
        error = DataError("", why, floor=floor, **values)
        raise DataError(f"{rows} training rows: {error.reportable}", why, floor=floor, **values)


def check_classes(counts: Mapping[str, int], floor: int) -> None:
    """Raise DataError where a class that is not stated has too few rows for its name to leave the device."""
    rare = min(counts, key=lambda name: counts[name], default="")
    if rare and counts[rare] < floor:
        raise DataError(
            f"class {rare!r} of the target has {counts[rare]} rows, and {floor} are the fewest with which a class is "
            f"named: state all classes by csv.classes, or correct the target",
            "rare-class",
            floor=floor,
        )
