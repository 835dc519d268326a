"""What clients with tables of their own agree on: columns, categories and the target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairbloom.errors import FairbloomError, did_you_mean

from ..groups import MAX_GROUPINGS, MAX_GROUPS, OTHER, GroupBy
from ..preprocessing import CATEGORY, NUMBER, TABLE, InputColumn, Preprocessing
from .agreement import (
    ALIKE,
    MAX_CATEGORIES,
    MAX_COLUMNS,
    MAX_INPUTS,
    Moments,
    TargetSummary,
    agree_on_target,
    check_count,
    check_moments,
    check_object,
    check_texts,
    combine_moments,
    majority,
    read_agreement,
    read_summaries,
    shorten,
    write_agreement,
)
from .reading.table import CATEGORIES, EMPTY, KINDS, NUMBERS
from .targets import MAX_COLUMNS_NAMED, Target, join_names, sort_classes

REMEDIES = {
    "kind": "correct it, name the right column by csv.target, or say csv.kind=classification or csv.kind=regression",
    "classes": "say csv.kind=regression if it is a quantity, or state all classes by csv.classes={}, so that a client "
    "may lack some",
}


def agree(sent: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the columns, categories and classes that clients agree on, and why some cannot take part."""
    reasons: dict[str, str] = {}
    fit = read_summaries(sent, ClientSummary.from_json, reasons)

    def keep() -> None:
        for name in reasons:
            fit.pop(name, None)

    if fit:
        check_ignored(fit)
        names = majority({name: summary.names for name, summary in fit.items()})
        for name, summary in fit.items():
            if summary.names != names:
                reasons[name] = describe_difference(summary.names, names)
        keep()
        order = next(iter(fit.values())).columns
        kinds = {column: _kind([summary.columns[column] for summary in fit.values()]) for column in order}
        for name, summary in fit.items():
            if wrong := [each for each in order if summary.columns[each] not in (EMPTY, kinds[each])]:
                reasons[name] = (
                    f"column {wrong[0]!r} holds {summary.columns[wrong[0]]}, and {kinds[wrong[0]]} with most others: "
                    f"correct it, or take it as categories everywhere by csv.categories={wrong[0]}"
                )
        keep()
        target = agree_on_target({name: summary.target for name, summary in fit.items()}, reasons, REMEDIES)
        keep()
        reasons |= _find_respelled(fit)
        keep()
        unions = _unions(fit, reasons)
        keep()
        groups = _groups(fit, reasons)
        keep()
        inputs = tuple(_input(column, kinds[column], list(fit.values()), unions) for column in order)
        return write_agreement(AgreedColumns(inputs, target, groups).to_json(), sent, reasons)
    return write_agreement({}, sent, reasons)


def check_ignored(fit: "Mapping[str, ClientSummary]") -> None:
    """Raise FairbloomError where csv.ignore names a column that no client has; it is fine where only some have it."""
    nowhere = frozenset.intersection(*(summary.lacking for summary in fit.values()))
    if nowhere:
        name = min(nowhere)
        columns = list(dict.fromkeys(column for summary in fit.values() for column in summary.columns))
        raise FairbloomError(
            f"csv.ignore names {shorten(name)}, and no client's file has such a column: {did_you_mean(name, columns)}"
            f"the columns are {join_names(columns, MAX_COLUMNS_NAMED)}"
        )


def _kind(kinds: list[str]) -> str:
    numbers, categories = kinds.count(NUMBERS), kinds.count(CATEGORIES)
    return CATEGORIES if categories > numbers else NUMBERS


def _find_respelled(fit: "Mapping[str, ClientSummary]") -> dict[str, str]:
    """Return why clients cannot take part that spell a category in another upper and lower case than most others."""
    spelled: dict[tuple[str, str], dict[str, str]] = {}
    for name, summary in sorted(fit.items()):
        for column, texts in summary.categories.items():
            for text in () if column in summary.as_they_are else texts:
                if not (column in summary.others and text == OTHER):
                    spelled.setdefault((column, text.casefold()), {})[name] = text
    reasons: dict[str, str] = {}
    for (column, _), by_client in spelled.items():
        most = majority(by_client)
        for name, text in by_client.items():
            if text != most:
                reasons.setdefault(
                    name,
                    f"column {column!r} holds {text!r}, and that of most others {most!r}: {ALIKE}, or take both as "
                    f"they are by csv.categories={column}",
                )
    return reasons


def _unions(fit: "Mapping[str, ClientSummary]", reasons: dict[str, str]) -> dict[str, list[str]]:
    """Return all categories of each column, and note who would make them too many; those with few come first."""
    unions: dict[str, set[str]] = {}
    total = 0
    for name, summary in sorted(fit.items(), key=lambda each: (each[1].number_of_categories, each[0])):
        more = {column: unions.get(column, set()) | set(texts) for column, texts in summary.categories.items()}
        column = max(more, key=lambda each: len(more[each]), default="")
        after = total + sum(len(more[each]) - len(unions.get(each, ())) for each in more)
        if more and (len(more[column]) > MAX_CATEGORIES or after > MAX_INPUTS):
            reasons[name] = (
                f"with its {summary.number_of_categories:,} categories there would be {len(more[column]):,} in column "
                f"{column!r} and {after:,} in all; {MAX_CATEGORIES:,} in a column and {MAX_INPUTS:,} in all are the "
                f"most: leave the column out by csv.ignore={column}"
            )
        else:
            unions |= more
            total = after
    return {column: sort_classes(union) for column, union in unions.items()}


def _groups(fit: "Mapping[str, ClientSummary]", reasons: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return all groups of each grouping by values, and note who would make them too many; who has few comes first."""
    unions: dict[str, set[str]] = {}
    for name, summary in sorted(fit.items(), key=lambda each: (sum(map(len, each[1].groups.values())), each[0])):
        more = {grouping: unions.get(grouping, set()) | set(groups) for grouping, groups in summary.groups.items()}
        most = max(more, key=lambda each: len(more[each]), default="")
        if more and (len(more[most]) > MAX_GROUPS or len(unions.keys() | more.keys()) > MAX_GROUPINGS):
            reasons[name] = (
                f"with its groups there would be {len(more[most])} of {most!r}, and {MAX_GROUPS} are the most: leave "
                "the column out of csv.group, or divide its numbers, as in age>=60"
            )
        else:
            unions |= more
    return {grouping: tuple(sort_classes(union)) for grouping, union in unions.items()}


def _input(column: str, kind: str, summaries: "list[ClientSummary]", unions: Mapping[str, list[str]]) -> "Input":
    if kind == CATEGORIES:
        return Input(column, tuple(unions.get(column, ())), other=any(column in each.others for each in summaries))
    moments = [each.moments.get(column) for each in summaries]
    if 2 * sum(each.together for each in summaries) > len(summaries):
        return Input(column, moments=combine_moments(moments))
    return Input(column)


# What the clients have agreed on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A column that is an input of the model.

    `categories` have an input each, None for numbers; `moments` None means that each client standardises by its own
    rows; `other` says whether unknown categories count as "other", which is then a category.
    """

    name: str
    categories: tuple[str, ...] | None = None
    moments: Moments | None = None
    other: bool = False

    def input_column(self, moments: Moments | None, *, fill: bool) -> InputColumn:
        """Return how it becomes inputs, with these moments where there are no common ones."""
        if self.categories is not None:
            return InputColumn(self.name, CATEGORY, self.categories, self.other, fill=fill)
        center, scale = self.moments or moments or (0.0, 0.0)
        return InputColumn(self.name, NUMBER, center=center, scale=scale, fill=fill)


@dataclass(frozen=True)
class AgreedColumns:
    """The inputs in their order, the target, and the groups of each grouping by values."""

    inputs: tuple[Input, ...]
    target: Target
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def preprocessing(
        self,
        target: str,
        ignored: Sequence[str],
        *,
        fill: bool,
        client: str = "",
        measure: Callable[[str], Moments | None] | None = None,
    ) -> Preprocessing:
        """Return how tables become inputs; `target` and `ignored` are the columns that are no inputs.

        `measure` returns mean and deviation of a column in the `client`'s rows; without it, columns without common
        moments are not standardised yet.
        """
        apart = any(each.categories is None and each.moments is None for each in self.inputs)
        return Preprocessing(
            form=TABLE,
            columns=tuple(
                each.input_column(measure(each.name) if measure and each.moments is None else None, fill=fill)
                for each in self.inputs
            ),
            ignored=tuple(ignored),
            target=target,
            classes=self.target.classes,
            target_center=self.target.center,
            target_scale=self.target.scale,
            client=client,
            per_client=apart and measure is None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can carry it; `from_json` reads it."""
        inputs = [
            {"name": each.name, "categories": each.categories, "moments": each.moments}
            | ({"other": True} if each.other else {})
            for each in self.inputs
        ]
        agreed = {"inputs": inputs, "target": self.target.to_json()}
        return agreed | (
            {"groups": {name: list(groups) for name, groups in self.groups.items()}} if self.groups else {}
        )

    def group_names(self, groupings: Sequence[GroupBy]) -> dict[str, tuple[str, ...]]:
        """Return the groups of each grouping, by its name; the last one has the rows that belong to no other."""
        found = {by.name: by.halves or self.groups.get(by.name, ()) for by in groupings}
        return {name: (*(group for group in groups if group != OTHER), OTHER) for name, groups in found.items()}

    @classmethod
    def from_json(cls, text: str) -> "AgreedColumns":
        """Return what the clients of a run have agreed on."""
        found = read_agreement(text)
        inputs = tuple(
            Input(
                each["name"],
                None if each["categories"] is None else tuple(each["categories"]),
                None if each["moments"] is None else (each["moments"][0], each["moments"][1]),
                each.get("other", False),
            )
            for each in found["inputs"]
        )
        groups = {name: tuple(each) for name, each in found.get("groups", {}).items()}
        return cls(inputs, Target.from_json(found["target"]), groups)


@dataclass(frozen=True)
class ClientSummary:
    """What a client sends about its data, by column: kinds, categories and moments of training rows, and groups.

    Some categories of the columns `others` are not sent; "other" stands for them. `lacking` are names in csv.ignore
    without a column; `as_they_are` are the columns in csv.categories.
    """

    columns: Mapping[str, str]
    categories: Mapping[str, tuple[str, ...]]
    moments: Mapping[str, Moments]
    target: TargetSummary
    together: bool
    others: frozenset[str] = frozenset()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    as_they_are: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns."""
        return frozenset(self.columns)

    @property
    def number_of_categories(self) -> int:
        """How many categories its columns have, together."""
        return sum(map(len, self.categories.values()))

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> "ClientSummary":
        """Return the summary that a client has sent; raise ValueError where it makes no sense, or is too long."""
        check_count(sent.get("examples"))
        names = check_texts("columns", sent.get("columns"), MAX_COLUMNS)
        kinds = sent.get("kinds")
        if not isinstance(kinds, list) or len(kinds) != len(names) or not all(kind in KINDS for kind in kinds):
            raise ValueError("it does not say of each column whether it holds numbers or categories")
        columns = dict(zip(names, kinds, strict=True))
        categories = {
            name: tuple(check_texts(f"column {name!r}", each, MAX_CATEGORIES))
            for name, each in check_object("categories", sent.get("categories")).items()
            if columns.get(name) == CATEGORIES
        }
        moments = {
            name: check_moments(f"column {name!r}", each)
            for name, each in check_object("moments", sent.get("moments")).items()
            if columns.get(name) == NUMBERS
        }
        others = frozenset(check_texts("others", sent.get("others", []), MAX_COLUMNS))
        if lacking := [name for name in sorted(others) if OTHER not in categories.get(name, ())]:
            raise ValueError(f"it keeps categories of column {shorten(lacking[0])} back, and does not send {OTHER!r}")
        groups = check_object("groups", sent.get("groups", {}))
        check_texts("groups", list(groups), MAX_GROUPINGS)
        return cls(
            columns,
            categories,
            moments,
            TargetSummary.from_json(sent.get("target")),
            sent.get("together") is True,
            others,
            {name: tuple(check_texts(f"grouping {name!r}", each, MAX_GROUPS)) for name, each in groups.items()},
            frozenset(check_texts("lacks", sent.get("lacks", []), MAX_COLUMNS)),
            frozenset(check_texts("as-they-are", sent.get("as-they-are", []), MAX_COLUMNS)),
        )


def describe_difference(here: frozenset[str], others: frozenset[str]) -> str:
    """Return how a file's columns differ from those that most other clients have; `Age` is not `age`."""
    lacking, added = sorted(others - here), sorted(here - others)
    parts = [f"it lacks the columns {join_names(lacking, MAX_COLUMNS_NAMED)}"] * bool(lacking) + [
        f"it has the columns {join_names(added, MAX_COLUMNS_NAMED)}, which most others lack"
    ] * bool(added)
    by_case = {name.casefold(): name for name in lacking}
    pairs = [f"{name} and {by_case[name.casefold()]}" for name in added if name.casefold() in by_case]
    remedies = [f"{join_names(pairs)} differ in upper and lower case alone: rename them"] * bool(pairs)
    if len(pairs) < max(len(lacking), len(added)):
        remedies += ["all clients need the same columns, in any order (csv.ignore leaves columns out)"]
    return f"{' and '.join(parts)}: {'; '.join(remedies)}"
