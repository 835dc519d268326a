"""What results are about: what is predicted, of whom, how many, when and by what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fairbloom.client.guard.accepted_schemas import SHOWN, digest_of
from fairbloom.errors import MAX_LISTED
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.run_folder.csv_rows import SHARE_OF_LARGER_CLASS
from fairbloom.server.run_folder.files import (
    COUNTS,
    ENVIRONMENT,
    EXAMPLES,
    PREPROCESSING,
    SCHEMA,
)
from fairbloom.tables.schema import Field, Schema, parse_schema
from fairbloom.text import join_first, text_if

from .caveats import join_ends
from .run import Run

# The scores that have a reference, with its heading and its words.
REFERENCES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("larger class, %", "always guessing its larger class"),
    "balanced-accuracy": ("guessing, %", "guessing"),
    "auc": ("guessing", "guessing"),
    **dict.fromkeys(("r2", "mae", "rmse"), ("mean as prediction", "predicting the mean")),
}


@dataclass(frozen=True)
class Subject:
    """What a run is about: its task, and the schema of its tables.

    The schema of other data has only the task as its target. `classes` has the names of the
    classes, () for a quantity or if they are not known. `counts` has each client's numbers of
    examples, see `Splits.count`, {} if only its device knows them.
    """

    run: Run
    schema: Schema
    has_tables: bool
    classes: tuple[str, ...]
    counts: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return what a run is about, from its folder alone."""
        task = str(run.settings.get("task", ""))
        schema = Schema(target=task, fields={task: Field(type="number")})
        text = SCHEMA.read(run.folder)
        has_tables = task == "csv" and bool(text)
        if has_tables:
            schema = parse_schema(text)
        return cls(
            run,
            schema,
            has_tables,
            getattr(PREPROCESSING.read(run.folder), "classes", ()),
            EXAMPLES.read(run.folder).get(COUNTS, {}),
        )

    @property
    def place(self) -> int | None:
        """The index of the positive one of two classes; None if none is stated."""
        return {name: i for i, name in enumerate(self.classes)}.get(self.schema.positive)

    @property
    def folder(self) -> str:
        """The name of the folder or file of the data, "" if they lie on devices."""
        return Path(str(self.run.settings.get("data-dir", ""))).name

    @property
    def title(self) -> str:
        """The end of a title: ": use predicted from the data in wards" or " on digits"."""
        if not self.has_tables:
            return text_if(not self.run.of_app, f" on {self.run.settings.get('task')}")
        source = text_if(self.folder, f" from the data in {self.folder}")
        return f": {self.schema.target} predicted{source}"

    def references(self, score: Score) -> dict[str, float]:
        """Return the score of a model that knows no inputs, by client, in the unit of tables.

        It is that of the larger class, of guessing, or of the mean; see REFERENCES. Clients of
        which it is not known have none, and neither have those with one class among their tests.
        """
        larger = self.run.column(SHARE_OF_LARGER_CLASS)
        if score.name == ACCURACY.name and larger:
            return larger
        tested = self.run.test_examples()
        if score.name == "r2":
            return dict.fromkeys(tested, 0.0)
        if score.name in ("balanced-accuracy", "auc") and self.classes:
            return {
                name: score.shown(1.0 / len(self.classes))
                for name in tested
                if larger.get(name, 0.0) < 100.0
            }
        unit = self.schema.predicted.scale or 1.0
        return {
            name: unit * each[score.name]
            for name, each in self.counts.items()
            if score.name in each
        }

    @property
    def predicted(self) -> str:
        """The target, or the task, with its classes and the positive one."""
        if not self.has_tables:
            return f"{self.schema.target}{text_if(self.classes, f': {len(self.classes)} classes')}"
        unit = self.schema.predicted.unit
        names = text_if(self.classes, f": {join_first(self.classes, MAX_LISTED)}")
        positive = self.schema.positive
        return (
            f"{self.schema.target}{text_if(unit, f', in {unit}')}{names}"
            f"{text_if(positive, f', of which {positive} is positive')}"
        )


def facts_of(subject: Subject, runs: Sequence[Run]) -> dict[str, str]:
    """Return what runs are about, by headings; what is not known is left out."""
    schema = SCHEMA.read(runs[0].folder)
    unit = subject.schema.unit
    tested = runs[0].test_examples()
    counts = subject.counts.values()
    rows = f"{sum(tested.values())} for testing"  # a deployed run knows no others
    if counts:
        all_rows = sum(each["examples"] for each in counts)
        rows = f"{all_rows}, of which for testing: {sum(tested.values())}"
    environments = [ENVIRONMENT.read(run.folder) for run in runs]
    dates = sorted({str(about["date"]) for about in environments if "date" in about})
    facts = {
        "predicted": subject.predicted,
        "data": text_if(subject.has_tables, subject.folder) or getattr(runs[0].task, "summary", ""),
        "clients": f"{len(subject.counts or tested)}",
        "rows": rows,
        "unit": text_if(unit, f"{unit}: all its rows are for training, or all for testing"),
        "date": join_ends(dates),
        "schema": text_if(schema, digest_of(schema)[:SHOWN]),
        "Fairbloom": str(environments[0].get("fairbloom", "")),
    }
    return {name: value for name, value in facts.items() if value}
