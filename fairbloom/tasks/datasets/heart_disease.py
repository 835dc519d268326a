"""Heart disease: 740 patients of four hospitals, each a client; predict who has the disease.

The patients are prepared as in FLamby's Fed-Heart-Disease (du Terrail et al., NeurIPS 2022): the
three columns that most hospitals hardly filled in are dropped, then patients with a missing value;
two columns are one-hot without their first category. That leaves 303, 261, 46 and 130 patients,
34 % of them for testing, and 13 inputs.

A hospital needs only its own file: categories are constants, and it standardises by its own
training patients.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.streams import generator
from fairbloom.tables.encoding import ColumnValues, is_missing
from fairbloom.tables.preprocessing import encode_groups
from fairbloom.tables.schema import parse_schema

from ..catalogue import TASKS
from ..measures import AUC, BALANCED_ACCURACY, auc, balanced_accuracy, group_scores_of_classes
from ..partition import Indices, Labels, Parts, name_clients, split, splits_of
from ..task import Setup, Splits, Task, is_highest
from .classification import classify, numbered
from .store import locate
from .uci import describe_columns, read_columns

# The clients, in the order of their files.
HOSPITALS = ("cleveland", "hungarian", "switzerland", "long-beach")

# The schema of the files.
HEART_SCHEMA = parse_schema(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

# The columns of the files.
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)

# The columns with an input for each category except the first.
ONE_HOT = ("cp", "restecg")

# The columns that are one input each, unchanged.
NUMBERS = tuple(name for name in HEART_SCHEMA.inputs if name not in ONE_HOT)

# The length of an example, 13.
INPUTS = len(NUMBERS) + sum(len(HEART_SCHEMA.fields[name].categories) - 1 for name in ONE_HOT)

# The share of a hospital's patients that it trains on.
TRAINED = 0.66


def load(setup: Setup, *, split: int, group: str) -> Task:
    """Return the task, with two outputs and the cross-entropy.

    FLamby's logistic regression with one output and binary cross-entropy is the same model: its
    output is the difference of the two here, which SGD moves at twice the learning rate.
    """
    if setup.test_share != Setup.model_fields["test_share"].default:
        raise FairbloomError(
            f"test-share = {setup.test_share:g}: task heart-disease tests on {1 - TRAINED:.0%} of"
            " each hospital's patients, as FLamby does: leave test-share out"
        )

    schema = describe_columns(HEART_SCHEMA, "heart-disease.group", group)

    @cache
    def splits(client: str) -> Splits:
        info = TASKS["heart-disease"]
        (path,) = locate(info, setup, [info.files[HOSPITALS.index(client)]])
        patients = read_patients(path)
        inputs, targets = encode_patients(patients)
        parts = parts_of(targets, setup, client, split)
        return splits_of(
            torch.from_numpy(standardise(inputs, parts.train)),
            torch.from_numpy(targets),
            parts,
            encode_groups(schema, patients),
        )

    return replace(
        classify(setup, name_clients(setup, HOSPITALS), (INPUTS,), numbered(2), splits),
        scores={ACCURACY: is_highest, AUC: auc, BALANCED_ACCURACY: balanced_accuracy},
        # without the last group, None: no patient has a missing value
        groupings={name: groups[:-1] for name, groups in schema.group_names.items()},
        class_names=("well", "ill"),
        positive=1,
        group_scores=group_scores_of_classes(2, 1, "ill") if schema.groups else {},
    )


# Splits -------------------------------------------------------------------------------------------


def parts_of(targets: Labels, setup: Setup, client: str, random_state: int) -> Parts:
    """Return a hospital's training, test and validation patients.

    The test split is stratified by disease if at least three patients have it and three do not;
    validation patients are drawn from the training patients, not stratified.
    """
    # imported late: it takes a second, and a server has no data
    selection = import_module("sklearn.model_selection")
    if not random_state:
        random_state = int(generator(setup.seed, "hospital", client).integers(1, 2**32))
    fewest = np.bincount(targets, minlength=2).min()
    train, test = selection.train_test_split(
        np.arange(len(targets)),
        train_size=TRAINED,
        test_size=1.0 - TRAINED,
        random_state=random_state,
        stratify=targets if fewest > 2 else None,
    )
    return split(train, setup, client, test)


def standardise(inputs: NDArray[np.float64], train: Indices) -> NDArray[np.float32]:
    """Standardise inputs by mean and deviation of the training patients; constant ones become 0."""
    trained = inputs[train]
    deviation = trained.std(axis=0, ddof=1)
    varies = trained.min(axis=0) < trained.max(axis=0)
    return np.where(
        varies, (inputs - trained.mean(axis=0)) / np.where(varies, deviation, 1.0), 0.0
    ).astype(np.float32)


# The files ----------------------------------------------------------------------------------------


def read_patients(path: Path) -> dict[str, ColumnValues]:
    """Return the columns of a file by the schema, for the patients without a missing value."""
    columns = read_columns(path, COLUMNS, HEART_SCHEMA)
    known = ~np.any([is_missing(values) for values in columns.values()], axis=0)
    if not known.any():
        raise FairbloomError(
            f"{path} has no patient without missing values: put the original in its place"
        )
    return {name: values[known] for name, values in columns.items()}


def encode_patients(patients: Mapping[str, ColumnValues]) -> tuple[NDArray[np.float64], Labels]:
    """Return patients' inputs, shape (n, 13), and whether each is ill, shape (n,)."""
    one_hot = [
        patients[name] == place
        for name in ONE_HOT
        for place in range(1, len(HEART_SCHEMA.fields[name].categories))
    ]
    return (
        np.stack([*(patients[name].astype(np.float64) for name in NUMBERS), *one_hot], axis=1),
        (patients["num"] > 0).astype(np.int64),
    )
