"""Adult: the people of the census, as the clients of AFL's, q-FFL's and FedMGDA+'s experiments."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets.adult import CATEGORIES, COLUMNS, INCOMES, published
from tests.originals import needs
from tests.tables.helpers import refused_with

from .made import everything, load

ORIGINALS = needs("adult/adult.data")


def line_of(education: str = "HS-grad", income: str = "<=50K", **others: str) -> str:
    chosen = (
        {name: known[0] for name, known in CATEGORIES.items()} | {"education": education} | others
    )
    return ", ".join([chosen.get(column, "1") for column in COLUMNS[:-1]] + [income])


def written(folder: Path, train: Sequence[str], test: Sequence[str]) -> Path:
    """Write lines as the UCI archive has them: adult.test begins with a remark, and has dots after
    its labels."""
    (folder / "adult").mkdir()
    (folder / "adult" / "adult.data").write_text("\n".join(train) + "\n\n")
    (folder / "adult" / "adult.test").write_text(
        "\n".join(["|1x3 Cross validator", *[f"{line}." for line in test]]) + "\n\n"
    )
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a data folder of forty people to train on, every fourth with a doctorate, and four to
    be tested on."""
    train = [
        line_of(
            "Doctorate" if i % 4 == 0 else "HS-grad",
            INCOMES[i % 3 == 0],
            sex=("Female", "Male")[i % 2],
        )
        for i in range(40)
    ]
    test = [line_of("Doctorate", ">50K"), line_of(), line_of(sex="Male"), line_of(income=">50K")]
    return written(tmp_path, train, test)


# The files ----------------------------------------------------------------------------------------


def test_an_example_has_one_input_of_each_known_category(tmp_path: Path) -> None:
    people = [
        *[line_of("Doctorate", ">50K", sex="Male")] * 5,
        *[line_of(occupation="?", workclass="?")] * 5,
    ]
    task = load("adult", written(tmp_path, people, people))
    (known, rich), (unknown, poor) = (
        everything(task.splits(client).test) for client in ("phd", "non-phd")
    )
    assert known.shape == unknown.shape == (5, 99)
    assert known.sum(dim=1).tolist() == [8] * 5
    assert unknown.sum(dim=1).tolist() == [6] * 5
    ends = dict(
        zip(CATEGORIES, np.cumsum([len(known) for known in CATEGORIES.values()]), strict=True)
    )
    assert known[0, 8 + 13] == known[0, ends["sex"] - 1] == 1
    assert not unknown[:, : ends["workclass"]].any()
    assert (rich.tolist(), poor.tolist()) == ([1] * 5, [0] * 5)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line_of(), "25, Private, 226802"], ("Expected 15", "got 3")),
        ([line_of(), line_of("PhD")], ("row 2", "'education'", "PhD")),
        ([line_of(income="50K")], ("'income'", "50K", "<=50K")),
        ([line_of(income="?")], ("'income'", "no value")),
        (["|1x3 Cross validator"], ()),
    ],
)
def test_a_file_of_another_format_is_refused(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    written(tmp_path, [line_of()] * 9, [line_of()])
    path = tmp_path / "adult" / "adult.data"
    path.write_text("\n".join(lines) + "\n")
    with refused_with(str(path), *words):
        load("adult", tmp_path).splits("phd")


# The clients --------------------------------------------------------------------------------------


def test_clients_are_tested_on_their_group_of_the_test_set(small: Path) -> None:
    task = load("adult", small)
    assert {
        name: (len(task.splits(name).train), len(task.splits(name).test)) for name in task.clients
    } == {"phd": (10, 1), "non-phd": (30, 3)}
    # whatever remark and dots the file has
    assert everything(task.splits("phd").test)[1].tolist() == [1]
    assert everything(task.splits("non-phd").test)[1].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition": "sex", "clients": 7}, r"clients = 7.*sex.*2 clients"),
        ({"partition": "race"}, r"Asian-Pac-Islander.*0 people of adult.data"),
        (
            {"partition": "sex", "adult__groups": "published"},
            r"adult.groups = 'published'.*partition = phd",
        ),
        ({"adult__left_out": "rase"}, "adult.left-out = 'rase'.*race"),
        ({"adult__left_out": "age"}, "adult.left-out = 'age'"),
        ({"adult__left_out": ",".join(CATEGORIES)}, "adult.left-out = "),
    ],
)
def test_what_the_people_do_not_allow_is_refused(
    small: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        load("adult", small, **settings).splits("White")  # type: ignore[arg-type]


def test_columns_that_are_left_out_are_no_inputs(small: Path) -> None:
    whole = load("adult", small)
    without = load("adult", small, adult__left_out="race,education")
    kept = [
        k
        for k, name in enumerate(n for n, known in CATEGORIES.items() for _ in known)
        if name not in LEFT_OUT
    ]
    for client in whole.clients:
        for split in ("train", "test"):
            inputs, targets = everything(getattr(whole.splits(client), split))
            fewer, same = everything(getattr(without.splits(client), split))
            torch.testing.assert_close(fewer, inputs[:, kept], rtol=0, atol=0)
            torch.testing.assert_close(same, targets)
    assert without.model()(torch.zeros(1, len(kept))).shape == (1, 2)
    preprocessing = without.preprocessing("") if without.preprocessing else None
    assert preprocessing is not None
    assert [column.name for column in preprocessing.columns] == [
        name for name in CATEGORIES if name not in LEFT_OUT
    ]
    assert set(preprocessing.ignored) >= LEFT_OUT


LEFT_OUT = {"race", "education"}


# FedMGDA+'s Table 7 -------------------------------------------------------------------------------


@pytest.mark.slow
def test_published_groups_are_in_nearly_any_python_sets_order(subtests: pytest.Subtests) -> None:
    """Numbers that share a slot of the hash table may be listed otherwise.

    Slow, because the order of a set belongs to the Python that runs.
    """
    doctorates = np.zeros(32561, bool)
    doctorates[np.random.default_rng(0).permutation(32561)[:413]] = True
    for rows, people, unlike in zip(
        published(*map(np.flatnonzero, (doctorates, ~doctorates))),
        (doctorates, ~doctorates),
        (4, 0),
        strict=True,
    ):
        with subtests.test(rows=rows, people=people):
            listed = list(set((np.flatnonzero(people) + 1).tolist()))
            assert len({*rows.tolist()} ^ {*listed[: int(0.8 * len(listed))]}) <= unlike
            assert people[rows - 1].all()


def test_the_line_after_the_last_person_is_left_out() -> None:
    assert max(map(max, published(np.arange(9, 14), np.arange(9)))) < 14


@ORIGINALS
@pytest.mark.parametrize(
    ("groups", "phd", "others", "share"),
    [
        ("described", 413, 32148, 1.0),
        ("published", 330, 25718, 3 / 330),
    ],
)
def test_the_real_clients_have_as_many_people_as_the_papers_say(
    groups: str, phd: int, others: int, share: float
) -> None:
    task = load("adult", adult__groups=groups)
    sizes = {name: tuple(map(len, task.splits(name))) for name in task.clients}
    assert sizes == {"phd": (phd, 181), "non-phd": (others, 16100)}
    # where the code of q-FFL and FedMGDA+ looks for a doctorate:
    inputs, _ = everything(task.splits("phd").train)
    assert inputs[:, 8 + 13].mean().item() == pytest.approx(share)


@ORIGINALS
@pytest.mark.parametrize("partition", ["education", "race", "sex"])
def test_all_real_people_of_a_known_group_are_with_one_client(partition: str) -> None:
    task = load("adult", partition=partition)
    sizes = np.array([[len(split) for split in task.splits(name)] for name in task.clients])
    assert sizes.sum(axis=0).tolist() == [32561, 16281]
    assert sizes.min() >= 32
