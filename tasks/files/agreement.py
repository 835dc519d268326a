"""What clients agree on about data of their own, from what each tells: by majority, ties by name.

What a client tells may be wrong, or meant to harm: everything is checked and bounded before it is used.
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fairbloom.errors import FairbloomError, ReportableError

from .reading import LARGEST, LONGEST
from .targets import Target, in_order, named

MOST_COLUMNS, MOST_CATEGORIES, MOST_INPUTS, MOST_CLASSES = 10_000, 1_000, 20_000, 1_000
"""Bounds of columns, of a column's categories, of a model's inputs, and of classes."""

MOST_NUMBERED_CLASSES = 100
"""A target of more different whole numbers is a quantity, unless csv.kind says otherwise."""

FEW_NUMBERED_CLASSES = 20
"""More whole numbers look like a quantity, and nobody states them one by one."""

ALIKE = "write them as the others do, in the same upper and lower case"
"""What to do where clients spell the same classes in different ways; to state all spellings would make each a class."""

T = TypeVar("T", bound=Hashable)
Moments = tuple[float, float]
"""Mean and standard deviation."""


# What a client tells of its target ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """What a client tells of what is to be learned.

    Attributes
    ----------
    kind
        "classes", "quantity", or "either" where its few whole numbers may be both.
    classes
        Those that its rows have, or that are stated; () for a quantity.
    moments
        Of a quantity, over training rows.
    """

    kind: str
    classes: tuple[str, ...] = ()
    moments: Moments | None = None

    def told(self) -> dict[str, Any]:
        """Return it as JSON knows it; `of` reads it."""
        return {"kind": self.kind, "classes": self.classes, "moments": self.moments}

    @classmethod
    def of(cls, told: Any) -> "Aim":
        """Return what a client has told; raise ValueError where it is none."""
        told = mapping("target", told)
        kind, classes = told.get("kind"), tuple(texts("classes", told.get("classes", ()), MOST_CLASSES))
        if kind not in ("classes", "quantity", "either"):
            raise ValueError(f"its kind of target is {short(kind)}")
        if kind != "quantity" and not classes:
            raise ValueError("it names no classes")
        moments = None if told.get("moments") is None else moments_of("target", told["moments"])
        return cls(kind, classes, moments)


def agree_on_target(aims: Mapping[str, Aim], reasons: dict[str, str], remedies: Mapping[str, str]) -> Target:
    """Return what is learned, and note the reasons of those who have something else.

    Parameters
    ----------
    aims
        By client.
    reasons
        Of those who cannot take part; added to.
    remedies
        "kind" and "classes": what to do where kinds, or classes, differ.
    """
    quantity = 2 * sum(aim.kind == "quantity" for aim in aims.values()) >= len(aims)
    wrong = {"classes" if quantity else "quantity"}
    words = ("classes", "numbers") if quantity else ("numbers that are no classes", "classes")
    for client, aim in aims.items():
        if aim.kind in wrong:
            reasons[client] = f"its target holds {words[0]}, and that of most others {words[1]}: {remedies['kind']}"
    left = {client: aim for client, aim in aims.items() if client not in reasons}
    if not left:
        return Target(("",))
    if quantity:
        center, scale = together([aim.moments for aim in left.values()])
        return Target(center=center, scale=scale or 1.0)
    classes = majority({client: aim.classes for client, aim in left.items()})
    every = in_order({each for aim in left.values() for each in aim.classes})
    if len(every) > FEW_NUMBERED_CLASSES and any(aim.kind == "either" for aim in left.values()):
        every = [*every[:3], "…"]
    for client, aim in left.items():
        if aim.classes != classes:
            stated = remedies["classes"].format(",".join(every[:MOST_NUMBERED_CLASSES]))
            remedy = ALIKE if _alike(aim.classes, classes) else f"mend it, or {stated}"
            reasons[client] = (
                f"its target has the classes {named(aim.classes)}, and that of most others {named(classes)}: {remedy}"
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


def together(moments: Iterable[Moments | None]) -> Moments:
    """Return a common center and scale of numbers of which each client tells mean and deviation.

    They are medians over clients, of the means and of the squared distances from their median, so that less than half
    of the clients cannot move them beyond what the others have. The scale is 0 where all is constant.
    """
    told = np.array([each for each in moments if each is not None], np.float64).reshape(-1, 2)
    if not len(told):
        return 0.0, 0.0
    center = np.median(told[:, 0])
    return float(center), float(np.sqrt(np.median(told[:, 1] ** 2 + (told[:, 0] - center) ** 2)))


def understood(
    told: Mapping[str, Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T], reasons: dict[str, str]
) -> dict[str, T]:
    """Return what each client tells, in the order of names; note the reasons of those who tell nonsense."""
    found = {}
    for client, about in sorted(told.items()):
        try:
            found[client] = read(about)
        except ValueError as error:
            reasons[client] = f"what it tells of its data cannot be used: {error}"
    return found


def text_of(agreed: Mapping[str, Any], told: Iterable[str], reasons: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return an agreement as text, and the reasons of those who cannot take part.

    Raises
    ------
    FairbloomError
        When nobody can.
    """
    safe = {client: printable(reason) for client, reason in reasons.items()}
    if not set(told) - set(safe):
        words = "; ".join(f"{client}: {reason}" for client, reason in sorted(safe.items()))
        raise FairbloomError(f"the clients' data cannot be used: {words}")
    return json.dumps(agreed, allow_nan=False), safe


def agreement_of(agreed: str) -> dict[str, Any]:
    """Return what the clients have agreed on; raise FairbloomError where they have not."""
    if not agreed:
        raise ReportableError(
            "the clients have not agreed on their data yet, which a run does before its first round: a server of "
            "another version may have left it out"
        )
    found: dict[str, Any] = json.loads(agreed)
    return found


# Checks of what is told -----------------------------------------------------------------------------------------------


def mapping(what: str, told: Any) -> Mapping[str, Any]:
    """Return a JSON object; raise ValueError where it is none."""
    if not isinstance(told, Mapping):
        raise ValueError(f"{what} is {short(told)}, no object")
    return told


def texts(what: str, told: Any, most: int) -> list[str]:
    """Return a list of different short texts; raise ValueError where it is none."""
    if not isinstance(told, Sequence) or isinstance(told, str):
        raise ValueError(f"{what} is {short(told)}, no list")
    if len(told) > most:
        raise ValueError(f"{what} has {len(told):,} entries, and {most:,} are the most")
    for each in told:
        if not isinstance(each, str) or len(each) > LONGEST:
            raise ValueError(f"{what} has the entry {short(each)}, and a text of at most {LONGEST} characters is due")
        each.encode()  # half of a surrogate pair could not be written
    if len(set(told)) < len(told):
        raise ValueError(f"{what} has an entry twice")
    return list(told)


def moments_of(what: str, told: Any) -> Moments:
    """Return mean and deviation; raise ValueError where they are no finite numbers, or beyond reason."""
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) != 2:
        raise ValueError(f"mean and deviation of {what} are {short(told)}")
    for each in told:
        if type(each) not in (int, float) or not abs(each) <= LARGEST:
            raise ValueError(f"mean or deviation of {what} is {short(each)}: numbers of at most {LARGEST:g} are due")
    mean, deviation = float(told[0]), float(told[1])
    if deviation < 0:
        raise ValueError(f"the deviation of {what} is {deviation:g}, below 0")
    return mean, deviation


def count_of(told: Any) -> int:
    """Return a number of examples; raise ValueError where it is none."""
    if type(told) is not int or not 1 <= told <= 2**53:
        raise ValueError(f"its number of examples is {short(told)}")
    return told


def printable(text: str) -> str:
    """Return a text, of which a client has written a part, without what could not be seen in a log."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def short(value: object) -> str:
    """Return how a value is written, cut off where it is long."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"
