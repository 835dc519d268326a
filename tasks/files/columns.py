"""What clients with tables of their own agree on: columns, categories and the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .agreement import (
    MOST_CATEGORIES,
    MOST_COLUMNS,
    MOST_INPUTS,
    Aim,
    Moments,
    agree_on_target,
    agreement_of,
    count_of,
    majority,
    mapping,
    moments_of,
    short,
    text_of,
    texts,
    together,
    understood,
)
from .targets import Target, in_order, named

KINDS = NUMBERS, CATEGORIES, EMPTY = "numbers", "categories", "empty"
"""The kinds of columns; an empty one has no value in any row."""

OTHER = "other"
"""The category that stands for those which clients keep to themselves."""

REMEDIES = {
    "kind": "mend it, name the right column by csv.target, or say csv.kind=classification or csv.kind=regression",
    "classes": "say csv.kind=regression if it is a quantity, or state all classes by csv.classes={}, so that a client "
    "may lack some",
}


def agree(told: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the columns, categories and classes that clients agree on, and why some cannot take part."""
    reasons: dict[str, str] = {}
    abouts = understood(told, About.of, reasons)
    fit = dict(abouts)

    def keep() -> None:
        for name in reasons:
            fit.pop(name, None)

    if fit:
        names = majority({name: about.names for name, about in fit.items()})
        for name, about in fit.items():
            if about.names != names:
                reasons[name] = about.differs(names)
        keep()
        order = next(iter(fit.values())).columns
        kinds = {column: _kind([about.columns[column] for about in fit.values()]) for column in order}
        for name, about in fit.items():
            if wrong := [each for each in order if about.columns[each] not in (EMPTY, kinds[each])]:
                reasons[name] = (
                    f"column {wrong[0]!r} holds {about.columns[wrong[0]]}, and {kinds[wrong[0]]} with most others: "
                    f"mend it, or take it as categories everywhere by csv.categories={wrong[0]}"
                )
        keep()
        target = agree_on_target({name: about.aim for name, about in fit.items()}, reasons, REMEDIES)
        keep()
        unions = _unions(fit, reasons)
        keep()
        inputs = tuple(_input(column, kinds[column], list(fit.values()), unions) for column in order)
        return text_of(Agreed(inputs, target).told(), told, reasons)
    return text_of({}, told, reasons)


def _kind(kinds: list[str]) -> str:
    numbers, categories = kinds.count(NUMBERS), kinds.count(CATEGORIES)
    return CATEGORIES if categories > numbers else NUMBERS


def _unions(fit: "Mapping[str, About]", reasons: dict[str, str]) -> dict[str, list[str]]:
    """Return all categories of each column, and note who would make them too many; those with few come first."""
    unions: dict[str, set[str]] = {}
    total = 0
    for name, about in sorted(fit.items(), key=lambda each: (each[1].number_of_categories, each[0])):
        more = {column: unions.get(column, set()) | set(own) for column, own in about.categories.items()}
        column = max(more, key=lambda each: len(more[each]), default="")
        after = total + sum(len(more[each]) - len(unions.get(each, ())) for each in more)
        if more and (len(more[column]) > MOST_CATEGORIES or after > MOST_INPUTS):
            reasons[name] = (
                f"with its {about.number_of_categories:,} categories there would be {len(more[column]):,} in column "
                f"{column!r} and {after:,} in all; {MOST_CATEGORIES:,} in a column and {MOST_INPUTS:,} in all are the "
                f"most: leave the column out by csv.ignore={column}"
            )
        else:
            unions |= more
            total = after
    return {column: in_order(union) for column, union in unions.items()}


def _input(column: str, kind: str, abouts: "list[About]", unions: Mapping[str, list[str]]) -> "Input":
    if kind == CATEGORIES:
        return Input(column, tuple(unions.get(column, ())), other=any(column in about.others for about in abouts))
    moments = [about.moments.get(column) for about in abouts]
    if 2 * sum(about.together for about in abouts) > len(abouts):
        return Input(column, moments=together(moments))
    return Input(column)


# What the clients have agreed on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A column that a model is told.

    Attributes
    ----------
    name
        Of the column.
    categories
        One number of each; None: it is one of numbers.
    moments
        The common center and scale of numbers; None: each client standardises by its own.
    other
        Whether any category that is not among them counts as "other", which then is one of them.
    """

    name: str
    categories: tuple[str, ...] | None = None
    moments: Moments | None = None
    other: bool = False

    @property
    def width(self) -> int:
        """How many numbers it becomes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Agreed:
    """The inputs in their order, and the target."""

    inputs: tuple[Input, ...]
    target: Target

    @property
    def width(self) -> int:
        """How many numbers a model is told of a row."""
        return sum(each.width for each in self.inputs)

    def told(self) -> dict[str, Any]:
        """Return it as JSON knows it; `of` reads it."""
        inputs = [
            {"name": each.name, "categories": each.categories, "moments": each.moments}
            | ({"other": True} if each.other else {})
            for each in self.inputs
        ]
        return {"inputs": inputs, "target": self.target.agreed()}

    @classmethod
    def of(cls, text: str) -> "Agreed":
        """Return what the clients of a run have agreed on."""
        found = agreement_of(text)
        inputs = tuple(
            Input(
                each["name"],
                None if each["categories"] is None else tuple(each["categories"]),
                None if each["moments"] is None else (each["moments"][0], each["moments"][1]),
                each.get("other", False),
            )
            for each in found["inputs"]
        )
        return cls(inputs, Target.of(found["target"]))


@dataclass(frozen=True)
class About:
    """What a client tells of its data.

    Attributes
    ----------
    columns
        The kind of each, in the order of its file.
    categories
        Of each column of categories, those in training rows.
    moments
        Mean and deviation of columns of numbers in training rows, where these are standardised together.
    aim
        What it tells of the target.
    together
        Whether columns are standardised together.
    others
        The columns of which some categories are not told, and "other" stands for them.
    """

    columns: Mapping[str, str]
    categories: Mapping[str, tuple[str, ...]]
    moments: Mapping[str, Moments]
    aim: Aim
    together: bool
    others: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns."""
        return frozenset(self.columns)

    @property
    def number_of_categories(self) -> int:
        """How many categories its columns have, together."""
        return sum(map(len, self.categories.values()))

    def differs(self, names: frozenset[str]) -> str:
        """Return in words how its columns differ from those that most others have."""
        return differs(self.names, names)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "About":
        """Return what a client has told; raise ValueError where it is nonsense, or too much."""
        count_of(told.get("examples"))
        names = texts("columns", told.get("columns"), MOST_COLUMNS)
        kinds = told.get("kinds")
        if not isinstance(kinds, list) or len(kinds) != len(names) or not all(kind in KINDS for kind in kinds):
            raise ValueError("it does not tell of each column whether it holds numbers or categories")
        columns = dict(zip(names, kinds, strict=True))
        categories = {
            name: tuple(texts(f"column {name!r}", each, MOST_CATEGORIES))
            for name, each in mapping("categories", told.get("categories")).items()
            if columns.get(name) == CATEGORIES
        }
        moments = {
            name: moments_of(f"column {name!r}", each)
            for name, each in mapping("moments", told.get("moments")).items()
            if columns.get(name) == NUMBERS
        }
        others = frozenset(texts("others", told.get("others", []), MOST_COLUMNS))
        if lacking := [name for name in sorted(others) if OTHER not in categories.get(name, ())]:
            raise ValueError(f"it keeps categories of column {short(lacking[0])} back, and does not tell {OTHER!r}")
        return cls(columns, categories, moments, Aim.of(told.get("target")), told.get("together") is True, others)


def differs(own: frozenset[str], others: frozenset[str]) -> str:
    """Return in words how a file's columns differ from those that most other clients have."""
    lacking, added = sorted(others - own), sorted(own - others)
    parts = [f"it lacks the columns {named(lacking)}"] * bool(lacking) + [
        f"it has the columns {named(added)}, which most others lack"
    ] * bool(added)
    return f"{' and '.join(parts)}: all clients need the same columns, in any order (csv.ignore leaves columns out)"
