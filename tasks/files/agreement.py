"""What clients agree on about data of their own, from the summary that each sends: by majority, ties by name.

A summary may be wrong, or meant to harm: everything in it is checked and bounded before it is used.
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fairbloom.errors import FairbloomError, ReportableError

from .reading.build import MAX_TEXT
from .reading.cells import MAX_NUMBER
from .targets import Target, join_names, sort_classes

MAX_COLUMNS, MAX_CATEGORIES, MAX_INPUTS, MAX_CLASSES = 10_000, 1_000, 20_000, 1_000
"""Bounds of columns, of a column's categories, of a model's inputs, and of classes."""

MAX_NUMBERED_CLASSES = 100
"""A target of more different whole numbers is a quantity, unless csv.kind says otherwise."""

SMALLEST_SQUARED = 1e-150
"""Squares of smaller numbers lose digits, and are 0 from 1e-162 on."""

ALIKE = "write them as the others do, in the same upper and lower case"
"""What to do where clients spell the same classes in different ways; to state all spellings would make each a class."""

T = TypeVar("T", bound=Hashable)
Moments = tuple[float, float]
"""Mean and standard deviation."""


# A client's summary of its target ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetSummary:
    """What a client sends about its target.

    `kind` is "classes", "quantity", or "either" where few whole numbers may be both; `classes` are those of its rows,
    or stated; `moments` are a quantity's in training rows.
    """

    kind: str
    classes: tuple[str, ...] = ()
    moments: Moments | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can carry it; `from_json` reads it."""
        return {"kind": self.kind, "classes": self.classes, "moments": self.moments}

    @classmethod
    def from_json(cls, sent: Any) -> "TargetSummary":
        """Return the summary that a client has sent; raise ValueError where it is none."""
        summary = check_object("target", sent)
        kind, classes = summary.get("kind"), tuple(check_texts("classes", summary.get("classes", ()), MAX_CLASSES))
        if kind not in ("classes", "quantity", "either"):
            raise ValueError(f"its kind of target is {shorten(kind)}")
        if kind != "quantity" and not classes:
            raise ValueError("it names no classes")
        moments = None if summary.get("moments") is None else check_moments("target", summary["moments"])
        return cls(kind, classes, moments)


def agree_on_target(
    summaries: Mapping[str, TargetSummary], reasons: dict[str, str], remedies: Mapping[str, str]
) -> Target:
    """Return what is learned, and add to `reasons` why some clients cannot take part.

    `remedies` says under "kind" and "classes" what to do where these differ.
    """
    quantity = 2 * sum(each.kind == "quantity" for each in summaries.values()) >= len(summaries)
    wrong = {"classes" if quantity else "quantity"}
    here, others = ("classes", "numbers") if quantity else ("numbers that are no classes", "classes")
    for client, summary in summaries.items():
        if summary.kind in wrong:
            reasons[client] = f"its target holds {here}, and that of most others {others}: {remedies['kind']}"
    left = {client: each for client, each in summaries.items() if client not in reasons}
    if not left:
        return Target(("",))
    if quantity:
        center, scale = combine_moments([each.moments for each in left.values()])
        return Target(center=center, scale=scale or 1.0)
    classes = majority({client: each.classes for client, each in left.items()})
    every = sort_classes({name for each in left.values() for name in each.classes})
    if len(every) > 20 and any(  # more numbers look like a quantity, and nobody states them one by one
        each.kind == "either" for each in left.values()
    ):
        every = [*every[:3], "…"]
    for client, summary in left.items():
        if summary.classes != classes:
            stated = remedies["classes"].format(",".join(every[:MAX_NUMBERED_CLASSES]))
            remedy = ALIKE if _alike(summary.classes, classes) else f"correct it, or {stated}"
            reasons[client] = (
                f"its target has the classes {join_names(summary.classes)}, and that of most others "
                f"{join_names(classes)}: {remedy}"
            )
    return Target(classes)


def _alike(classes: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether classes are others in another spelling: stated together, each would be a class of its own."""
    spelled = {name.casefold() for name in others}
    return any(name not in others and name.casefold() in spelled for name in classes)


# How it is found out --------------------------------------------------------------------------------------------------


def majority(values: Mapping[str, T]) -> T:
    """Return what most clients have; of several that equally many have, the one of the first client by name."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(value for _, value in sorted(values.items()) if counts[value] == most)


def combine_moments(moments: Iterable[Moments | None]) -> Moments:
    """Return a common center and scale of numbers, from each client's mean and deviation; the scale of constants is 0.

    They are medians over clients, of the means and of the squared distances from their median: less than half of the
    clients cannot move them beyond the others' values.
    """
    known = np.array([each for each in moments if each is not None], np.float64).reshape(-1, 2)
    if not len(known):
        return 0.0, 0.0
    center = np.median(known[:, 0])
    apart = np.abs(np.stack([known[:, 1], known[:, 0] - center]))
    unit = unit_of(apart.max())
    return float(center), float(unit * np.sqrt(np.median(((apart / unit) ** 2).sum(axis=0))))


def unit_of(largest: float) -> float:
    """Return what numbers are divided by before they are squared: 1, or the largest where the squares would be 0."""
    return float(largest) if 0.0 < largest < SMALLEST_SQUARED else 1.0


def read_summaries(
    sent: Mapping[str, Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T], reasons: dict[str, str]
) -> dict[str, T]:
    """Return each client's summary, in the order of names; note why some cannot be used."""
    found = {}
    for client, summary in sorted(sent.items()):
        try:
            found[client] = read(summary)
        except ValueError as error:
            reasons[client] = f"its summary of its data cannot be used: {error}"
    return found


def write_agreement(
    agreed: Mapping[str, Any], clients: Iterable[str], reasons: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return an agreement as text, and the reasons of those of the clients who cannot take part."""
    safe = {client: make_printable(reason) for client, reason in reasons.items()}
    if not set(clients) - set(safe):
        why = "; ".join(f"{client}: {reason}" for client, reason in sorted(safe.items()))
        raise FairbloomError(f"the clients' data cannot be used: {why}")
    return json.dumps(agreed, allow_nan=False), safe


def read_agreement(agreed: str) -> dict[str, Any]:
    """Return what the clients have agreed on; raise FairbloomError where they have not."""
    if not agreed:
        raise ReportableError("the clients have not agreed on their data yet, which a run does before its first round")
    found: dict[str, Any] = json.loads(agreed)
    return found


# Checks of a summary -----------------------------------------------------------------------------------------------


def check_object(what: str, sent: Any) -> Mapping[str, Any]:
    """Return a JSON object; raise ValueError where it is none."""
    if not isinstance(sent, Mapping):
        raise ValueError(f"{what} must be an object, got {shorten(sent)}")
    return sent


def check_texts(what: str, sent: Any, most: int) -> list[str]:
    """Return a list of different short texts; raise ValueError where it is none."""
    if not isinstance(sent, Sequence) or isinstance(sent, str):
        raise ValueError(f"{what} must be a list, got {shorten(sent)}")
    if len(sent) > most:
        raise ValueError(f"{what} has {len(sent):,} entries, and {most:,} are the most")
    for each in sent:
        if not isinstance(each, str) or len(each) > MAX_TEXT:
            raise ValueError(f"{what} must hold texts of at most {MAX_TEXT} characters, got {shorten(each)}")
        each.encode()  # half of a surrogate pair could not be written
    if len(set(sent)) < len(sent):
        raise ValueError(f"{what} has an entry twice")
    return list(sent)


def check_moments(what: str, sent: Any) -> Moments:
    """Return mean and deviation; raise ValueError where they are no finite numbers, or beyond reason."""
    if not isinstance(sent, Sequence) or isinstance(sent, str) or len(sent) != 2:
        raise ValueError(f"mean and deviation of {what} must be two numbers, got {shorten(sent)}")
    for each in sent:
        if type(each) not in (int, float) or not abs(each) <= MAX_NUMBER:
            raise ValueError(
                f"mean or deviation of {what} must be a number of at most {MAX_NUMBER:g}, got {shorten(each)}"
            )
    mean, deviation = float(sent[0]), float(sent[1])
    if deviation < 0:
        raise ValueError(f"the deviation of {what} is {deviation:g}, below 0")
    return mean, deviation


def check_count(sent: Any) -> int:
    """Return a number of examples; raise ValueError where it is none."""
    if type(sent) is not int or not 1 <= sent <= 2**53:
        raise ValueError(f"its number of examples is {shorten(sent)}")
    return sent


def make_printable(text: str) -> str:
    """Return a text, of which a client has written a part, without what could not be seen in a log."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def shorten(value: object) -> str:
    """Return how a value is written, cut off where it is long."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"
