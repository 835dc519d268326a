"""A model's scores on groups of examples, within clients and over all, and their gaps."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairbloom.protocol.scores import COUNT, GroupScore
from fairbloom.rounds.screening import LARGEST_COUNT
from fairbloom.server.run_folder.errors import explain_read_errors
from fairbloom.server.run_folder.group_rows import Grouped

from .tables import is_shown

# What stands for a client in counts and scores over all clients, and in tables its words.
ALL = None
ALL_CLIENTS = "all clients"


@dataclass(frozen=True)
class Group:
    """Counts and scores of one group; `client` is ALL for the group over all clients.

    `without` has, for scores over fewer examples than the count, the clients with examples that
    count but without such a score, with the number of these examples.
    """

    client: str | None
    grouping: str
    group: str | None  # None: of examples without a value
    count: int
    overs: Mapping[str, int]  # the number of examples in a score's mean, by score
    values: Mapping[str, float]  # by score
    without: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by score

    @classmethod
    def of_row(cls, row: Mapping[str, Any], scores: Sequence[GroupScore]) -> "Group":
        """Return the group of a row of groups.csv, without scores that cannot be shown.

        Raise ValueError or KeyError if it is malformed.
        """
        count = _count_in(row, COUNT)
        overs = {}
        values = {}
        for score in scores:
            *over, column = score.columns
            if is_shown(row[column]):
                values[score.name] = float(row[column])
                overs[score.name] = _count_in(row, over[0]) if over else count
        return cls(row["client"], row["grouping"], row["group"] or None, count, overs, values)

    @classmethod
    def over(cls, groups: Sequence["Group"]) -> "Group":
        """Return the union of several clients' groups, with scores over all examples."""
        overs = Counter[str]()
        sums: dict[str, float] = {}
        for group in groups:
            for name, value in group.values.items():
                overs[name] += group.overs[name]
                sums[name] = sums.get(name, 0.0) + group.overs[name] * value
        without: dict[str, dict[str, int]] = {}
        for name in overs:
            for group in groups:
                if group.client is not ALL and name not in group.values:
                    without.setdefault(name, {})[group.client] = group.count
        return cls(
            ALL,
            groups[0].grouping,
            groups[0].group,
            sum(group.count for group in groups),
            overs,
            values={name: sums[name] / over for name, over in overs.items()},
            without=without,
        )


def _count_in(row: Mapping[str, Any], column: str) -> int:
    """Return a number of examples of a row; raise ValueError if it cannot be one."""
    if not 1 <= row[column] <= LARGEST_COUNT:
        raise ValueError(f"its {column} is {row[column]!r}")
    return int(row[column])


@dataclass(frozen=True)
class Gap:
    """The difference between groups in a score: the highest minus the lowest, as in fairlearn.

    `without` has the clients that one of the groups' scores leaves out.
    """

    client: str | None  # ALL: over all clients
    grouping: str
    score: GroupScore
    lowest: str | None
    highest: str | None
    low: float
    high: float
    without: tuple[str, ...] = ()

    @property
    def size(self) -> float:
        """The difference."""
        return self.high - self.low


@dataclass(frozen=True)
class GroupReport:
    """The groups that clients report under one model, after one round."""

    grouped: Grouped
    groups: tuple[Group, ...]
    tested: Mapping[str, int]  # test examples by client; empty for validation examples

    @property
    def scores(self) -> tuple[GroupScore, ...]:
        """The scores that are measured."""
        return self.grouped.scores

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that report a group."""
        names = (group.client for group in self.groups if group.client is not ALL)
        return tuple(dict.fromkeys(names))

    def of(self, client: str | None, grouping: str) -> tuple[Group, ...]:
        """Return the groups of a client by a grouping; with ALL, the groups over all clients."""
        chosen = [
            each
            for each in self.groups
            if each.grouping == grouping and client in (ALL, each.client)
        ]
        if client != ALL:
            return tuple(chosen)
        together = [
            [member for member in chosen if member.group == group]
            for group in self.grouped.groupings[grouping]
        ]
        return tuple(Group.over(parts) for parts in together if parts)

    def gap(self, client: str | None, grouping: str, score: GroupScore) -> Gap | None:
        """Return the gap between a client's groups in a score, None if fewer than two have it."""
        groups = self.of(client, grouping)
        values = {
            group.group: group.values[score.name] for group in groups if score.name in group.values
        }
        if len(values) < 2:
            return None
        lowest = min(values, key=lambda each: values[each])
        highest = max(reversed(values), key=lambda each: values[each])
        without = {name for group in groups for name in group.without.get(score.name, ())}
        return Gap(
            client,
            grouping,
            score,
            lowest=lowest,
            highest=highest,
            low=values[lowest],
            high=values[highest],
            without=tuple(sorted(without)),
        )

    def sizes(self, client: str | None = ALL) -> dict[str, float]:
        """Return gaps by score, by default over all clients: of the classes, or first grouping."""
        first = next(iter(self.grouped.groupings))
        return {
            gap.score.name: gap.size
            for gap in self.gaps([client])
            if gap.grouping == (gap.score.by or first)
        }

    def gaps(self, clients: Sequence[str | None] = ()) -> list[Gap]:
        """Return all gaps of clients; by default of ALL, then of each client."""
        names = clients or (ALL, *self.clients)
        asked = itertools.product(self.grouped.groupings, self.scores, names)
        found = [self.gap(name, grouping, score) for grouping, score, name in asked]
        return [gap for gap in found if gap is not None]

    def left_out(self, grouping: str) -> int:
        """Return how many test examples are in groups too small to be reported."""
        return sum(self.tested.values()) - sum(
            group.count
            for group in self.groups
            if group.grouping == grouping and group.client in self.tested
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a group with counts and scores, over all clients and then by client."""
        groups = list[Group]()
        for grouping in self.grouped.groupings:
            for client in (ALL, *self.clients):
                groups += self.of(client, grouping)
        rows = list[dict[str, Any]]()
        for each in groups:
            row: dict[str, Any] = {
                "client": each.client,
                "grouping": each.grouping,
                "group": each.group,
                COUNT: each.count,
            }
            for score in self.scores:
                *over, column = score.columns
                row |= {name: each.overs.get(score.name, "") for name in over}
                row[column] = each.values.get(score.name, "")
                if over:
                    row[f"{column}_without"] = ", ".join(sorted(each.without.get(score.name, ())))
            rows.append(row)
        return rows

    def gap_rows(self) -> list[dict[str, Any]]:
        """Return a row a gap."""
        return [
            {
                "client": gap.client,
                "grouping": gap.grouping,
                "score": gap.score.name,
                "gap": gap.size,
                "lowest": gap.lowest,
                "low": gap.low,
                "highest": gap.highest,
                "high": gap.high,
                "without": ", ".join(gap.without),
            }
            for gap in self.gaps()
        ]


def read_groups(
    grouped: Grouped, rows: Sequence[Mapping[Any, Any]], tested: Mapping[str, int], path: Path
) -> GroupReport:
    """Return the report of rows of groups.csv, all of one round and model.

    Raise RunFolderError if a row is malformed.
    """
    with explain_read_errors(
        path, "Restore it from a copy, or run again with another folder (--out)"
    ):
        return GroupReport(
            grouped, tuple(Group.of_row(row, grouped.scores) for row in rows), tested
        )
