"""Lists among the metrics of a reply: their elements are numbers of their own, and a list again in the means."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

MAX_ELEMENTS = 1000
"""Lists that would make more numbers than these are left out of a reply."""

ELEMENT = re.compile(r"(.+)\[(\d+)\]", re.DOTALL)
"""The name of a list's element: `confusion[0]` is the first one of `confusion`."""


def expand_lists(metrics: Mapping[str, Any], most: float = MAX_ELEMENTS) -> tuple[dict[str, Any], list[str]]:
    """Return metrics with a list's elements as numbers, `confusion[0]`, `confusion[1]`, …, and the lists left out."""
    numbers: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in metrics.items():
        if not isinstance(value, list):
            numbers[name] = value
        elif len(value) > most:
            left_out.append(name)
        else:
            most -= len(value)
            numbers |= {f"{name}[{place}]": each for place, each in enumerate(value)}
    return numbers, left_out


def join_lists(means: Mapping[str, Any], reports: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Return means over clients in which the elements of a list are that list again.

    A list that is not of one length, and finite, in all `reports` is left out, as a number is that some clients lack.
    """
    joined: dict[str, Any] = {}
    lists: dict[str, dict[int, float]] = {}
    for name, value in means.items():
        if (element := ELEMENT.fullmatch(name)) is None:
            joined[name] = value
        else:
            lists.setdefault(element[1], {})[int(element[2])] = value
    reported = {name for report in reports for name in report} if lists else set[str]()
    for name, elements in lists.items():
        longest = sum(f"{name}[{place}]" in reported for place in range(MAX_ELEMENTS))
        if list(elements) == list(range(longest)):
            joined[name] = list(elements.values())
    return joined
