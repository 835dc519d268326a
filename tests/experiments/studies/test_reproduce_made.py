"""Recipes whose data are not here run from end to end on data that are made up, in the files of the real ones.

A row of each is run for a round. What is measured means nothing: whoever has the data needs one command.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from fairbloom import reproduce
from fairbloom.experiments.recipes.recipe import load_recipe, names
from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS
from tests.tasks import made

QUICK: dict[str, Value] = {"num-rounds": 1, "batch-size": 50, "device": "cpu"}

UNVERIFIED: dict[str, Value] = {"verify-data": False}


def speakers(root: Path) -> Path:
    return made.shakespeare_leaf(root, {f"SPEAKER {k:02d}": f"{k:02d} words of no meaning " * 11 for k in range(31)})


WRITTEN: dict[str, Callable[[Path], object]] = {
    "cifar10": lambda root: made.cifar10(root, train=1000, test=200),
    "cifar100": lambda root: made.cifar100(root, train=24, test=10),
    "cinic10": lambda root: made.cinic10(root, count=12),
    "femnist": lambda root: made.femnist(root, {f"f{k:04d}_00": 6 for k in range(10)}),
    "shakespeare-leaf": speakers,
    "synthetic": lambda root: root.mkdir(),
}

FEW: dict[str, Value] = {"clients": 2, "learning-rate": 0.01}

RECIPES: dict[str, dict[str, Value]] = {
    "fedfv-table2": UNVERIFIED,
    "fedmgda-table8": UNVERIFIED,
    "fedmgda-table12": UNVERIFIED | {"fraction": 0.1},
    "fedmgda-table14": UNVERIFIED | {"fraction": 0.1, "test-share": 0.5},
    "semivred-table6-cifar100": UNVERIFIED | FEW,
    "semivred-table6-cinic10": UNVERIFIED | FEW,
    "qffl-synthetic": {"clients": 10},
}
"""What is set for each beside `QUICK`: fewer clients, or less to test on, where so few examples have to do."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_on_made_up_data_in_the_real_format(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    task = str(recipe.settings["task"])
    WRITTEN[task](tmp_path / "data")
    row = max((case for case in recipe.cases() if not case.row.grid), key=lambda case: len(case.name))
    reproduce(
        name,
        quick=True,
        rows=[row.name],
        settings=QUICK | RECIPES[name],
        data_dir=tmp_path / "data" if TASKS[task].files else None,
        out=tmp_path / "out",
        jobs=1,
        progress=False,
    )
    assert list((tmp_path / "out" / "runs").glob("*/model.safetensors"))


def test_every_task_whose_data_are_not_here_has_a_recipe_that_is_run() -> None:
    tasks = {str(load_recipe(name).settings.get("task")) for name in names()}
    run = {str(load_recipe(name).settings["task"]) for name in RECIPES}
    assert tasks & {"cifar10", "cifar100", "cinic10", "femnist", "shakespeare-leaf"} <= run
