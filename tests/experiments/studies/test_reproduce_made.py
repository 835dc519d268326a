"""Recipes without their data run from end to end on made-up data in files of the same form.

A row of each is run for a round. The numbers mean nothing; they only show that the recipe runs.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import fairbloom
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.recipe import load_recipe, names
from fairbloom.experiments.results.reproduction import measures_of
from fairbloom.experiments.studies.reproduce import study_of
from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS
from tests.tasks import made, test_adult, test_heart_disease

QUICK: dict[str, Value] = {"num-rounds": 1, "batch-size": 50, "device": "cpu"}

UNVERIFIED: dict[str, Value] = {"verify-data": False}


def speakers(root: Path) -> Path:
    return made.shakespeare(
        root, [(f"SPEAKER {k:02d}", f"{k:02d} words of no meaning " * 11) for k in range(31)]
    )


def people(root: Path) -> Path:
    root.mkdir()
    lines = [
        test_adult.line_of(education, income, sex=sex, race=race, age=str(20 + k))
        for k, (education, income, sex, race) in enumerate(
            itertools.product(
                ("Doctorate", "HS-grad"), ("<=50K", ">50K"), ("Female", "Male"), ("White", "Black")
            )
        )
    ]
    return test_adult.written(root, lines * 3, lines)


def hospitals(root: Path) -> Path:
    (root / "heart-disease").mkdir(parents=True)
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        (root / "heart-disease" / f"processed.{site}.data").write_text(
            test_heart_disease.patients(30, 12)
        )
    return root


WRITTEN: dict[str, Callable[[Path], object]] = {
    "adult": people,
    "heart-disease": hospitals,
    "fashion-mnist": lambda root: made.mnist(root, folder="FashionMNIST"),
    "mnist": made.mnist,
    "cifar10": lambda root: made.cifar10(root, train=1000, test=200),
    "cifar100": lambda root: made.cifar100(root, train=24, test=10),
    "cinic10": lambda root: made.cinic10(root, count=12),
    "femnist": lambda root: made.femnist(root, {f"f{k:04d}_00": 6 for k in range(10)}),
    "shakespeare": speakers,
    "stackoverflow": lambda root: made.stackoverflow(
        root, {f"u{k}": ["a word after another"] * 8 for k in range(3)}
    ),
    "synthetic": lambda root: root.mkdir(),
}

FEW: dict[str, Value] = {"clients": 2, "learning-rate": 0.01}

# their networks are LSTMs
SLOW = ("fedmgda-table14", "semivred-table6-shakespeare", "semivred-table6-stackoverflow")

FIGURES = tuple(f"fedmgda-figure{k}" for k in ("1", "2", "3", "4", "s5-9"))

RECIPES: dict[str, dict[str, Value]] = {
    **dict.fromkeys(("fedfv-figure2", *FIGURES), UNVERIFIED | {"clients": 10}),
    "fedmgda-figure2": UNVERIFIED | {"clients": 10, "attackers": "0.1"},
    "fedfv-table2": UNVERIFIED,
    "fedmgda-table8": UNVERIFIED,
    **dict.fromkeys(("fedmgda-table6", "fedmgda-table13"), UNVERIFIED | {"clients": 10}),
    "fedmgda-table12": UNVERIFIED | {"clients": 10, "fraction": 0.1},
    "fedmgda-table14": UNVERIFIED | {"fraction": 0.1, "test-share": 0.5},
    "semivred-table2": UNVERIFIED | FEW,
    "semivred-table6-cifar100": UNVERIFIED | FEW,
    "semivred-table6-cinic10": UNVERIFIED | FEW,
    "semivred-table6-shakespeare": UNVERIFIED | {"clients": 2, "shakespeare.smallest": 0},
    "semivred-table6-stackoverflow": UNVERIFIED | {"clients": 2, "stackoverflow.smallest": 0},
    "qffl-synthetic": {"clients": 10},
}
"""Settings besides `QUICK`: fewer clients or test examples, because the made-up data are few."""


@pytest.mark.parametrize(
    "name",
    # an LSTM
    [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in names()],
)
def test_a_run_of_one_round_has_every_measure_of_its_recipe(tmp_path: Path, name: str) -> None:
    """One row of each kind: as usual, with attackers, judged by personal models, pooled."""
    recipe = load_recipe(name)
    kinds: dict[tuple[object, ...], Arm] = {}
    study = study_of(recipe, recipe.rows)
    for arm in study.arms:
        config = study.config(arm)
        kinds.setdefault((arm.evaluated, config.get("attackers"), config.get("pooled")), arm)
    for number, arm in enumerate(kinds.values()):
        info = TASKS[str(study.config(arm)["task"])]
        root = tmp_path / "data"
        if not root.exists():
            WRITTEN[info.name](root)
        config = study.config(arm) | QUICK | UNVERIFIED | RECIPES.get(name, {})
        config |= {"model": "logistic"} if "logistic" in info.models else {}
        config |= {"data-dir": str(root)} if info.files else {}
        run = fairbloom.run(
            settings=case_settings(config), out=tmp_path / str(number), progress=False
        )
        assert measures_of(run, recipe.measures, arm.evaluated).keys() == {*recipe.measures}


def case_settings(config: dict[str, Value]) -> dict[str, Value]:
    """Return settings that are also possible for a task with drawn data."""
    return {
        key: value for key, value in config.items() if key != "verify-data" or "data-dir" in config
    }
