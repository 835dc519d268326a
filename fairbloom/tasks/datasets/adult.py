"""Adult: 48,842 people of the US census of 1994; predict who earns over 50,000 dollars a year.

An example has the eight columns of categories, one-hot: 99 binary inputs. As in AFL, q-FFL and
FedMGDA+, ages, hours and gains are left out, and the two clients are people with a doctorate and
people without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import split_names
from fairbloom.tables.preprocessing import (
    TABLE,
    Preprocessing,
    encode_columns,
    encode_groups,
    input_columns,
)
from fairbloom.tables.schema import parse_schema

from ..catalogue import TASKS
from ..measures import group_scores_of_classes
from ..partition import (
    MIN_EXAMPLES,
    Dealt,
    Indices,
    Labels,
    Parts,
    add_labels,
    deal,
    name_clients,
    number_clients,
    split,
    splits_of,
)
from ..task import Setup, Splits, Task
from .classification import classify, numbered
from .store import locate
from .uci import describe_columns, read_columns

# The columns of the files; `income` is the target.
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

# The schema of both files.
ADULT = parse_schema(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

# The categories of each column in the order of adult.names, which is the order of the inputs.
CATEGORIES = {name: field.categories for name, field in ADULT.inputs.items()}

# The classes.
INCOMES = ADULT.predicted.categories

# The partition, and the client, of people with a doctorate.
PHD = "phd"

# Slots in the hash table of a Python set of 413 numbers; they decide the order of iteration.
SLOTS = 2048

# The groups of the code behind FedMGDA+'s Table 7, in place of those that the paper describes.
PUBLISHED = "published"

# People by column: the index of each person's category, -1 if not known, shape (n,).
People = Mapping[str, Labels]


def load(setup: Setup, *, groups: str, group: str, left_out: str) -> Task:
    """Return the task; the test set adult.test is split into the same groups as adult.data."""
    if groups == PUBLISHED and setup.partition != PHD:
        raise FairbloomError(
            f"adult.groups = {groups!r}: it says who is a client of partition = {PHD}; leave it out"
            f" with partition = {setup.partition}"
        )
    without = split_names(left_out)
    for name in without:
        if name not in CATEGORIES:
            raise FairbloomError(
                f"adult.left-out = {name!r}: only columns of categories are inputs:"
                f" {did_you_mean(name, CATEGORIES)}there are {', '.join(CATEGORIES)}"
            )
    if CATEGORIES.keys() <= {*without}:
        raise FairbloomError(f"adult.left-out = {left_out!r} leaves no input: name fewer columns")
    given = (PHD, f"non-{PHD}") if setup.partition == PHD else CATEGORIES.get(setup.partition)
    names = number_clients(setup.clients) if given is None else name_clients(setup, given)
    fields = {
        name: field.model_copy(update={"input": name not in without})
        for name, field in ADULT.fields.items()
    }
    schema = describe_columns(ADULT.model_copy(update={"fields": fields}), "adult.group", group)
    columns = input_columns(schema)

    @cache
    def dealt() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Dealt]]:
        train, test = [
            read_columns(path, COLUMNS, schema) for path in locate(TASKS["adult"], setup)
        ]
        # Test examples follow the training examples in the joined columns.
        offset = len(train[schema.target])
        parts = {
            name: Dealt(part.examples, part.tested + offset)
            for name, part in zip(names, _deal(train, test, setup, names, groups), strict=True)
        }
        people = {name: np.concatenate([train[name], test[name]]) for name in schema.fields}
        return (
            torch.from_numpy(encode_columns(columns, people)),
            torch.from_numpy(people[schema.target].astype(np.int64)),
            encode_groups(schema, people),
            parts,
        )

    def parts_of(client: str) -> Parts:
        *_, parts = dealt()
        return split(parts[client].examples, setup, client, parts[client].tested)

    def splits(client: str) -> Splits:
        inputs, targets, members, _ = dealt()
        return splits_of(inputs, targets, parts_of(client), members)

    def rows_of(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(parts_of(client), dealt()[1].numpy())

    preprocessing = Preprocessing(
        form=TABLE,
        columns=columns,
        ignored=tuple(name for name in COLUMNS[:-1] if name not in schema.inputs),
        target=schema.target,
        classes=INCOMES,
    )
    return replace(
        classify(setup, names, (preprocessing.width,), numbered(len(INCOMES)), splits, rows_of),
        groupings=schema.group_names,
        class_names=INCOMES,
        positive=1,
        group_scores=group_scores_of_classes(2, 1, INCOMES[1]) if schema.groups else {},
        preprocessing=lambda client: preprocessing,
    )


# The people of each client ------------------------------------------------------------------------


def _deal(
    train: People, test: People, setup: Setup, names: Sequence[str], groups: str
) -> list[Dealt]:
    if setup.partition not in (PHD, *CATEGORIES):
        return deal(
            train[ADULT.target].astype(np.int64), setup, test[ADULT.target].astype(np.int64)
        )
    doctorate = CATEGORIES["education"].index("Doctorate")
    # Client 0 of PHD has the people with a doctorate.
    train_clients, test_clients = [
        people["education"] != doctorate if setup.partition == PHD else people[setup.partition]
        for people in (train, test)
    ]
    parts = [
        Dealt(np.flatnonzero(train_clients == place), np.flatnonzero(test_clients == place))
        for place in range(len(names))
    ]
    if groups == PUBLISHED:
        used = published(parts[0].examples, parts[1].examples)
        parts = [Dealt(examples, part.tested) for examples, part in zip(used, parts, strict=True)]
    for name, part in zip(names, parts, strict=True):
        if len(part.examples) < MIN_EXAMPLES or not len(part.tested):
            raise FairbloomError(
                f"partition = {setup.partition!r}: client {name} would train on"
                f" {len(part.examples)} people of adult.data and be tested on {len(part.tested)} of"
                f" adult.test; at least {MIN_EXAMPLES} and 1 are needed: take another partition"
            )
    return parts


def published(phd: Indices, others: Indices) -> list[Indices]:
    """Return the people that the two clients train on in the code behind FedMGDA+'s Table 7.

    The code (watml/Fed-MGDA, adult/) numbers people from 1 and later counts them from 0, so that
    its PhD client has the person on the line after each doctorate. It trains on the first four
    fifths of a Python set of these numbers, in the set's own order: ascending for the larger
    client, by the number modulo `SLOTS` for the smaller one.
    """
    numbers = phd + 1
    listed = (numbers[np.argsort(numbers % SLOTS, kind="stable")], others + 1)
    used = [rows[: len(rows) * 4 // 5] for rows in listed]
    # No line follows the last person.
    return [rows[rows < len(phd) + len(others)] for rows in used]
