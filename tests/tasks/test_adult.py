"""Adult: the people of the census, as the clients of AFL's, q-FFL's and FedMGDA+'s experiments."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets.adult import CATEGORIES, COLUMNS, INCOMES, published, read_people
from fairbloom.tasks.task import Examples
from tests.originals import needs

from .made import everything, load

ORIGINALS = needs("adult/adult.data")


def line_of(education: str = "HS-grad", income: str = "<=50K", **others: str) -> str:
    """Return a line of adult.data."""
    chosen = {name: known[0] for name, known in CATEGORIES.items()} | {"education": education} | others
    return ", ".join([chosen.get(column, "1") for column in COLUMNS[:-1]] + [income])


def written(folder: Path, train: Sequence[str], test: Sequence[str]) -> Path:
    """Write lines as the UCI archive has them: adult.test begins with a remark, and has dots after its labels."""
    (folder / "adult").mkdir()
    (folder / "adult" / "adult.data").write_text("\n".join(train) + "\n\n")
    dotted = [f"{line}." for line in test]
    (folder / "adult" / "adult.test").write_text("\n".join(["|1x3 Cross validator", *dotted]) + "\n\n")
    return folder


def people_of(examples: Examples) -> Counter[bytes]:
    """Return how often each pair of inputs and target occurs."""
    inputs, targets = everything(examples)
    return Counter(row.tobytes() for row in torch.cat([inputs, targets[:, None]], dim=1).numpy())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a data folder of forty people to train on, every fourth with a doctorate, and four to be tested on."""
    train = [
        line_of("Doctorate" if i % 4 == 0 else "HS-grad", INCOMES[i % 3 == 0], sex=("Female", "Male")[i % 2])
        for i in range(40)
    ]
    test = [line_of("Doctorate", ">50K"), line_of(), line_of(sex="Male"), line_of(income=">50K")]
    return written(tmp_path, train, test)


# The files ------------------------------------------------------------------------------------------------------------


def test_an_example_has_one_input_of_each_known_category(tmp_path: Path) -> None:
    path = tmp_path / "people"
    path.write_text("\n".join([line_of("Doctorate", ">50K", sex="Male"), line_of(occupation="?", workclass="?")]))
    people = read_people(path)
    ends = dict(zip(CATEGORIES, np.cumsum([len(known) for known in CATEGORIES.values()]), strict=True))
    inputs = people.inputs([*CATEGORIES])
    assert inputs.shape == (2, 99)
    assert inputs.sum(axis=1).tolist() == [8, 6]
    assert inputs[0, 8 + 13] == 1  # where the code of q-FFL and FedMGDA+ looks for a doctorate
    assert inputs[0, ends["sex"] - 1] == 1
    assert not inputs[1, : ends["workclass"]].any()
    assert people.targets.tolist() == [1, 0]
    assert people.doctorates.tolist() == [True, False]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people"
    for lines, words in (
        ([line_of(), "25, Private, 226802"], ("Expected 15", "got 3")),
        ([line_of(), line_of("PhD")], ("education = ", "PhD", "Doctorate")),
        ([line_of(income="50K")], ("income = ", "50K", "<=50K")),
        (["|1x3 Cross validator"], ()),
    ):
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(FairbloomError) as refusal:
            read_people(path)
        assert all(word in str(refusal.value) for word in (str(path), *words)), refusal.value


# The clients ----------------------------------------------------------------------------------------------------------


def test_clients_are_tested_on_their_group_of_the_test_set(small: Path) -> None:
    task = load("adult", small)
    sizes = {name: (len(task.splits(name).train), len(task.splits(name).test)) for name in task.clients}
    assert sizes == {"phd": (10, 1), "non-phd": (30, 3)}
    assert everything(task.splits("phd").test)[1].tolist() == [1]  # whatever remark and dots the file has
    assert everything(task.splits("non-phd").test)[1].tolist() == [0, 0, 1]


def test_validation_people_are_taken_from_the_training_set(small: Path) -> None:
    splits = load("adult", small, validation_share=0.2).splits("phd")
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (8, 2, 1)
    assert people_of(splits.train) + people_of(splits.validation) == people_of(load("adult", small).splits("phd").train)


def test_what_the_people_do_not_allow_is_refused(small: Path) -> None:
    for settings, words in (
        ({"partition": "sex", "clients": 7}, r"clients = 7.*sex.*2 clients"),
        ({"partition": "race"}, r"Asian-Pac-Islander.*0 people of adult.data"),
        ({"partition": "sex", "adult__groups": "published"}, r"adult.groups = 'published'.*partition = phd"),
        ({"adult__left_out": "rase"}, "adult.left-out = 'rase'.*race"),
        ({"adult__left_out": "age"}, "adult.left-out = 'age'"),
        ({"adult__left_out": ",".join(CATEGORIES)}, "adult.left-out = "),
    ):
        with pytest.raises(FairbloomError, match=words):
            load("adult", small, **settings).splits("White")  # type: ignore[arg-type]


def test_columns_that_are_left_out_are_no_inputs(small: Path) -> None:
    whole, without = load("adult", small), load("adult", small, adult__left_out="race,education")
    kept = [k for k, name in enumerate(n for n, known in CATEGORIES.items() for _ in known) if name not in LEFT_OUT]
    for client in whole.clients:
        for split in ("train", "test"):
            inputs, targets = everything(getattr(whole.splits(client), split))
            fewer, same = everything(getattr(without.splits(client), split))
            torch.testing.assert_close(fewer, inputs[:, kept], rtol=0, atol=0)
            torch.testing.assert_close(same, targets)
    assert without.model()(torch.zeros(1, len(kept))).shape == (1, 2)
    preprocessing = without.preprocessing("") if without.preprocessing else None
    assert preprocessing is not None
    assert [column.name for column in preprocessing.columns] == [name for name in CATEGORIES if name not in LEFT_OUT]
    assert set(preprocessing.ignored) >= LEFT_OUT


LEFT_OUT = {"race", "education"}


# FedMGDA+'s Table 7 ---------------------------------------------------------------------------------------------------


def in_set_order(doctorates: NDArray[np.bool_]) -> list[set[int]]:
    """Return whom the two clients of the published code train on, by Python sets themselves."""
    numbers = np.arange(1, len(doctorates) + 1)
    listed = (list(set(numbers[mine].tolist())) for mine in (doctorates, ~doctorates))
    return [set(rows[: int(0.8 * len(rows))]) for rows in listed]


def test_published_groups_are_in_nearly_any_python_sets_order() -> None:
    doctorates = np.zeros(32561, bool)
    doctorates[np.random.default_rng(0).permutation(32561)[:413]] = True
    phd, others = published(doctorates)
    assert doctorates[phd - 1].all()
    assert not doctorates[others - 1].any()
    of_phd, of_others = in_set_order(doctorates)
    assert set(others.tolist()) == of_others
    assert len(set(phd.tolist()) ^ of_phd) <= 4  # numbers that share a slot of the hash table may be listed otherwise


@ORIGINALS
def test_published_groups_are_four_fifths_of_python_sets() -> None:
    doctorates = read_people(Path(os.environ["FAIRBLOOM_DATA"], "adult", "adult.data")).doctorates
    assert [set(rows.tolist()) for rows in published(doctorates)] == in_set_order(doctorates)


def test_nobody_stands_on_the_line_after_the_last() -> None:
    doctorates = np.array([False] * 9 + [True] * 5)
    assert max(map(max, published(doctorates))) < len(doctorates)


@ORIGINALS
def test_the_real_clients_have_as_many_people_as_the_papers_say() -> None:
    described, as_published = load("adult"), load("adult", adult__groups="published")
    sizes = {name: tuple(map(len, described.splits(name))) for name in described.clients}
    assert sizes == {"phd": (413, 181), "non-phd": (32148, 16100)}
    sizes = {name: tuple(map(len, as_published.splits(name))) for name in as_published.clients}
    assert sizes == {"phd": (330, 181), "non-phd": (25718, 16100)}
    for name in described.clients:
        assert people_of(described.splits(name).test) == people_of(as_published.splits(name).test)


@ORIGINALS
def test_the_published_phd_client_has_hardly_a_phd() -> None:
    doctorate = 8 + 13
    for groups, share in (("described", 1.0), ("published", 3 / 330)):
        inputs, _ = everything(load("adult", adult__groups=groups).splits("phd").train)
        assert inputs[:, doctorate].mean().item() == pytest.approx(share)


@ORIGINALS
def test_all_real_people_of_a_known_group_are_with_one_client() -> None:
    for partition in ("education", "race", "sex"):
        task = load("adult", partition=partition)
        sizes = np.array([[len(split) for split in task.splits(name)] for name in task.clients])
        assert sizes.sum(axis=0).tolist() == [32561, 16281]
        assert sizes.min() >= 32
