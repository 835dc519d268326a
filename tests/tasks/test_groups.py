"""How users name groups, what each client says of its own, and on what all agree."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import split_names
from fairbloom.tables.groups import GroupBy, read_groups
from fairbloom.tasks import Examples, Splits, Task, find_task, load_task
from fairbloom.tasks.checks import guard_task
from tests.tables.helpers import Folder, load, refused_with, schema_with

from . import made, test_adult, test_heart_disease


def patients(rows: int, columns: str = "sex,age,target", first: int = 30, **values: Any) -> str:
    """Return a table of patients of whom each is a year older than the one before; women and men
    take turns."""
    of: dict[str, Any] = {
        "sex": lambda k: "FM"[k % 2],
        "target": lambda k: "01"[(k // 2) % 2],
    } | values
    of["age"] = values.get("age", lambda k: str(first + k))
    names = columns.split(",")
    return (
        "\n".join([columns, *(",".join(of[name](k) for name in names) for k in range(rows))]) + "\n"
    )


def named(task: Task, grouping: str, examples: Examples) -> list[str]:
    """Return the group of each example."""
    places = examples.group_places()
    assert places is not None
    column = list(task.groupings).index(grouping)
    return [task.groupings[grouping][place] for place in places[:, column].tolist()]


# How they are named -------------------------------------------------------------------------------


def test_a_setting_names_columns_and_numbers_that_divide_them() -> None:
    assert read_groups("groups", split_names("")) == ()
    by_sex, by_age = read_groups("groups", split_names(" sex, Age >= 60.5 "))
    assert (by_sex.name, by_sex.groups("FM")) == ("sex", ("F", "M"))
    assert (by_age, by_age.name, by_age.groups()) == (
        GroupBy("Age", ">=", 60.5),
        "Age>=60.5",
        (">=60.5", "<60.5"),
    )
    assert [
        by.groups() for by in read_groups("g", split_names("a>1,b<=-2,c<1234567890,race=White"))
    ] == [
        (">1", "<=1"),
        ("<=-2", ">-2"),
        ("<1234567890", ">=1234567890"),
        ("not White", "White"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age>=sixty", ("age>=60",)),
        ("age>=", ("age>=60",)),
        ("age>=nan", ("age>=60",)),
        ("age=", ("age>=60",)),
        ("age==60", ("age>=60",)),
        (">=60", ("age>=60",)),
        ("age>=60,age>=40", ("names the column 'age' twice", "name it once")),
        (",".join(f"c{k}" for k in range(11)), ("11 groupings", "10 are the most")),
    ],
)
def test_what_names_no_groups_is_refused_with_what_would_do(
    text: str, words: tuple[str, ...]
) -> None:
    with refused_with("groups = ", *words):
        read_groups("groups", split_names(text))


# What becomes of them -----------------------------------------------------------------------------

PATIENTS = """
target = "target"
groups = ["sex", "age>=50"]
missing = "fill"

[fields.sex]
type = "string"
categories = ["F", "M"]

[fields.age]
type = "number"

[fields.target]
type = "integer"
categories = [0, 1]
"""


@pytest.mark.parametrize(("client", "first"), [("a", 30), ("b", 20)])
def test_each_row_has_the_group_that_its_cells_say(folder: Folder, client: str, first: int) -> None:
    task = load(folder(a=patients(40), b=patients(40, first=20)), PATIENTS)
    assert task.groupings == {"sex": ("F", "M", None), "age>=50": (">=50", "<50", None)}
    splits = task.splits(client)
    parts = [splits.train, splits.test]
    assert sum(named(task, "sex", part).count("F") for part in parts) == 20
    old = sum(named(task, "age>=50", part).count(">=50") for part in parts)
    assert old == sum(first + k >= 50 for k in range(40))
    for part in parts:  # sex is an input as well: the first is F
        inputs, _ = part[slice(0, len(part))]
        assert [{1.0: "F", 0.0: "M"}[value] for value in inputs[:, 0].tolist()] == named(
            task, "sex", part
        )


def test_grouping_changes_no_input(folder: Folder) -> None:
    there = folder(a=patients(40), b=patients(40))
    plain = load(there, schema_with(('groups = ["sex", "age>=50"]\n', ""), text=PATIENTS))
    grouped = load(there, PATIENTS)
    without = load(there, schema_with(('["F", "M"]', '["F", "M"]\ninput = false'), text=PATIENTS))
    assert plain.groupings == {}
    assert plain.splits("a").train.groups is None
    (before, _), (after, _), (fewer, _) = (
        task.splits("a").test[:] for task in (plain, grouped, without)
    )
    assert torch.equal(before, after)
    assert (before.shape[1], fewer.shape[1]) == (3, 1)
    assert named(without, "sex", without.splits("a").test) == named(
        grouped, "sex", grouped.splits("a").test
    )


@pytest.mark.parametrize("grouping", ["sex", "age>=50"])
def test_a_row_without_a_value_is_among_the_others(folder: Folder, grouping: str) -> None:
    task = load(
        folder(a=patients(40).replace("F,32,", ",32,").replace("M,35,", "M,,"), b=patients(40)),
        PATIENTS,
    )
    splits = task.splits("a")
    assert sum(named(task, grouping, part).count(None) for part in (splits.train, splits.test)) == 1


def test_the_positive_class_is_the_second_or_the_named_one(folder: Folder) -> None:
    there = folder(a=patients(40), b=patients(40))
    assert load(there, PATIENTS).positive_place == 1
    assert (
        load(
            there,
            schema_with(('missing = "fill"', 'missing = "fill"\npositive = 0'), text=PATIENTS),
        ).positive_place
        == 0
    )


def test_a_quantity_has_its_error_in_groups(folder: Folder) -> None:
    there = folder(a=patients(40), b=patients(40))
    text = schema_with(
        ('target = "target"', 'target = "age"'), ('["sex", "age>=50"]', '["sex"]'), text=PATIENTS
    )
    task = load(
        there, schema_with(('"number"', '"number"\ncenter = 50.0\nscale = 10.0'), text=text)
    )
    assert [score.name for score in task.group_scores] == ["mae"]


# Known data sets ----------------------------------------------------------------------------------


def test_people_of_adult_are_grouped_by_categories(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    people = [
        test_adult.line_of(education, income, sex=sex, race=race)
        for education in ("Doctorate", "HS-grad")
        for sex, race in (
            ("Female", "White"),
            ("Male", "Black"),
            ("Male", "?"),
            ("Female", "White"),
        )
        for income in ("<=50K", ">50K")
    ]
    folder = test_adult.written(tmp_path, people, people)
    task = made.load("adult", folder, adult__group="race,sex")
    assert list(task.groupings) == ["race", "sex"]
    assert task.groupings["sex"] == ("Female", "Male", None)
    halved = made.load("adult", folder, adult__group="race=White")
    assert halved.groupings == {"race=White": ("not White", "White", None)}
    for of, grouping, expected in (
        (task, "sex", ["Female"] * 4 + ["Male"] * 4),
        (task, "race", ["Black"] * 2 + ["White"] * 4 + [None] * 2),
        (halved, "race=White", ["White"] * 4 + ["not White"] * 2 + [None] * 2),
    ):
        with subtests.test(of=of, grouping=grouping):
            assert Counter(named(of, grouping, of.splits("phd").test)) == Counter(expected)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *(
            (each, "adult.group = '.*': ")
            for each in ("age>=60", "gender", "gender=x", "sex=Male=1")
        ),
        *(
            ("race=Withe", "did you mean White"),
            ("race,race=White", "names the column 'race' twice"),
        ),
    ],
)
def test_a_group_that_adult_lacks_is_refused(wrong: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        load_task({"task": "adult", "adult.group": wrong})


WHITE = '"White, other",yes'

COMMAS = """
target = "target"
groups = ["race=White, other", "age, years>=40", "dose>5"]
[fields."age, years"]
type = "number"
[fields.race]
type = "string"
categories = ["Black", "White, other"]
[fields."dose>5"]
type = "string"
categories = ["no", "yes"]
[fields.target]
type = "integer"
categories = [0, 1]
"""


def test_groups_of_a_schema_are_not_split_at_commas(folder: Folder) -> None:
    lines = ['"age, years",race,dose>5,target']
    lines += [f"{30 + k},{('Black,no', WHITE)[k % 2]},{k % 2}" for k in range(20)]
    task = load(folder(a="\n".join(lines)), COMMAS)
    assert task.groupings == {
        "race=White, other": ("not White, other", "White, other", None),
        "age, years>=40": (">=40", "<40", None),
        "dose>5": ("no", "yes", None),
    }
    test = task.splits("a").test
    assert {*named(task, "race=White, other", test)} == {"White, other", "not White, other"}


def test_hospitals_patients_are_grouped_by_sex_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "heart-disease").mkdir()
    for file in find_task("heart-disease").files:
        (tmp_path / file.path).write_text(
            test_heart_disease.patients(20, 8, sex="0.0")
            + test_heart_disease.patients(20, 8, sex="1.0")
        )
    own = {"heart_disease__group": "sex,age>=50"}
    task = made.load("heart-disease", tmp_path, **own)  # type: ignore[arg-type]
    # who lacks a value is left out
    assert task.groupings == {"sex": ("female", "male"), "age>=50": (">=50", "<50")}
    splits = task.splits("cleveland")
    groups = [name for part in (splits.train, splits.test) for name in named(task, "sex", part)]
    assert (groups.count("female"), groups.count("male")) == (20, 20)
    old = [name for part in (splits.train, splits.test) for name in named(task, "age>=50", part)]
    assert old.count(">=50") == 20
    file = tmp_path / find_task("heart-disease").files[0].path
    file.write_text(file.read_text().replace(",0.0,", ",2.0,", 1))
    with pytest.raises(FairbloomError, match=r"'sex' holds '2\.0'"):
        made.load("heart-disease", tmp_path, **own, seed=1).splits("cleveland")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["num", "age", "gender", "age=60"])
def test_a_group_that_hospitals_lack_is_refused(wrong: str) -> None:
    with pytest.raises(FairbloomError, match=r"heart-disease.group = "):
        load_task({"task": "heart-disease", "heart-disease.group": wrong})


# Tasks of users -----------------------------------------------------------------------------------


def of_a_user(groups: object) -> Task:
    """Return a user's task of one client with examples in these groups, with the usual checks."""
    examples = Examples(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), groups=groups)  # type: ignore[arg-type]
    task = Task(
        clients=("a",),
        model=lambda: torch.nn.Linear(2, 2),
        loss=lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"),
        splits=lambda client: Splits(examples, examples),
        groupings={"sex": ("female", "male")},
    )
    return guard_task("mine:task", task)


def test_a_users_task_may_give_each_example_a_group() -> None:
    task = of_a_user(torch.tensor([[0], [1], [1], [0]]))
    assert named(task, "sex", task.splits("a").test) == ["female", "male", "male", "female"]
    assert [score.name for score in task.group_scores] == ["accuracy"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (None, r"shape \(4, 1\).* got NoneType"),
        (torch.zeros(4, 1), "got torch.float32"),
        (torch.zeros(4, dtype=torch.int64), r"of shape \(4,\)"),
        (torch.tensor([[0], [1], [2], [0]]), "groups by sex .* 0 to 1, got 1 of 4 outside"),
        (torch.tensor([[0], [1], [-1], [0]]), "got 1 of 4 outside"),
    ],
)
def test_a_users_task_with_impossible_groups_is_an_error(groups: Any, words: str) -> None:
    with pytest.raises(
        FairbloomError, match=f"'mine:task': the training examples of client a.*{words}"
    ):
        of_a_user(groups).splits("a")
