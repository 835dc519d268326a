"""Adult: 48,842 people of the US census of 1994, and whether they earn more than 50,000 dollars a year.

An example is the eight columns of categories, one-hot: 99 binary inputs. Ages, hours and gains are left out, and the
clients are people with a doctorate and those without, as in AFL, q-FFL and FedMGDA+.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import compute

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import split_names

from ..groups import OTHER, parse_groups
from ..known import TASKS
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
from ..preprocessing import CATEGORY, TABLE, InputColumn, Preprocessing
from ..task import Setup, Splits, Task
from .classification import classify, numbered
from .store import locate
from .uci import UNKNOWN, read_table

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

INCOMES = ("<=50K", ">50K")
"""The classes; adult.test writes a dot after them."""

PHD = "phd"
"""The partition, and the client, of people with a doctorate."""

SLOTS = 2048
"""The slots of the hash table of a Python set of 413 numbers, which decide the order of iteration."""


class People(NamedTuple):
    """The people of one file, or of several.

    `targets` are 1 above 50,000 dollars, shape (n,); `categories` has, by column, each one's place in `CATEGORIES`, or
    the place after the last where it is unknown, shape (n,).
    """

    targets: Labels
    categories: dict[str, Labels]

    def inputs(self, columns: Sequence[str]) -> NDArray[np.float32]:
        """Return the categories of some columns as 0 or 1, shape (n, number of categories); none where unknown."""
        return np.concatenate(
            [np.eye(len(CATEGORIES[name]) + 1, dtype=np.float32)[self.categories[name], :-1] for name in columns],
            axis=1,
        )

    @property
    def doctorates(self) -> NDArray[np.bool_]:
        """Whether each has a doctorate, shape (n,)."""
        doctorate = CATEGORIES["education"].index("Doctorate")
        return np.equal(self.categories["education"], doctorate)


def load(setup: Setup, *, groups: str, group: str, left_out: str) -> Task:
    """Return the task, with adult.test as the test set, which is split into the same groups as adult.data."""
    if groups == "published" and setup.partition != PHD:
        raise FairbloomError(
            f"adult.groups = 'published': it says who is a client of partition = {PHD}; leave it out with partition = "
            f"{setup.partition}"
        )
    names = _find_names(setup)
    grouped, columns = _find_grouped(group), _find_inputs(left_out)

    @cache
    def dealt() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Dealt]]:
        train, test = map(read_people, locate(TASKS["adult"], setup))
        parts = _deal(train, test, setup, names, groups)
        beyond = [Dealt(each.examples, each.tested + len(train.targets)) for each in parts]
        inputs = torch.from_numpy(np.concatenate([each.inputs(columns) for each in (train, test)]))
        targets = torch.from_numpy(np.concatenate([train.targets, test.targets]))
        places = [np.concatenate([by.places(each) for each in (train, test)]) for by in grouped]
        members = torch.from_numpy(np.stack(places, axis=1)) if places else None
        return inputs, targets, members, dict(zip(names, beyond, strict=True))

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
        columns=tuple(InputColumn(name, CATEGORY, CATEGORIES[name], fill=True) for name in columns),
        ignored=tuple(name for name in COLUMNS[:-1] if name not in columns),
        target=COLUMNS[-1],
        classes=INCOMES,
    )
    return replace(
        classify(setup, names, (preprocessing.width,), numbered(len(INCOMES)), splits, rows_of),
        groupings={by.name: (*by.groups, OTHER) for by in grouped},
        group_scores=group_scores_of_classes(len(INCOMES)) if grouped else {},
        preprocessing=lambda client: preprocessing,
    )


class Grouping(NamedTuple):
    """One way to group people: by each category of a column or, if `category` is set, by that one or not."""

    column: str
    category: str

    @property
    def name(self) -> str:
        """What the grouping is called: "race", or "race=White"."""
        return f"{self.column}={self.category}" if self.category else self.column

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return (f"not {self.category}", self.category) if self.category else CATEGORIES[self.column]

    def places(self, people: People) -> Labels:
        """Return the place of each one's group, that after the last where the category is not known."""
        known, found = CATEGORIES[self.column], people.categories[self.column]
        if not self.category:
            return found
        return np.where(found == len(known), len(self.groups), found == known.index(self.category)).astype(np.int64)


def _find_grouped(group: str) -> tuple[Grouping, ...]:
    words = split_names(group)
    of_one = [re.fullmatch(r"([^<>=]+)=([^<>=]+)", word) for word in words]
    pairs = [
        (each[1].strip(), each[2].strip()) if each else (word, "") for each, word in zip(of_one, words, strict=True)
    ]
    for named in parse_groups("adult.group", ",".join(column for column, _ in pairs)):
        _check_column("adult.group", named.name, "people are grouped by the categories of a column")
    found = tuple(Grouping(*pair) for pair in pairs)
    for by in found:
        if by.category and by.category not in CATEGORIES[by.column]:
            raise FairbloomError(
                f"adult.group = {by.name}: {did_you_mean(by.category, CATEGORIES[by.column])}the categories are "
                f"{', '.join(CATEGORIES[by.column])}"
            )
    return found


def _find_inputs(left_out: str) -> tuple[str, ...]:
    without = split_names(left_out)
    for column in without:
        _check_column("adult.left-out", column, "columns of categories alone are inputs")
    if not set(without) < set(CATEGORIES):
        raise FairbloomError(f"adult.left-out = {left_out!r} leaves no input: name fewer columns")
    return tuple(name for name in CATEGORIES if name not in without)


def _check_column(key: str, column: str, reason: str) -> None:
    if column not in CATEGORIES:
        raise FairbloomError(
            f"{key} = {column!r}: {reason}: {did_you_mean(column, CATEGORIES)}there are {', '.join(CATEGORIES)}"
        )


# Who belongs to which client ------------------------------------------------------------------------------------------


def _find_names(setup: Setup) -> tuple[str, ...]:
    """Return the clients' names, which need no data."""
    groups = (PHD, f"non-{PHD}") if setup.partition == PHD else CATEGORIES.get(setup.partition)
    return number_clients(setup.clients) if groups is None else name_clients(setup, groups)


def _deal(train: People, test: People, setup: Setup, names: Sequence[str], groups: str) -> list[Dealt]:
    if setup.partition not in (PHD, *CATEGORIES):
        return deal(train.targets, setup, test.targets)
    ours, tested = (_group(people, setup.partition, len(names)) for people in (train, test))
    if groups == "published":
        ours = published(train.doctorates)
    parts = list(map(Dealt, ours, tested))
    for name, part in zip(names, parts, strict=True):
        if len(part.examples) < MIN_EXAMPLES or not len(part.tested):
            raise FairbloomError(
                f"partition = {setup.partition!r}: client {name} would train on {len(part.examples)} people of "
                f"adult.data and be tested on {len(part.tested)} of adult.test; at least {MIN_EXAMPLES} and 1 are "
                "needed: take another partition"
            )
    return parts


def _group(people: People, partition: str, clients: int) -> list[Indices]:
    """Return the people of each client of a partition whose clients come with the data."""
    owners = np.where(people.doctorates, 0, 1) if partition == PHD else people.categories[partition]
    return [np.flatnonzero(owners == client) for client in range(clients)]


def published(doctorates: NDArray[np.bool_]) -> list[Indices]:
    """Return the people that the two clients train on in the code behind FedMGDA+'s Table 7 (watml/Fed-MGDA, adult/).

    It numbers people from 1 and later counts them from 0, so that its PhD client has the person on the line after each
    doctorate. It trains on the first four fifths of a Python set of these numbers, in the set's own order: ascending
    for the larger client, by the number modulo `SLOTS` for the smaller one.
    """
    numbers = np.arange(1, len(doctorates) + 1)
    phd, others = numbers[doctorates], numbers[~doctorates]
    listed = (phd[np.argsort(phd % SLOTS, kind="stable")], others)
    used = (rows[: len(rows) * 4 // 5] for rows in listed)
    return [rows[rows < len(doctorates)] for rows in used]  # the last person has nobody on the next line


# The files ------------------------------------------------------------------------------------------------------------


def read_people(path: Path) -> People:
    """Return the people of a file in the format of adult.data."""
    table = read_table(path, COLUMNS, pa.string())
    incomes = compute.utf8_rtrim(table.column("income"), ".")
    categories = {
        name: _look_up(path, name, table.column(name), (*known, UNKNOWN)) for name, known in CATEGORIES.items()
    }
    return People(_look_up(path, "income", incomes, INCOMES), categories)


def _look_up(path: Path, column: str, words: pa.ChunkedArray, known: Sequence[str]) -> Labels:
    """Return the places of words, with spaces around or without, among those that are known."""
    places = compute.index_in(compute.utf8_trim_whitespace(words), pa.array(known))
    if places.null_count:
        unknown = words.filter(compute.is_null(places))[0]
        raise FairbloomError(f"{path}: {column} = {str(unknown)!r}, and Adult has {', '.join(known)}")
    return places.to_numpy().astype(np.int64)  # type: ignore[no-any-return]
