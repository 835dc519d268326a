"""Reports about groups of test and validation examples, checked, as rows of groups.csv."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from fairbloom.logs import log
from fairbloom.protocol import names
from fairbloom.protocol.scores import COUNT, NO_UNIT, GroupScore, name_in_group, words_of_group
from fairbloom.rounds.round import Round
from fairbloom.system.values import decode_as
from fairbloom.text import text_if

from .csv_rows import ENDINGS

if TYPE_CHECKING:
    from fairbloom.tasks.task import Task

# The first columns of groups.csv.
GROUP_KEYS = ("round", "client", "model", "split", "grouping", "group", COUNT)


# A client's report on one group: its count and scores, by their names without the group's.
Cells = Mapping[str, float]


@dataclass(frozen=True)
class Grouped:
    """The groupings of examples, and the scores of each group."""

    groupings: Mapping[str, tuple[str | None, ...]]
    scores: tuple[GroupScore, ...]

    @classmethod
    def of(cls, task: "Task") -> "Grouped | None":
        """Return the groupings and scores of a task, or None if it has no groupings."""
        return (
            cls(dict(task.reported_groupings), tuple(task.group_scores))
            if task.reported_groupings
            else None
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of groups.csv."""
        return (
            *GROUP_KEYS,
            *dict.fromkeys(column for score in self.scores for column in score.columns),
        )

    def encode(self) -> bytes:
        """Return the content of groups.json."""
        return json.dumps(
            {"groupings": self.groupings, "scores": [asdict(score) for score in self.scores]},
            indent=2,
            ensure_ascii=False,
        ).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the groupings that `encode` wrote; raise ValueError for any other content."""
        about = json.loads(content)
        return decode_as(
            cls, {**about, "scores": [{**NO_UNIT, "by": None, **each} for each in about["scores"]]}
        )

    def find_fault(self, by_group: Mapping[str | None, Cells], most: float) -> str:
        """Return why a client's report on one grouping is impossible, "" if it is possible.

        `by_group` has count and scores by group; `most` is the number of examples that the client
        was tested on.
        """
        for place, cells in by_group.items():
            group = words_of_group(place)
            counts = {
                name: cells.get(name)
                for name in (COUNT, *(s.over for s in self.scores if s.over in cells))
            }
            for name, count in counts.items():
                if not isinstance(count, int) or not 1 <= count <= cells[COUNT]:
                    return f"its {name} of {group} is {count!r}"
            for score in self.scores:
                value = cells.get(score.name)
                if value is not None and score.over not in cells:
                    return f"its {score.name} of {group} comes without its {score.over}"
                if value is not None and not score.has(value):
                    return f"its {score.name} of {group} is {value!r}, which is impossible"
        total = sum(cells[COUNT] for cells in by_group.values())
        return text_if(
            total > most,
            f"its groups have {total:g} examples together, and it was tested on {most:g}",
        )

    def format_cells(self, cells: Cells) -> list[Any]:
        """Return count and scores of a group in table units, None for those not reported."""
        shown: dict[str, Any] = {COUNT: cells[COUNT]}
        for score in self.scores:
            *over, column = score.columns
            shown |= dict.fromkeys(over, cells.get(score.over))
            shown[column] = score.shown(cells[score.name]) if score.name in cells else None
        return [shown[column] for column in self.columns[len(GROUP_KEYS) - 1 :]]


def format_groups(finished: Round, grouped: Grouped) -> list[tuple[object, ...]]:
    """Return the cells of `Grouped.columns` for each group that a client reports.

    Impossible reports are logged.
    """
    rows: list[tuple[object, ...]] = []
    wanted = dict.fromkeys(
        [COUNT, *(score.over for score in grouped.scores), *(s.name for s in grouped.scores)]
    )
    for client, report in sorted(finished.evaluations.items()):
        for model, split in product(("global", "personal"), ("test", "validation")):
            # Only the number of test examples is reported.
            most = report.get(names.NUM_EXAMPLES, 0) if split == "test" else math.inf
            for grouping, groups in grouped.groupings.items():
                by_group = dict[str | None, Cells]()
                for group in groups:
                    ending = ENDINGS[split] + ENDINGS[model]
                    keys = {name: name_in_group(name, grouping, group) + ending for name in wanted}
                    if cells := {name: report[key] for name, key in keys.items() if key in report}:
                        by_group[group] = cells
                if fault := grouped.find_fault(by_group, most):
                    log.warning(
                        "round %d: the report of client %s on its groups by %s is left out: %s",
                        finished.number,
                        client,
                        grouping,
                        fault,
                    )
                    continue
                rows += [
                    (
                        finished.number,
                        client,
                        model,
                        split,
                        grouping,
                        group,
                        *grouped.format_cells(cells),
                    )
                    for group, cells in by_group.items()
                ]
    return rows
