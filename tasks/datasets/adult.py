"""Adult: 48,842 people of the US census of 1994, and whether they earn more than 50,000 dollars a year.

An example is the eight columns of categories, one-hot: 99 binary inputs. Ages, hours and gains are left out, and the
clients are people with a doctorate and those without, as in AFL, q-FFL and FedMGDA+.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError, did_you_mean

from ..groups import OTHER, parse_groups
from ..known import TASKS
from ..measures import group_scores_of_classes
from ..partition import (
    FEWEST,
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
from ..preprocessing import CATEGORY, TABLE, InputColumn, Preprocessing
from ..task import Setup, Splits, Task
from .classification import classify
from .downloads import fetch_from_uci
from .store import locate

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
"""The columns of the files, of which `income` is the target."""

CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": (
        *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"),
        "Never-worked",
    ),
    "education": (
        *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th"),
        *("12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
    ),
    "marital-status": (
        *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent"),
        "Married-AF-spouse",
    ),
    "occupation": (
        *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"),
        *("Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"),
        *("Priv-house-serv", "Protective-serv", "Armed-Forces"),
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)"),
        *("India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland"),
        *("Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador"),
        *("Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia"),
        *("El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"),
    ),
}
"""The categories of each column in the order of adult.names, in which the inputs stand."""

INPUTS = sum(map(len, CATEGORIES.values()))
"""The length of an example, 99."""

UNKNOWN = "?"
"""What stands in place of a category that is not known; none of the column's inputs is 1 then."""

INCOMES = ("<=50K", ">50K")
"""The classes; adult.test writes a dot after them."""

PREPROCESSING = Preprocessing(
    form=TABLE,
    columns=tuple(InputColumn(name, CATEGORY, known, fill=True) for name, known in CATEGORIES.items()),
    ignored=tuple(name for name in COLUMNS[:-1] if name not in CATEGORIES),
    target=COLUMNS[-1],
    classes=INCOMES,
)
"""How a table of people becomes inputs."""

PHD = "phd"
"""The partition, and the client, of people with a doctorate."""

PHD_CLIENTS = (PHD, f"non-{PHD}")

SLOTS = 2048
"""The slots of the hash table of a Python set of 413 numbers, in whose order the set is gone through."""


class People(NamedTuple):
    """The people of one file.

    Attributes
    ----------
    inputs
        0 or 1, shape (n, 99).
    targets
        1 for those who earn more than 50,000 dollars, shape (n,).
    categories
        For each column of categories the place of each one's category in `CATEGORIES`; that after the last where it is
        not known; shape (n,).
    """

    inputs: NDArray[np.float32]
    targets: Labels
    categories: dict[str, NDArray[np.int64]]

    @property
    def doctorates(self) -> NDArray[np.bool_]:
        """Whether each has a doctorate, shape (n,)."""
        doctorate = CATEGORIES["education"].index("Doctorate")
        return np.equal(self.categories["education"], doctorate)


def load(setup: Setup, *, groups: str, group: str) -> Task:
    """Return the task, with adult.test as the test set, which is split into the same groups as adult.data.

    Parameters
    ----------
    setup
        What the run asks for. A client of the partitions education, race and sex is a category, and has its name.
    groups
        "described": each client trains on all of its people. "published": as in the code behind FedMGDA+'s Table 7,
        see `published`; for partition = phd alone.
    group
        By which columns of categories people are grouped, as in "sex,race".

    Raises
    ------
    FairbloomError
        When a number of clients is asked for although they come with the data, `groups` does not go with the
        partition, or there is no column as `group` says.
    """
    if groups == "published" and setup.partition != PHD:
        raise FairbloomError(
            f"adult.groups = 'published': it says who is a client of partition = {PHD}; leave it out with partition = "
            f"{setup.partition}"
        )
    names = _find_names(setup)
    grouped = _find_grouped(group)

    @cache
    def dealt() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Dealt]]:
        train, test = read(setup)
        parts = _deal(train, test, setup, groups)
        beyond = [Dealt(each.examples, each.tested + len(train.targets)) for each in parts]
        inputs = torch.from_numpy(np.concatenate([train.inputs, test.inputs]))
        targets = torch.from_numpy(np.concatenate([train.targets, test.targets]))
        columns = [np.concatenate([each.categories[name] for each in (train, test)]) for name in grouped]
        places = torch.from_numpy(np.stack(columns, axis=1)) if columns else None
        return inputs, targets, places, dict(zip(names, beyond, strict=True))

    def parts_of(client: str) -> Parts:
        *_, parts = dealt()
        return split(parts[client].examples, setup, client, parts[client].tested)

    def splits(client: str) -> Splits:
        inputs, targets, places, _ = dealt()
        return splits_of(inputs, targets, parts_of(client), places)

    def rows_of(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(parts_of(client), dealt()[1].numpy())

    task = classify(setup, names, (INPUTS,), len(INCOMES), splits, rows_of)
    return replace(
        task,
        groupings={name: (*CATEGORIES[name], OTHER) for name in grouped},
        group_scores=group_scores_of_classes(len(INCOMES)) if grouped else {},
        preprocessing=lambda client: PREPROCESSING,
    )


def _find_grouped(group: str) -> tuple[str, ...]:
    """Return the columns that `group` names."""
    groupings = parse_groups("adult.group", group)
    for by in groupings:
        if by.sign or by.column not in CATEGORIES:
            raise FairbloomError(
                f"adult.group = {by.name!r}: people are grouped by the categories of a column: "
                f"{did_you_mean(by.column, CATEGORIES)}there are {', '.join(CATEGORIES)}"
            )
    return tuple(by.column for by in groupings)


def _find_names(setup: Setup) -> tuple[str, ...]:
    """Return the clients' names, which need no data."""
    groups = PHD_CLIENTS if setup.partition == PHD else CATEGORIES.get(setup.partition)
    return number_clients(setup.clients) if groups is None else name_clients(setup, groups)


# Who belongs to which client ------------------------------------------------------------------------------------------


def _deal(train: People, test: People, setup: Setup, groups: str) -> list[Dealt]:
    """Return each client's people of the two files."""
    if setup.partition not in (PHD, *CATEGORIES):
        return deal(train.targets, setup, test.targets)
    ours = published(train.doctorates) if groups == "published" else _group(train, setup.partition)
    parts = list(map(Dealt, ours, _group(test, setup.partition)))
    for name, part in zip(_find_names(setup), parts, strict=True):
        if len(part.examples) < FEWEST or not len(part.tested):
            raise FairbloomError(
                f"partition = {setup.partition!r}: client {name} would train on {len(part.examples)} people of "
                f"adult.data and be tested on {len(part.tested)} of adult.test; at least {FEWEST} and 1 are needed: "
                "take another partition"
            )
    return parts


def _group(people: People, partition: str) -> list[Indices]:
    """Return the people of each client of a partition whose clients come with the data."""
    if partition == PHD:
        return [np.flatnonzero(mine) for mine in (people.doctorates, ~people.doctorates)]
    return [np.flatnonzero(people.categories[partition] == number) for number in range(len(CATEGORIES[partition]))]


def published(doctorates: NDArray[np.bool_]) -> list[Indices]:
    """Return the people that the two clients train on in the code behind FedMGDA+'s Table 7 (watml/Fed-MGDA, adult/).

    It numbers people from 1 and later counts them from 0, so that its PhD client has the person on the line after each
    doctorate. It keeps these numbers in Python sets, and trains on the first four fifths in a set's own order. That is
    ascending for the larger client, and by the number modulo `SLOTS` for the smaller one.

    Parameters
    ----------
    doctorates
        Whether each person of adult.data has a doctorate, shape (n,).
    """
    numbers = np.arange(1, len(doctorates) + 1)
    phd, others = numbers[doctorates], numbers[~doctorates]
    listed = (phd[np.argsort(phd % SLOTS, kind="stable")], others)
    used = (rows[: len(rows) * 4 // 5] for rows in listed)
    return [rows[rows < len(doctorates)] for rows in used]  # the last person has nobody on the next line


# The files ------------------------------------------------------------------------------------------------------------


def read(setup: Setup) -> tuple[People, People]:
    """Return the people of adult.data and of adult.test, downloaded from the UCI archive where they are not there.

    Raises
    ------
    FairbloomError
        When the files are missing and cannot be downloaded, or are something else.
    """
    info = TASKS["adult"]
    root = locate(info, setup, partial(fetch_from_uci, info))
    train, test = (read_people(root / file.path) for file in info.files)
    return train, test


def read_people(path: Path) -> People:
    """Return the people of a file in the format of adult.data.

    Raises
    ------
    FairbloomError
        When there are no people, a line has another number of columns, or a column has an unknown category.
    """
    rows = []
    with path.open(newline="", encoding="ascii", errors="replace") as lines:
        for number, row in enumerate(csv.reader(lines, skipinitialspace=True), 1):
            if not row or row[0].startswith("|"):  # adult.test begins with a remark, and both files end in empty lines
                continue
            if len(row) != len(COLUMNS):
                raise FairbloomError(f"{path}: line {number} has {len(row)} values, and Adult has {len(COLUMNS)}")
            rows.append(row)
    if not rows:
        raise FairbloomError(f"{path} has no people: put the original in its place")
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    categories = {name: _look_up(path, name, columns[name], (*known, UNKNOWN)) for name, known in CATEGORIES.items()}
    one_hot = [np.eye(len(CATEGORIES[name]) + 1, dtype=np.float32)[each, :-1] for name, each in categories.items()]
    incomes = [word.rstrip(".") for word in columns["income"]]
    return People(np.concatenate(one_hot, axis=1), _look_up(path, "income", incomes, INCOMES), categories)


def _look_up(path: Path, column: str, words: Sequence[str], known: tuple[str, ...]) -> Labels:
    """Return the place of each word among those that are known."""
    places = {word: place for place, word in enumerate(known)}
    if unknown := set(words) - places.keys():
        raise FairbloomError(f"{path}: {column} = {min(unknown)!r}, and Adult has {', '.join(known)}")
    return np.array([places[word] for word in words], np.int64)
