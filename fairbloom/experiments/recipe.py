"""Recipes: published tables as TOML files, with the runs and the printed numbers."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fairbloom.errors import FairbloomError, did_you_mean, reason_of
from fairbloom.protocol.settings import SETTINGS, Value, flatten_tables, key_of
from fairbloom.strategies import METHODS, canonical, find_method
from fairbloom.strategies.named import find_key, method_parameters, owner_of, short_key
from fairbloom.system.files import read_toml

from .arms import label_of
from .results.measures import find_measure

# A claim of a recipe: a comparison of two rows by a measure.
CLAIM = re.compile(r"(.+) has a (higher|lower) (\S+) than (.+)")

# The folder of the recipes of published tables.
FOLDER = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Printed:
    """A printed number; `spread` is the number after ±, None without one."""

    mean: float
    spread: float | None = None

    @classmethod
    def of(cls, text: str) -> "Printed | None":
        """Return the number of a text such as "80.42 ± 0.76", None for an empty text.

        Raise ValueError for any other text.
        """
        number = r"(-?\d*\.?\d+)"
        match = re.fullmatch(rf"\s*(?:{number}(?:\s*±\s*{number})?)?\s*", text)
        if match is None:
            raise ValueError(
                f'{text!r} is not a printed number: write it as "80.42 ± 0.76", "80.42", or "" for'
                " none"
            )
        mean, spread = match.groups()
        if mean is None:
            return None
        return cls(float(mean), None if spread is None else float(spread))


def _flatten(settings: object) -> object:
    """Return settings by their dotted keys; anything else is refused later."""
    return flatten_tables(settings) if isinstance(settings, dict) else settings


# Settings of a run by their keys.
Config = Annotated[dict[str, Value], BeforeValidator(_flatten)]

# Values of settings, tried in every combination.
Axes = Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], BeforeValidator(_flatten)]

# Printed numbers, in the order of the recipe's measures.
Numbers = list[str]


class RecipeSection(BaseModel):
    """A section of a recipe's file; its keys are the names with hyphens."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )


class Row(RecipeSection):
    """A row of the table: a method with its settings and the printed numbers.

    Its grid replaces axes of the recipe's grid with the same names, and is crossed with the others.
    """

    label: str = Field(min_length=1)
    settings: Config = Field(default_factory=dict)
    published: Numbers = Field(default_factory=list)
    note: str = ""
    grid: Axes = Field(default_factory=dict)
    evaluated: Literal["global", "personal"] = "global"
    # whether it was run if its recipe was; see Recipe.ran
    ran: bool = True


class Recipe(RecipeSection):
    """A published table or a user's study, and its runs; docs/measured.md describes the keys."""

    name: str = ""
    title: str = ""
    # for `fairbloom reproduce --list`: whether docs/measured.md has numbers of runs as they are set
    ran: Literal["", "in full", "one seed", "quick only", "no data"] = ""
    what: str = ""
    source: str = ""
    # the number of seeds behind the printed spreads; 0 if the source does not give it
    published_seeds: int = Field(0, ge=0)
    seeds: int = Field(5, ge=1)
    measures: list[str] = Field(default=["mean", "std", "worst_10", "best_10"], min_length=1)
    # the measures that must agree for a row to agree; empty for all
    judged: list[str] = Field(default_factory=list)
    tolerance: dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    notes: list[str] = Field(default_factory=list)
    # the figure: bars of each row, or lines over the rounds
    x: Literal["row", "round"] = "row"
    # the measures over rounds that have a second chart, with a logarithmic axis
    logarithmic: list[str] = Field(default_factory=list)
    # what the source claims: "ROW has a higher MEASURE than ROW", or a lower one
    claims: list[str] = Field(default_factory=list)
    settings: Config = Field(default_factory=dict)
    grid: Axes = Field(default_factory=dict)
    criterion: str = "mean"
    # the grid is searched with this many of the first seeds; 0 for all
    grid_seeds: int = Field(0, ge=0)
    rows: list[Row] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise ValueError if parts of the recipe do not fit together."""
        for key, names in (("measures", self.measures), ("criterion", [self.criterion])):
            try:
                for measure in names:
                    find_measure(measure)
            except FairbloomError as error:
                raise ValueError(f"{key}: {error}") from error
        for key, named in (("judged", self.judged), ("tolerance", self.tolerance)):
            unknown = [measure for measure in named if measure not in self.measures]
            if unknown:
                raise ValueError(
                    f"{key}: {unknown[0]!r} is not among the measures: there are"
                    f" {', '.join(self.measures)}"
                )
        given = {*self.settings, *self.grid}
        for row in self.rows:
            given.update(row.settings, row.grid)
        for key in ("seed", "out"):
            if key in given:
                raise ValueError(f"settings: leave {key} out: it is set for each run")
        for row in self.rows:
            find_method(self.method(row))
            if row.published and len(row.published) != len(self.measures):
                raise ValueError(
                    f"row {row.label!r}: published has {len(row.published)} numbers, and there are"
                    f" {len(self.measures)} measures ({', '.join(self.measures)}): give one each,"
                    ' "" where none was printed'
                )
            self.published(row)
            self._check_grid(row.grid, [row])
        self._check_grid(self.grid, self.rows)
        self._check_figure()
        labels = [*map(self.name_of, self.rows)]
        for claim in self.claims:
            matched = CLAIM.fullmatch(claim)
            if matched is None or matched[3] not in self.measures:
                raise ValueError(
                    f"claims: {claim!r} is not a claim: write ROW has a higher MEASURE than ROW, or"
                    f" a lower one, with a measure of {', '.join(self.measures)}"
                )
            unknown = [name for name in (matched[1], matched[4]) if name not in labels]
            if unknown:
                raise ValueError(
                    f"claims: unknown row {unknown[0]!r}: there are {', '.join(labels)}"
                )
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise ValueError(f"rows: {twice[0]!r} is there twice: give the two different labels")
        return self

    def _check_figure(self) -> None:
        """Raise ValueError if the figure cannot be drawn over the rounds."""
        if self.x == "row" and self.logarithmic:
            raise ValueError(
                f"logarithmic = {self.logarithmic}: only lines over rounds have such an axis: set"
                ' x = "round", or leave logarithmic out'
            )
        if self.x == "row":
            return
        by_round = [measure for measure in self.measures if find_measure(measure).by_round]
        if not by_round:
            raise ValueError(
                'x = "round": no measure is known after each round: add one such as mean, or leave'
                " x out"
            )
        unknown = [measure for measure in self.logarithmic if measure not in by_round]
        if unknown:
            raise ValueError(
                f"logarithmic: {unknown[0]!r} is not among the measures over rounds: there are"
                f" {', '.join(by_round)}"
            )
        for row in self.rows:
            every = (self.settings | row.settings).get("evaluate-every", 1)
            if every == 0:
                raise ValueError(
                    f'x = "round": row {row.label!r} has evaluate-every = 0, with which only the'
                    " last round is evaluated: set evaluate-every, or leave x out"
                )

    def _check_grid(self, grid: Axes, rows: Sequence[Row]) -> None:
        """Raise ValueError if a name is neither a setting nor a parameter of the rows' methods."""
        for name in grid:
            is_setting = "." in name or key_of(name) in SETTINGS
            if is_setting or any(self._axis(name, row) for row in rows):
                continue
            methods = [*dict.fromkeys(map(self.method, rows))]
            parameters = [short_key(key) for method in methods for key in method_parameters(method)]
            raise ValueError(
                f"grid: {name} is neither a setting nor a parameter of {', '.join(methods)}:"
                f" {did_you_mean(name, [*SETTINGS, *parameters])}".rstrip(": ")
            )

    @property
    def tasks(self) -> list[str]:
        """The tasks of its rows."""
        return list(dict.fromkeys(map(self.task, self.rows)))

    @property
    def runs(self) -> int:
        """The number of runs with the recipe's number of seeds."""
        searched = self.grid_seeds or self.seeds
        # of each row, all seeds of one point, and the first seeds of the others
        others = [len(self.points(row)) - 1 for row in self.rows]
        return sum(self.seeds + searched * count for count in others)

    @property
    def summary(self) -> dict[str, Any]:
        """Its entry in the output of --list --json."""
        return {
            "name": self.name,
            "title": self.title,
            "what": self.what,
            "source": self.source,
            "tasks": self.tasks,
            "rows": len(self.rows),
            "seeds": self.seeds,
            "runs": self.runs,
            "ran": self.ran_in_words,
        }

    @property
    def ran_in_words(self) -> str:
        """Whether it was run, with the number of rows if only some were."""
        ran = sum(row.ran for row in self.rows)
        some = self.ran == "in full" and ran < len(self.rows)
        return f"{ran} of {len(self.rows)} rows" if some else self.ran

    # Of a row

    def task(self, row: Row) -> str:
        """Return a row's task."""
        return str((self.settings | row.settings).get("task", SETTINGS["task"].default))

    def method(self, row: Row) -> str:
        """Return a row's method by its name in settings."""
        return canonical(str((self.settings | row.settings).get("method", "fedavg")))

    def name_of(self, row: Row, point: Mapping[str, Value] | None = None) -> str:
        """Return a row's label with its own settings and grid point: `FedMGDA+ (epsilon=1)`."""
        return label_of(row.label, self.parameters(row, point or {}))

    def parameters(self, row: Row, point: Mapping[str, Value]) -> dict[str, Value]:
        """Return a row's settings and grid point, by keys without the method's prefix."""
        owner = owner_of(self.method(row))
        own = {key: value for key, value in row.settings.items() if key != "method"} | dict(point)
        return {key.removeprefix(f"{owner}."): value for key, value in own.items()}

    def published(self, row: Row) -> dict[str, Printed]:
        """Return the printed numbers of a row, by measure."""
        numbers = zip(self.measures, map(Printed.of, row.published), strict=False)
        return {measure: number for measure, number in numbers if number is not None}

    def points(self, row: Row, *, every_axis: bool = False) -> list[dict[str, Value]]:
        """Return the combinations of a row's grid, [{}] without a grid.

        Settings of the row itself are only varied with `every_axis`.
        """
        shared: dict[str, Sequence[Value]] = {}
        for name, values in self.grid.items():
            key = self._axis(name, row)
            if key:
                shared[key] = values
        own = {self._axis(name, row) or name: values for name, values in row.grid.items()}
        axes = {**shared, **own}
        if not every_axis:
            axes = {key: values for key, values in axes.items() if key not in row.settings}
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]

    def _axis(self, name: str, row: Row) -> str | None:
        """Return the run-config key of a grid's setting, None if it is of another row's method."""
        key: str | None = name if "." in name else key_of(name)
        if "." not in name and key not in SETTINGS:
            key = find_key(name, method_parameters(self.method(row)))
        owner, dot, _ = (key or "").partition(".")
        mine = owner_of(self.method(row))
        others = {*METHODS, *(owner_of(self.method(each)) for each in self.rows)} - {mine}
        return None if dot and owner in others else key


def count_printed(recipes: Iterable[Recipe]) -> tuple[int, int]:
    """Return of how many printed numbers the rows were run, and how many there are.

    Rows with the same numbers count once: some tables repeat others, and some rows differ only in
    what a paper leaves open.
    """
    ran = dict[tuple[str, ...], bool]()
    for recipe in recipes:
        for row in recipe.rows:
            numbers = tuple(filter(None, row.published))
            ran[numbers] = ran.get(numbers, False) or (recipe.ran == "in full" and row.ran)
    return sum(len(n) for n, was in ran.items() if was), sum(map(len, ran))


# Files --------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of the library's recipes, in which Table 8 comes before Table 10."""
    return sorted(
        (path.stem for path in FOLDER.glob("*.toml")),
        key=lambda name: [
            (word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", name)
        ],
    )


def load_recipe(name: str) -> Recipe:
    """Return a recipe by its name, or by the path of a file."""
    path = Path(name)
    if not name.endswith(".toml"):
        path = FOLDER / f"{name}.toml"
        if name not in names():
            raise FairbloomError(
                f"unknown recipe {name!r}: {did_you_mean(name, names())}fairbloom reproduce --list"
                " names them, or give a .toml"
            )
    try:
        text = read_toml(path)
        if "name" in text:
            raise FairbloomError("unknown key name: a recipe is called what its file is called")
        return Recipe.model_validate({"title": path.stem, **text, "name": path.stem})
    except OSError as error:
        raise FairbloomError(
            f"{path} cannot be read: {error.strerror}: give the path of a recipe"
        ) from error
    except FairbloomError as error:
        raise FairbloomError(f"recipe {path.stem}: {error}") from error
    except ValidationError as error:
        faults = "; ".join(map(_explain, error.errors()))
        raise FairbloomError(f"recipe {path.stem}: {faults}") from error
    except ValueError as error:
        raise FairbloomError(
            f"recipe {path.stem} is not valid TOML: {error}: correct {path}"
        ) from error


def _explain(error: Mapping[str, Any]) -> str:
    """Return pydantic's error as text: the key, its value and the remedy."""
    # rows are counted from 1 in messages
    parts = [str(part + 1) if isinstance(part, int) else part for part in error["loc"]]
    key = ".".join(parts)
    reason = reason_of(error)
    if error["type"] == "extra_forbidden":
        section = Row if error["loc"][0] == "rows" and len(error["loc"]) > 1 else Recipe
        known = [name.replace("_", "-") for name in section.model_fields if name != "name"]
        return f"unknown key {key}: {did_you_mean(parts[-1], known)}there are {', '.join(known)}"
    if error["type"] == "missing":
        return f"{key} is missing: give it"
    return f"{key} = {error['input']!r}: {reason}" if key else reason
