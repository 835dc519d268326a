"""What all data sets of images do: classes that are kept, sets that clients are tested on, pixels, and shifts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS, Task, load_task
from fairbloom.tasks.datasets.pictures import PICTURES
from fairbloom.tasks.datasets.pictures.album import Album, Pictures, Shifts, shift, task_of
from fairbloom.tasks.task import Examples, Setup

from . import made

NAMES = ("circle", "square", "star")

LABELS, TESTED = np.array([0, 1, 2] * 20), np.array([2, 1, 0] * 8)

IMAGES = np.arange(60 * 2 * 4 * 4).reshape(60, 2, 4, 4).astype(np.uint16)
TESTED_IMAGES = 10_000 + np.arange(24 * 2 * 4 * 4).reshape(24, 2, 4, 4).astype(np.uint16)
BRIGHTEST = 20_000.0

NO_SHIFT = Shifts(0, 0, 0)


def album(reading: list[Setup] | None = None) -> Album:
    """Return small images of three shapes, no two of which are alike."""

    def read(setup: Setup) -> Pictures:
        if reading is not None:
            reading.append(setup)
        return Pictures(IMAGES, LABELS, TESTED_IMAGES, TESTED)

    return Album("shapes", (2, 4, 4), NAMES, BRIGHTEST, read)


def setup_of(**others: Any) -> Setup:
    return replace(Setup.of({"model": "logistic", "clients": 4, "partition": "iid"}), **others)


def task(shifts: Shifts = NO_SHIFT, *, own: dict[str, Any] | None = None, **general: Any) -> Task:
    return task_of(album(), setup_of(**general), shifts, **(own or {}))


def everything(examples: Examples) -> tuple[Tensor, Tensor]:
    return examples[0 : len(examples)]


def numbers(images: Tensor) -> list[int]:
    """Return which of the images these are, by their first pixels."""
    return (images[:, 0, 0, 0].double() * BRIGHTEST).round().long().tolist()


# What clients train on and are tested on ------------------------------------------------------------------------------


@pytest.mark.parametrize(("test", "count"), [("merged", 84), ("train", 60), ("official", 84)])
@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet", "class"])
def test_every_image_is_with_one_client_once(test: str, count: int, partition: str) -> None:
    clients = 0 if partition == "class" else 4
    made_of = task(own={"test": test}, partition=partition, clients=clients, validation_share=0.1)
    seen: Counter[int] = Counter()
    for name in made_of.clients:
        splits = made_of.splits(name)
        assert splits.validation is not None
        for split in (splits.train, splits.test, splits.validation):
            images, labels = everything(split)
            seen.update(numbers(images))
            for number, label in zip(numbers(images), labels.tolist(), strict=True):
                official = number >= 10_000
                assert label == (TESTED[(number - 10_000) // 32] if official else LABELS[number // 32])
                assert test != "official" or official == (split is splits.test)
    assert set(seen.values()) == {1}
    assert len(seen) == count


def test_each_client_of_partition_class_has_one_class() -> None:
    made_of = task(own={"test": "official"}, partition="class", clients=0)
    assert made_of.clients == NAMES
    for label, name in enumerate(NAMES):
        assert {label} == {target for split in made_of.splits(name) for target in everything(split)[1].tolist()}
        assert tuple(map(len, made_of.splits(name))) == (20, 8)


def test_a_clients_official_test_images_are_of_its_own_classes() -> None:
    made_of = task(own={"test": "official"}, partition="shards", clients=3, shards_per_client=1)
    for name in made_of.clients:
        trained, tested = (set(everything(split)[1].tolist()) for split in made_of.splits(name))
        assert trained == tested
        assert len(trained) == 1


def test_a_server_reads_no_image() -> None:
    reading: list[Setup] = []
    made_of = task_of(album(reading), setup_of(), Shifts(1, 1, 1))
    made_of.model()
    assert not reading
    for name in made_of.clients:
        made_of.splits(name)
    assert len(reading) == 1


def test_clients_share_one_copy_of_the_images() -> None:
    made_of = task()
    splits = [split for name in made_of.clients for split in made_of.splits(name)]
    assert len({split.inputs.data_ptr() for split in splits}) == 1


# Classes --------------------------------------------------------------------------------------------------------------


def test_classes_that_are_kept_are_renumbered_in_their_order() -> None:
    made_of = task(own={"classes": "2,0", "test": "official"}, partition="class", clients=0)
    assert made_of.clients == ("star", "circle")
    images, labels = everything(made_of.splits("star").train)
    assert set(labels.tolist()) == {0}
    assert {int(LABELS[number // 32]) for number in numbers(images)} == {2}
    assert made_of.model()(images).shape == (20, 2)


def test_pixels_are_standardised_over_all_classes() -> None:
    """The published numbers of three classes of Fashion-MNIST have mean and deviation over all its training images."""
    for standardise in ("channel", "pixel"):
        whole = task(own={"standardise": standardise}, partition="class", clients=0)
        kept = task(own={"standardise": standardise, "classes": "0,1"}, partition="class", clients=0)
        ours, theirs = (everything(made_of.splits("square").train)[0] for made_of in (kept, whole))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("classes", ["0", "0,0", "0,3", "-1,0", "0,,1", "circle,square", "0;1", ",", "00,1"])
def test_classes_that_are_none_are_refused(classes: str) -> None:
    with pytest.raises(FairbloomError, match=r"shapes.classes = .*: name two or more different classes .* from 0 to 2"):
        task(own={"classes": classes})


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_another_number_of_clients_than_of_classes_is_refused(clients: int) -> None:
    with pytest.raises(FairbloomError, match=rf"clients = {clients}: .*3.*leave clients out"):
        task(partition="class", clients=clients)
    assert len(task(partition="class", clients=3).clients) == 3


# Pixels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["merged", "train", "official"])
def test_pixels_are_standardised_by_the_official_training_images(test: str) -> None:
    images = IMAGES.astype(np.float64)
    expected = {
        "none": IMAGES / BRIGHTEST,
        "channel": (images - images.mean((0, 2, 3), keepdims=True)) / images.std((0, 2, 3), keepdims=True),
        "pixel": (images - images.mean(0)) / (images.std(0) + 0.001),
    }
    rows = {number: row for row, number in enumerate(numbers(torch.from_numpy(IMAGES / BRIGHTEST)))}
    plain = task(own={"standardise": "none", "test": test})
    for standardise, wanted in expected.items():
        made_of = task(own={"standardise": standardise, "test": test})
        for name in made_of.clients:
            order = [rows.get(number) for number in numbers(everything(plain.splits(name).train)[0])]
            got, _ = everything(made_of.splits(name).train)
            assert got.dtype == torch.float32
            for row, image in zip(order, got.numpy(), strict=True):
                if row is not None:
                    np.testing.assert_allclose(image, wanted[row], rtol=1e-4, atol=1e-5)


def test_the_albums_images_are_left_unchanged() -> None:
    before = IMAGES.copy()
    for standardise in ("none", "channel", "pixel"):
        made_of = task(Shifts(2, 2, 2), own={"standardise": standardise})
        for name in made_of.clients:
            made_of.splits(name)
    np.testing.assert_array_equal(IMAGES, before)


# Shifts ---------------------------------------------------------------------------------------------------------------


def test_shifted_clients_have_their_own_images() -> None:
    plain = task(own={"standardise": "none"})
    for shifts, seen in (
        (Shifts(4, 0, 0), lambda images: torch.rot90(images, dims=(2, 3))),
        (Shifts(0, 0, 4), lambda images: images * 0.25),
    ):
        made_of = task(shifts, own={"standardise": "none"})
        for name in made_of.clients:
            for ours, theirs in zip(made_of.splits(name), plain.splits(name), strict=True):
                assert torch.equal(everything(ours)[1], everything(theirs)[1])
                torch.testing.assert_close(everything(ours)[0], seen(everything(theirs)[0]), rtol=0, atol=0)


def test_shifted_images_are_standardised_as_the_others_are() -> None:
    plain, made_of = (task(shifts, own={"standardise": "channel"}) for shifts in (NO_SHIFT, Shifts(4, 0, 0)))
    for name in made_of.clients:
        ours, theirs = (everything(each.splits(name).train)[0] for each in (made_of, plain))
        torch.testing.assert_close(ours, torch.rot90(theirs, dims=(2, 3)), rtol=0, atol=0)


def test_the_seed_draws_as_many_shifted_clients_as_asked_for() -> None:
    drawn = [Shifts(2, 3, 1).draw(album(), [f"{k}" for k in range(10)], seed) for seed in (0, 0, 1)]
    assert {kind: len(clients) for kind, clients in drawn[0].items()} == {"rotated": 2, "noisy": 3, "dimmed": 1}
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("kind", ["rotated", "noisy", "dimmed"])
def test_more_shifted_clients_than_there_are_are_refused(kind: str) -> None:
    shifts = Shifts(**{"rotated": 0, "noisy": 0, "dimmed": 0, kind: 5})
    with pytest.raises(FairbloomError, match=rf"shapes.{kind}-clients = 5: at most clients = 4 of them"):
        task(shifts)


@given(st.integers(0, 2**32), st.text(max_size=5))
def test_noise_is_of_seed_and_client_and_keeps_the_range(seed: int, client: str) -> None:
    images = torch.full((50, 1, 4, 4), 0.5)
    noisy = shift(images, {"noisy"}, seed, client)
    assert torch.equal(noisy, shift(images, {"noisy"}, seed, client))
    assert not torch.equal(noisy, shift(images, {"noisy"}, seed, client + "x"))
    assert not torch.equal(noisy, shift(images, {"noisy"}, seed + 1, client))
    assert (noisy.min(), noisy.max()) == (0.0, 1.0)
    assert noisy.std() > 0.2
    assert (images == 0.5).all()


def test_a_client_can_be_shifted_in_all_ways_at_once() -> None:
    image = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
    both = shift(image, {"rotated", "dimmed"}, 0, "a")
    assert both.tolist() == [[[[0.0, 0.0], [0.25, 0.0]]]]
    assert both.is_contiguous()


# A real one -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_files_of_that_format_train_with_shifted_clients(tmp_path: Path, name: str) -> None:
    made.mnist(tmp_path / "data", folder={"mnist": "MNIST"}.get(name, "FashionMNIST"))
    settings: dict[str, Value] = {
        "verify-data": False,
        f"{name}.rotated-clients": 1,
        f"{name}.noisy-clients": 2,
        f"{name}.test": "official",
    }
    ran = api.run(
        name,
        data_dir=tmp_path / "data",
        model="mlp",
        clients=4,
        partition="iid",
        rounds=3,
        device="cpu",
        out=tmp_path / "run",
        settings=settings,
        progress=False,
    )
    assert ran.finished
    assert len(ran.final()) == 4


@pytest.mark.parametrize(
    ("like", "write"), [("mnist", made.mnist), ("cifar10", made.cifar10), ("cinic10", made.cinic10)]
)
def test_another_data_set_in_a_known_format_takes_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, like: str, write: Callable[[Path], Path]
) -> None:
    entry = next(each for each in PICTURES if each.name == like)
    labels = tuple(f"{name}s" for name in entry.labels)
    monkeypatch.setitem(TASKS, "mine", replace(entry, name="mine", labels=labels))
    data = {"data-dir": str(write(tmp_path)), "verify-data": False}
    task = load_task({"task": "mine", "partition": "class", "mine.classes": "7,1", "mine.test": "official", **data})
    assert task.clients == (labels[7], labels[1])
    train, test = task.splits(labels[7])
    assert set(train[0 : len(train)][1].tolist()) == set(test[0 : len(test)][1].tolist()) == {0}
    assert task.model()(train[0:2][0]).shape == (2, 2)
