"""Heart disease: four hospitals, prepared and split as in FLamby."""

import os
from dataclasses import replace
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch

from fairbloom.client.local import find_client_key
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.tasks import TASKS, load_task
from fairbloom.tasks.datasets.heart_disease import (
    COLUMNS,
    INPUTS,
    NUMBERS,
    encode_patients,
    read_patients,
)
from fairbloom.tasks.task import Examples
from tests.originals import needs
from tests.tables.helpers import refused_with

from .made import everything, load

DATA = Path(os.environ.get("FAIRBLOOM_DATA", ""), "heart-disease")

ORIGINALS = needs("heart-disease/processed.va.data")

# The patients that each hospital trains on and is tested on in FLamby's documentation.
FLAMBY = {
    "cleveland": (199, 104),
    "hungarian": (172, 89),
    "switzerland": (30, 16),
    "long-beach": (85, 45),
}

# Sums over the test patients that FLamby's own code returns, the first input once, the second
# twice, and so on.
FLAMBYS_SUMS = {
    "cleveland": -12.204,
    "hungarian": 460.386,
    "switzerland": 123.887,
    "long-beach": -155.405,
}


def line_of(**values: str) -> str:
    usual = dict.fromkeys(COLUMNS, "1.0") | {"age": "63.0", "num": "0"}
    return ",".join((usual | values).values())


def patients(number: int, sick: int, **values: str) -> str:
    """Return the lines of patients of different ages; the first `sick` of them are sick."""
    return "".join(
        line_of(age=f"{40 + i}", num=str(int(i < sick)), **values) + "\n" for i in range(number)
    )


def ages(examples: Examples) -> list[float]:
    """Return the standardised ages, which tell made-up patients apart."""
    return sorted(everything(examples)[0][:, 0].tolist())


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Return a data folder in which Cleveland has thirty patients, a third of them sick; the other
    hospitals have no file."""
    (tmp_path / "heart-disease").mkdir()
    (tmp_path / "heart-disease" / "processed.cleveland.data").write_text(patients(30, 10))
    return tmp_path


# The files ----------------------------------------------------------------------------------------


def test_an_example_has_numbers_and_categories_but_the_first(tmp_path: Path) -> None:
    path = tmp_path / "patients"
    path.write_text(
        "\n".join([line_of(cp="1"), line_of(cp="4", restecg="2", num="3"), line_of(restecg="0")])
    )
    inputs, targets = encode_patients(read_patients(path))
    assert inputs.shape == (3, INPUTS) == (3, 13)
    assert NUMBERS == ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
    assert inputs[:, :8].tolist() == [[63, 1, 1, 1, 1, 1, 1, 1]] * 3
    assert inputs[:, 8:].tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]
    assert targets.tolist() == [0, 1, 0]


def test_patients_without_a_value_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "patients"
    path.write_text(
        "\n".join(
            [
                line_of(chol="?"),
                line_of(slope="?", ca="?", thal="?", age="50"),
                line_of(restecg="?"),
            ]
        )
    )
    assert read_patients(path)["age"].tolist() == [50]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line_of(), "63,1,1"], ("Expected 14", "got 3")),
        ([line_of(chol="high")], ("high",)),
        ([line_of(), line_of(age="inf")], ("row 2", "'age'", "inf")),
        ([line_of(cp="5")], ("row 1", "'cp'", "1, 2, 3, 4")),
        ([line_of(chol="?")], ("no patient",)),
    ],
)
def test_a_file_of_another_format_is_refused(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    path = tmp_path / "patients"
    path.write_text("\n".join(lines) + "\n")
    with refused_with(str(path), *words):
        read_patients(path)


# What a server, and a hospital, need --------------------------------------------------------------


@ORIGINALS
def test_a_hospital_needs_no_file_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "heart-disease").mkdir()
    copy(DATA / "processed.switzerland.data", tmp_path / "heart-disease")
    alone, among_others = (
        [*map(everything, load("heart-disease", place).splits("switzerland"))]
        for place in (tmp_path, None)
    )
    torch.testing.assert_close(alone, among_others, rtol=0, atol=0)


def test_a_hospital_whose_file_is_not_its_own_says_which(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = TASKS["heart-disease"]
    # no server is at this address
    files = [file._replace(address="http://127.0.0.1:9") for file in info.files]
    monkeypatch.setitem(TASKS, info.name, replace(info, files=tuple(files)))
    task = load("heart-disease", made_up)
    assert len(task.splits("cleveland").train) == 19
    with pytest.raises(
        FairbloomError, match=r"processed.hungarian.data is not in .* cannot be downloaded"
    ):
        task.splits("hungarian")
    with pytest.raises(
        FairbloomError, match=r"processed.cleveland.data is not the original of heart-disease"
    ):
        load("heart-disease", made_up, verify_data=True).splits("cleveland")


# Who is trained on --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_sick_and_healthy_patients_are_split_alike(made_up: Path, seed: int) -> None:
    train, test = (
        everything(part)[1]
        for part in load("heart-disease", made_up, seed=seed).splits("cleveland")
    )
    assert (len(train), len(test)) == (19, 11)
    assert (int(train.sum()), int(test.sum())) == (6, 4)


def test_too_few_healthy_patients_are_split_by_chance(made_up: Path) -> None:
    (made_up / "heart-disease" / "processed.cleveland.data").write_text(patients(30, 28))
    splits = [load("heart-disease", made_up, seed=seed).splits("cleveland") for seed in range(20)]
    assert {int((everything(each.test)[1] == 0).sum()) for each in splits} == {0, 1, 2}


def test_the_seed_draws_the_split_unless_a_random_state_is_named(made_up: Path) -> None:
    def tested(**settings: Value) -> list[float]:
        return ages(load("heart-disease", made_up, **settings).splits("cleveland").train)

    assert tested(seed=0) == tested(seed=0) != tested(seed=1)
    assert (
        tested(heart_disease__split=43)
        == tested(heart_disease__split=43, seed=1)
        != tested(heart_disease__split=44)
    )


@pytest.mark.parametrize("seed", range(5))
def test_inputs_are_standardised_by_training_patients(made_up: Path, seed: int) -> None:
    with (made_up / "heart-disease" / "processed.cleveland.data").open("a") as file:
        # alone in its category, so a constant where it is tested on
        file.write(line_of(age="70", cp="3"))
    train, _ = everything(load("heart-disease", made_up, seed=seed).splits("cleveland").train)
    test, _ = everything(load("heart-disease", made_up, seed=seed).splits("cleveland").test)
    assert train[:, 0].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert train[:, 0].std().item() == pytest.approx(1.0, rel=1e-6)
    assert not train[:, 1:8].any()
    assert test.abs().max() < 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 5}, r"clients = 5.*hospital has 4 clients"),
        ({"test_share": 0.3}, r"test-share = 0.3.*34%"),
        ({"partition": "iid"}, r"partition = 'iid'.*hospital"),
        ({"heart_disease__split": -1}, r"heart-disease.split = -1.*4294967295"),
    ],
)
def test_what_the_data_decide_is_no_choice(settings: dict[str, object], words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        load("heart-disease", **settings)  # type: ignore[arg-type]


# FLamby's numbers ---------------------------------------------------------------------------------


@ORIGINALS
def test_hospitals_have_as_many_patients_as_flamby_says() -> None:
    files = [DATA.parent / file.path for file in TASKS["heart-disease"].files]
    sick = [encode_patients(read_patients(file))[1] for file in files]
    assert [(len(each), int(each.sum())) for each in sick] == [
        (303, 139),
        (261, 98),
        (46, 45),
        (130, 101),
    ]


@ORIGINALS
@pytest.mark.parametrize("split", [0, 43])
def test_parts_have_as_many_patients_as_flamby_says(split: int) -> None:
    task = load("heart-disease", heart_disease__split=split)
    assert {name: tuple(map(len, task.splits(name))) for name in task.clients} == FLAMBY


@ORIGINALS
def test_the_examples_are_flambys() -> None:
    task = load("heart-disease", heart_disease__split=43)
    sums = {name: everything(task.splits(name).test) for name in task.clients}
    assert [int(sums[name][1].sum()) for name in task.clients] == [48, 33, 15, 35]
    weights = np.arange(1, INPUTS + 1)
    assert {
        name: float((inputs.numpy() @ weights).sum()) for name, (inputs, _) in sums.items()
    } == pytest.approx(FLAMBYS_SUMS, rel=1e-4)


@pytest.mark.parametrize(
    ("partition", "name", "client"),
    [
        (0, "switzerland", "switzerland"),
        (2, "ward-9", "switzerland"),
        (1, None, "hungarian"),
    ],
)
def test_a_device_that_has_a_hospitals_name_is_that_hospital(
    partition: int, name: str | None, client: str
) -> None:
    settings = Settings.of({"task": "heart-disease"})
    assert find_client_key(settings, load_task(settings), partition, name) == client
