"""Rows that several clients on one machine have: a file that was copied, or that holds another client's rows.

Rows are compared by digests, in one process alone: no digest leaves it.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from ..row_digests import Digests
from .reading.table import Column, Rows


def digest_rows(columns: Sequence[Column], rows: Rows) -> Digests:
    """Return a digest of what each of these rows holds in these columns, in whatever order the columns are."""
    digests = np.zeros(len(rows), np.uint64)
    for column in sorted(columns, key=lambda each: each.name):
        if column.numbers is None:
            of_texts = np.array([_digest(text) for text in (*column.texts, "")], np.uint64)  # a code of -1 is the last
            values = of_texts[column.codes[rows]] if len(column.codes) else np.full(len(rows), of_texts[-1])
        else:
            numbers = column.numbers[rows] + 0.0  # makes 0 of -0
            values = np.where(np.isnan(numbers), np.uint64(_digest("")), numbers.view(np.uint64))
        digests = _mix(digests ^ values)
    return digests


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(values: Digests) -> Digests:
    """Return each number scrambled, one to one, as splitmix64 does it."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def find_shared_rows(digests: Mapping[str, Digests]) -> dict[str, str]:
    """Return a warning for each client that shares more rows with another one than repeats would explain."""
    counted = {name: np.unique(each, return_counts=True) for name, each in digests.items()}
    equal = sum(float((counts * (counts - 1.0)).sum()) for _, counts in counted.values())
    pairs = sum(len(each) * (len(each) - 1.0) for each in digests.values())
    found: dict[str, str] = {}
    for name, (different, counts) in counted.items():
        once = different[counts == 1]
        for other, (theirs, their_counts) in counted.items():
            if other == name:
                continue
            if np.array_equal(different, theirs) and np.array_equal(counts, their_counts):
                found[name] = f"it has the same rows as {other}: leave one of the two out"
                break
            shared = int(np.isin(once, theirs, assume_unique=True).sum())
            by_chance = len(digests[name]) * -np.expm1(-len(digests[other]) * equal / max(pairs, 1.0))
            if shared >= 5 + 2.0 * by_chance:  # fewer may be a coincidence
                found[name] = (
                    f"{shared} of its {len(digests[name])} rows are in the data of {other}, too: if they are the same "
                    "cases, leave them out of one of the two"
                )
                break
    return found
