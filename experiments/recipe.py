"""Recipes: published tables as TOML files, which say what is to be run and what was printed."""

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import SETTINGS, Value, key_of
from fairbloom.strategies import METHODS, canonical, find_method

from .arms import find_key, label_of, method_parameters, owner_of, short_key
from .results.measures import find_measure

FOLDER = Path(__file__).parent / "recipes"
"""Where the recipes of published tables lie."""


@dataclass(frozen=True)
class Printed:
    """A printed number; `spread` is what follows its ±, None where nothing does."""

    mean: float
    spread: float | None = None

    @classmethod
    def of(cls, text: str) -> "Printed | None":
        """Return the number of a text such as "80.42 ± 0.76", None of an empty one.

        Raise ValueError for others.
        """
        number = r"(-?\d*\.?\d+)"
        match = re.fullmatch(rf"\s*(?:{number}(?:\s*±\s*{number})?)?\s*", text)
        if match is None:
            raise ValueError(
                f'{text!r} is no printed number: write it as "80.42 ± 0.76", "80.42", or "" for'
                " none"
            )
        mean, spread = match.groups()
        return None if mean is None else cls(float(mean), None if spread is None else float(spread))


def _flatten(settings: object) -> object:
    """Return settings by their keys; TOML reads a dotted key as a table within the table."""
    if not isinstance(settings, dict):
        return settings
    return {
        name: value
        for key, inner in settings.items()
        for name, value in (
            ((f"{key}.{rest}", value) for rest, value in inner.items())
            if isinstance(inner, dict)
            else ((key, inner),)
        )
    }


Config = Annotated[dict[str, Value], BeforeValidator(_flatten)]
"""Settings of a run by their keys."""

Axes = Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], BeforeValidator(_flatten)]
"""The values of settings that are tried in every combination."""

Numbers = list[str]
"""Printed numbers, in the order of the recipe's measures."""


class Section(BaseModel):
    """A section of a recipe's file; its keys are the names with hyphens."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )


class Row(Section):
    """A row of the table: a method with its settings, and what was printed.

    Its grid replaces the axes of the recipe's that it names, and is crossed with the others.
    """

    label: str = Field(min_length=1)
    settings: Config = Field(default_factory=dict)
    published: Numbers = Field(default_factory=list)
    note: str = ""
    grid: Axes = Field(default_factory=dict)
    evaluated: Literal["global", "personal"] = "global"


class Recipe(Section):
    """A published table, or a study of one's own, and how it is run.

    Docs/measured.md has the keys.
    """

    name: str = ""
    title: str = ""
    what: str = ""
    source: str = ""
    # 0: the source does not say over how many seeds its spreads are
    published_seeds: int = Field(0, ge=0)
    seeds: int = Field(5, ge=1)
    measures: list[str] = Field(default=["mean", "std", "worst_10", "best_10"], min_length=1)
    # the measures that must agree for a row to agree; none: all
    judged: list[str] = Field(default_factory=list)
    tolerance: dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    notes: list[str] = Field(default_factory=list)
    settings: Config = Field(default_factory=dict)
    grid: Axes = Field(default_factory=dict)
    criterion: str = "mean"
    # with how many seeds, the first ones, the grid is searched; 0: all
    grid_seeds: int = Field(0, ge=0)
    rows: list[Row] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise ValueError where one part of the recipe names something that another does not have."""
        for key, names in (("measures", self.measures), ("criterion", [self.criterion])):
            try:
                for measure in names:
                    find_measure(measure)
            except FairbloomError as error:
                raise ValueError(f"{key}: {error}") from error
        for key, named in (("judged", self.judged), ("tolerance", self.tolerance)):
            if unknown := [measure for measure in named if measure not in self.measures]:
                raise ValueError(
                    f"{key}: {unknown[0]!r} is none of the measures: there are"
                    f" {', '.join(self.measures)}"
                )
        parts = [
            self.settings,
            self.grid,
            *(part for row in self.rows for part in (row.settings, row.grid)),
        ]
        if mistaken := [key for key in ("seed", "out") if any(key in part for part in parts)]:
            raise ValueError(f"settings: leave {mistaken[0]} out: it is set for each run")
        for row in self.rows:
            find_method(self.method(row))
            if row.published and len(row.published) != len(self.measures):
                raise ValueError(
                    f"row {row.label!r}: published has {len(row.published)} numbers, and there are "
                    f'{len(self.measures)} measures ({", ".join(self.measures)}): give one each, ""'
                    " where none was "
                    "printed"
                )
            self.published(row)
            self._check_grid(row.grid, [row])
        self._check_grid(self.grid, self.rows)
        labels = [*map(self.name_of, self.rows)]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"rows: {twice[0]!r} is there twice: give the two different labels")
        return self

    def _check_grid(self, grid: Axes, rows: Sequence[Row]) -> None:
        """Raise ValueError where a grid has a setting that neither every run has nor a row's method."""
        for name in grid:
            if (
                "." not in name
                and key_of(name) not in SETTINGS
                and not any(self._axis(name, row) for row in rows)
            ):
                methods = [*dict.fromkeys(map(self.method, rows))]
                there = [short_key(key) for method in methods for key in method_parameters(method)]
                hint = did_you_mean(name, [*SETTINGS, *there]).rstrip(": ")
                raise ValueError(
                    f"grid: {name} is neither a setting nor a parameter of {', '.join(methods)}:"
                    f" {hint}".rstrip(": ")
                )

    @property
    def tasks(self) -> list[str]:
        """The tasks whose data it needs."""
        return list(dict.fromkeys(map(self.task, self.rows)))

    @cached_property
    def owners(self) -> frozenset[str]:
        """What the keys of methods' parameters begin with: of all methods, and of user-defined ones in the rows."""
        return frozenset({*METHODS, *(owner_of(self.method(row)) for row in self.rows)})

    @property
    def runs(self) -> int:
        """How many runs it takes with the recipe's number of seeds."""
        searched = self.grid_seeds or self.seeds
        counts = [len(self.points(row)) for row in self.rows]
        return sum(
            count * searched + self.seeds - searched if count > 1 else self.seeds
            for count in counts
        )

    @property
    def summary(self) -> dict[str, Any]:
        """What --list --json prints of it."""
        about = {"name": self.name, "title": self.title, "what": self.what, "source": self.source}
        return about | {
            "tasks": self.tasks,
            "rows": len(self.rows),
            "seeds": self.seeds,
            "runs": self.runs,
        }

    # Of a row

    def task(self, row: Row) -> str:
        """Return a row's task."""
        return str((self.settings | row.settings).get("task", SETTINGS["task"].default))

    def method(self, row: Row) -> str:
        """Return a row's method as settings call it."""
        return canonical(str((self.settings | row.settings).get("method", "fedavg")))

    def name_of(self, row: Row, point: Mapping[str, Value] | None = None) -> str:
        """Return a row's label with the settings that only it has, and what its grid found: `FedMGDA+ (epsilon=1)`."""
        return label_of(row.label, self.parameters(row, point or {}))

    def parameters(self, row: Row, point: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a row sets, and what was chosen of the grid, without the name of the method before it."""
        settings = {key: value for key, value in row.settings.items() if key != "method"} | dict(
            point
        )
        owner = owner_of(self.method(row))
        return {key.removeprefix(f"{owner}."): value for key, value in settings.items()}

    def published(self, row: Row) -> dict[str, Printed]:
        """Return the numbers that were printed of a row, by measure."""
        numbers = zip(self.measures, row.published, strict=False)
        return {
            measure: number for measure, text in numbers if (number := Printed.of(text)) is not None
        }

    def points(self, row: Row) -> list[dict[str, Value]]:
        """Return the combinations of a row's grid, [{}] without one.

        A setting that the row sets is not varied.
        """
        shared = {
            key: values for name, values in self.grid.items() if (key := self._axis(name, row))
        }
        own = {self._axis(name, row) or name: values for name, values in row.grid.items()}
        axes = {key: values for key, values in shared.items() if key not in row.settings} | own
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]

    def _axis(self, name: str, row: Row) -> str | None:
        """Return the run-config key of a grid's setting.

        None where it belongs to another row's method.
        """
        mine = method_parameters(self.method(row))
        key = (
            name
            if "." in name
            else key_of(name)
            if key_of(name) in SETTINGS
            else find_key(name, mine)
        )
        owner, dot, _ = (key or "").partition(".")
        return None if dot and owner in self.owners and owner != owner_of(self.method(row)) else key


# Files --------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of the recipes that come with the library; Table 8 comes before Table 10."""

    def words_and_numbers(name: str) -> list[tuple[str, int]]:
        return [(word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", name)]

    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=words_and_numbers)


def load_shipped() -> Iterator[Recipe]:
    """Yield the recipes that come with the library."""
    for name in names():
        yield load_recipe(name)


def load_recipe(name: str) -> Recipe:
    """Return a recipe by its name, or by the path of a file.

    Errors name the recipe, the key and the remedy.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        hint = did_you_mean(name, names())
        raise FairbloomError(
            f"unknown recipe {name!r}: {hint}fairbloom reproduce --list names them, or give a .toml"
        )
    try:
        text = tomllib.loads(path.read_bytes().decode())
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
        raise FairbloomError(
            f"recipe {path.stem}: {'; '.join(map(_explain, error.errors()))}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FairbloomError(
            f"recipe {path.stem} is no valid TOML: {error}: correct {path}"
        ) from error


def _explain(error: Mapping[str, Any]) -> str:
    """Return a fault that pydantic found: the key, its value, and what would do."""
    where = ".".join(str(part + 1) if isinstance(part, int) else str(part) for part in error["loc"])
    reason = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        part = Row if error["loc"][0] == "rows" and len(error["loc"]) > 1 else Recipe
        known = [
            name.replace("_", "-") for name in part.model_fields if (part, name) != (Recipe, "name")
        ]
        key = str(error["loc"][-1])
        return f"unknown key {where}: {did_you_mean(key, known)}there are {', '.join(known)}"
    if error["type"] == "missing":
        return f"{where} is missing: give it"
    return f"{where} = {error['input']!r}: {reason}" if where else reason
