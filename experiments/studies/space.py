"""What a sweep tries, row by row, and whether it may be tried."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbloom.protocol.settings import SETTINGS, SettingsError, Value
from fairbloom.server.settings import check_used, may_grow, parameters

from ..recipes.axes import check_values
from ..recipes.labels import label_of
from ..recipes.recipe import Case, Recipe
from ..results.sweep import Planned
from .objective import Objective
from .study import Candidate, folder_name

VALIDATION_SHARE = 0.2
"""The share of each client's examples to choose by, where nobody has set one."""

FIXED = {
    "method": "name several methods by --method, or rows",
    "seed": "give --seeds and --seed",
    "out": "give --out",
    "score": "points would be judged by different scores; give one by --score, and make a sweep for each",
    **dict.fromkeys(
        (
            *("task", "data-dir", "clients", "partition", "pooled", "test-share", "validation-share"),
            *(key for key, setting in SETTINGS.items() if setting.partitions),
        ),
        "points would be judged by other examples; make a sweep for each, or use fairbloom compare",
    ),
}
"""The settings that a sweep cannot try, and what to do in their place."""


@dataclass(frozen=True)
class Space:
    """A row of a sweep: its settings, and what is tried of others."""

    case: Case
    axes: Mapping[str, Sequence[Value]]

    @property
    def is_baseline(self) -> bool:
        """Whether what is chosen is compared with it."""
        return self.case.row.label == self.case.recipe.baseline

    def points(self) -> list[dict[str, Value]]:
        """Return every combination of the values."""
        return [dict(zip(self.axes, each, strict=True)) for each in itertools.product(*self.axes.values())]

    def candidate(self, point: Mapping[str, Value]) -> Candidate:
        """Return a point as a study has it; raise FairbloomError where its settings are impossible or unused."""
        case, given = self.case, self.case.config | dict(point)
        known = case.settings(given).run_config()
        config = {key: known.get(key, value) for key, value in given.items()}
        named = {key: config[key] for key in (*case.row.settings, *point) if key != "method"}
        name = label_of(case.row.label, named)
        free = {*may_grow()} - {*case.row.settings, *point}  # such runs are extended, and need no other folder
        return Candidate(name, config, folder_name(config, free), dict(point), case.row.evaluated)

    def candidates(self) -> list[Candidate]:
        """Return all points as a study has them."""
        return [self.candidate(point) for point in self.points()]

    def planned(self, candidate: Candidate) -> Planned:
        """Return a candidate as sweep.json has it."""
        keys = dict.fromkeys(("method", *self.case.row.settings, *candidate.point))
        settings = {key: candidate.config[key] for key in keys}
        rounds = self.case.settings(candidate.config).num_rounds
        return Planned(
            self.case.row.label, settings, candidate.point, candidate.folder, rounds, self.case.row.evaluated
        )


def check_recipe(recipe: Recipe) -> None:
    """Raise SettingsError where a recipe has what a sweep cannot use, or tries what it cannot try."""
    prefix = f"recipe {recipe.name}: " if recipe.name else ""
    for key, given, remedy in (
        ("published", any(row.published for row in recipe.rows), "fairbloom reproduce compares with printed numbers"),
    ):
        if given:
            raise SettingsError(f"{prefix}{key} has no use in a sweep: leave it out; {remedy}")
    cases = recipe.cases()
    swept = {case.axis(name) or name for case in cases for grid in (recipe.grid, case.row.grid) for name in grid}
    for key in swept:
        if key in FIXED:
            raise SettingsError(f"{prefix}a sweep cannot try values of {key}: {FIXED[key]}")
        if key in recipe.settings:
            raise SettingsError(
                f"{prefix}{key} is given twice, as a setting of all runs and in the grid: give it in one place"
            )
    for key in FIXED.keys() - {"method"}:
        values = {case.config.get(key) for case in recipe.cases()}
        if len(values) > 1:
            raise SettingsError(f"{prefix}rows differ in {key}: {FIXED[key]}")
    methods = [case.method for case in recipe.cases()]
    check_used(recipe.settings, methods, str(recipe.settings.get("task", "digits")))


def check_constraints(objective: Objective, recipe: Recipe) -> None:
    """Raise SettingsError where a constraint is against a method that is not the baseline."""
    against = [each for each in objective.constraints if each.compares]
    if against and not recipe.baseline:
        raise SettingsError(
            f"criterion = {objective.text!r} compares with a method: name it by --baseline (in a file, by baseline)"
        )
    method = next((case.method for case in recipe.cases() if case.row.label == recipe.baseline), "")
    for each in against:
        if each.method is not None and each.method.method != method:
            raise SettingsError(
                f"criterion = {objective.text!r} is against {each.method.label}, and the baseline is "
                f"{recipe.baseline}: write the same method in both"
            )


def with_validation(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return a recipe that sets validation examples apart, and in words that this was done here, if it was."""
    shares = {case.config.get("validation-share") for case in recipe.cases()} - {None}
    if not shares:
        settings = {**recipe.settings, "validation-share": VALIDATION_SHARE}
        note = (
            f"validation-share = {VALIDATION_SHARE:g} was set, so that points are chosen by examples that they are not "
            "tested on."
        )
        return recipe.model_copy(update={"settings": settings}), [note]
    if 0 in shares:
        raise SettingsError(
            "validation-share = 0: a sweep chooses by validation examples, never by test examples: set "
            f"validation-share = {VALIDATION_SHARE:g}, or leave it out"
        )
    return recipe, []


def space_of(case: Case) -> Space:
    """Return what is tried in a row."""
    task, axes = str(case.config.get("task", "digits")), case.axes()
    known = {**parameters(task=task, methods=[case.method]), **SETTINGS}
    if unknown := [key for key in axes if key not in known]:
        raise SettingsError(f"grid: unknown setting {unknown[0]}: fairbloom settings lists those that there are")
    return Space(case, {key: check_values(known[key], values) for key, values in axes.items()})


def check_spaces(recipe: Recipe, spaces: Sequence[Space]) -> None:
    """Raise SettingsError where a grid's setting is tried in no row."""
    for name in recipe.grid:
        if any(space.case.axis(name) in space.axes for space in spaces):
            continue
        if setting := [space.case for space in spaces if space.case.axis(name) in space.case.row.settings]:
            raise SettingsError(f"grid: {name} is given twice, here and by {setting[0].name}: give it in one place")
        methods = ", ".join(dict.fromkeys(repr(space.case.method) for space in spaces))
        raise SettingsError(f"grid: {name} has no effect with method = {methods}: leave it out")


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Raise SettingsError where there is nothing to choose, or two points are the same."""
    if len(candidates) < 2:
        there = ", ".join(candidate.name for candidate in candidates) or "nothing beside the baseline"
        raise SettingsError(
            f"there is nothing to choose from but {there}: give values by --grid, as in alpha=0,0.1,0.5"
        )
    names = [candidate.name for candidate in candidates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"grid: {twice[0]} is there twice: give each value and each row once")
