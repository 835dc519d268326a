"""Data sets of images: their files, classes that are kept, sets that clients are tested on, pixels,
and shifts."""

import os
import pickle
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_digits
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS, Task, load_task
from fairbloom.tasks.datasets.digits import read as read_digits
from fairbloom.tasks.datasets.pictures import Pictures, load as load_pictures, read_batch, read_idx
from fairbloom.tasks.task import Examples, Setup
from fairbloom.tasks.task_info import PictureSet
from tests.originals import needs

from . import made
from .made import everything, load

NAMES = ("circle", "square", "star")
# Small images of three shapes, no two of which are alike.
SHAPES = PictureSet(
    name="shapes",
    summary="",
    source="",
    loader="",
    shape=(2, 4, 4),
    labels=NAMES,
    target="",
    white=20_000.0,
)

LABELS = np.array([0, 1, 2] * 20)
TESTED = np.array([2, 1, 0] * 8)
IMAGES = np.arange(60 * 2 * 4 * 4).reshape(60, 2, 4, 4).astype(np.uint16)
TESTED_IMAGES = 10_000 + np.arange(24 * 2 * 4 * 4).reshape(24, 2, 4, 4).astype(np.uint16)
PICTURES = Pictures(IMAGES, LABELS, TESTED_IMAGES, TESTED)


def task(
    rotated: int = 0,
    *,
    classes: str = "",
    test: str = "train",
    standardise: str = "none",
    model_outputs: int = 0,
    **own: Any,
) -> Task:
    setup = Setup.of({"model": "logistic", "clients": 4, "partition": "iid"}).model_copy(update=own)
    return load_pictures(
        setup,
        info=SHAPES,
        rotated_clients=rotated,
        classes=classes,
        test=test,
        standardise=standardise,
        model_outputs=model_outputs,
        read_all=lambda: PICTURES,
    )


def numbers(images: Tensor) -> list[int]:
    """Return which of the images these are, by their first pixels."""
    return (images[:, 0, 0, 0].double() * SHAPES.white).round().long().tolist()


@pytest.mark.parametrize(
    ("classes", "outputs", "expected"), [("", 0, 3), ("", 7, 7), ("0,2", 2, 2)]
)
def test_a_model_may_have_outputs_beyond_the_classes(
    classes: str, outputs: int, expected: int
) -> None:
    made_of = task(classes=classes, model_outputs=outputs)
    images, labels = everything(made_of.splits(made_of.clients[0]).train)
    assert made_of.model()(images).shape == (len(images), expected)
    assert labels.max() < 3
    with pytest.raises(
        FairbloomError, match=r"model-outputs = 1: there are \d classes: set at lea"
    ):
        task(classes=classes, model_outputs=1)


def test_the_digits_are_those_of_scikit_learn() -> None:
    pixels, labels = load_digits(return_X_y=True)
    found = read_digits()
    np.testing.assert_array_equal(found.images.reshape(1797, 64), pixels)
    np.testing.assert_array_equal(found.labels, labels)


# What clients train on and are tested on ----------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet", "class"])
@pytest.mark.parametrize(("test", "count"), [("merged", 84), ("train", 60), ("official", 84)])
def test_every_image_is_with_one_client_once(test: str, count: int, partition: str) -> None:
    clients = 0 if partition == "class" else 4
    made_of = task(test=test, partition=partition, clients=clients, validation_share=0.1)
    seen: Counter[int] = Counter()
    for name in made_of.clients:
        splits = made_of.splits(name)
        assert splits.validation is not None
        for split in (splits.train, splits.test, splits.validation):
            images, labels = everything(split)
            seen.update(numbers(images))
            for number, label in zip(numbers(images), labels.tolist(), strict=True):
                official = number >= 10_000
                assert label == (
                    TESTED[(number - 10_000) // 32] if official else LABELS[number // 32]
                )
                assert test != "official" or official == (split is splits.test)
    assert set(seen.values()) == {1}
    assert len(seen) == count


def test_a_server_reads_no_image_and_clients_share_one_copy() -> None:
    reading = []
    setup = Setup.of({"model": "logistic", "clients": 4, "partition": "iid"})
    made_of = load_pictures(
        setup,
        info=SHAPES,
        rotated_clients=0,
        read_all=lambda: reading.append(1) or PICTURES,  # type: ignore[func-returns-value]
    )
    made_of.model()
    assert not reading
    splits = [split for name in made_of.clients for split in made_of.splits(name)]
    assert (
        len(reading)
        == len({split.inputs.data_ptr() for split in splits if isinstance(split, Examples)})
        == 1
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "info", [TASKS[name] for name in ("mnist", "cifar10", "cifar100", "cinic10")]
)
def test_clients_and_models_of_known_pictures_need_no_file(info: PictureSet) -> None:
    assert isinstance(info, PictureSet)
    known = load(info.name, Path("nowhere"), partition="class")
    assert known.clients == info.labels
    assert known.model()(torch.zeros(2, *info.shape)).shape == (2, len(info.labels))


# Classes ------------------------------------------------------------------------------------------


def test_classes_that_are_kept_are_renumbered_in_their_order() -> None:
    made_of = task(classes="2,0", test="official", partition="class", clients=0)
    assert made_of.clients == ("star", "circle")
    images, labels = everything(made_of.splits("star").train)
    assert set(labels.tolist()) == {0}
    assert {int(LABELS[number // 32]) for number in numbers(images)} == {2}
    assert made_of.model()(images).shape == (20, 2)


@pytest.mark.parametrize(
    "classes", ["0", "0,0", "0,3", "-1,0", "0,,1", "circle,square", "0;1", ",", "00,1"]
)
def test_classes_that_are_none_are_refused(classes: str) -> None:
    with pytest.raises(FairbloomError, match=rf"shapes.classes = '{classes}'.* from 0 to 2"):
        task(classes=classes)


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_other_numbers_of_clients_by_class_are_refused(clients: int) -> None:
    with pytest.raises(FairbloomError, match=rf"clients = {clients}: .*3"):
        task(partition="class", clients=clients)


def test_as_many_clients_as_classes_are_allowed() -> None:
    assert len(task(partition="class", clients=3).clients) == 3


# Pixels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", ["", "0,1"])
@pytest.mark.parametrize("test", ["merged", "train", "official"])
def test_pixels_are_standardised_by_all_official_training_images(test: str, classes: str) -> None:
    images = IMAGES.astype(np.float64)
    expected = {
        "none": IMAGES / SHAPES.white,
        "channel": (images - images.mean((0, 2, 3), keepdims=True))
        / images.std((0, 2, 3), keepdims=True),
        "pixel": (images - images.mean(0)) / (images.std(0) + 0.001),
    }
    rows = {
        number: row for row, number in enumerate(numbers(torch.from_numpy(IMAGES / SHAPES.white)))
    }
    # of all classes: the published numbers of three of Fashion-MNIST have it so
    plain = task(classes=classes, test=test)
    for standardise, wanted in expected.items():
        made_of = task(classes=classes, test=test, standardise=standardise)
        for name in made_of.clients:
            order = [
                rows.get(number) for number in numbers(everything(plain.splits(name).train)[0])
            ]
            got, _ = everything(made_of.splits(name).train)
            assert got.dtype == torch.float32
            for row, image in zip(order, got.numpy(), strict=True):
                if row is not None:
                    np.testing.assert_allclose(image, wanted[row], rtol=1e-4, atol=1e-5)


# Turned ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", ["none", "channel"])
def test_turned_images_are_own_ones_standardised_alike(standardise: str) -> None:
    before = IMAGES.copy()
    plain, made_of = (task(rotated, standardise=standardise) for rotated in (0, 4))
    for name in made_of.clients:
        for ours, theirs in zip(made_of.splits(name), plain.splits(name), strict=True):
            (images, labels) = everything(ours)
            (upright, same) = everything(theirs)
            assert torch.equal(labels, same)
            torch.testing.assert_close(images, torch.rot90(upright, dims=(2, 3)), rtol=0, atol=0)
            assert images.is_contiguous()
    np.testing.assert_array_equal(IMAGES, before)


def test_the_seed_draws_as_many_turned_clients_as_asked_for(subtests: pytest.Subtests) -> None:
    drawn = []
    for seed in (0, 0, 1):
        with subtests.test(seed=seed):
            upright, turned = (task(rotated, clients=10, seed=seed) for rotated in (0, 3))
            images = lambda made_of, name: everything(made_of.splits(name).train)[0]  # noqa: E731
            drawn.append(
                [
                    name
                    for name in upright.clients
                    if not torch.equal(images(upright, name), images(turned, name))
                ]
            )
            assert turned.marks == dict.fromkeys(drawn[-1], "rotated")
    assert [len(names) for names in drawn] == [3, 3, 3]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(FairbloomError, match=r"shapes.rotated-clients = 5: .*clients = 4"):
        task(5)


# IDX ----------------------------------------------------------------------------------------------

WHOLE = bytes((0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3))
NO_IDX = (
    b"",
    WHOLE[:-1],
    WHOLE[:6],
    b"\x1f\x8b\x08\x00" + WHOLE,  # still compressed
    WHOLE + b"\x00",  # too long
    bytes((0, 0, 9)) + WHOLE[3:],  # signed bytes
    bytes((1, 0, 8)) + WHOLE[3:],
    bytes((0, 0, 8, 0)),  # no dimension
    # more than there can be
    bytes((0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255)) + bytes(100),
    # its size overflows to 0 in 64 bits
    bytes((0, 0, 8, 3)) + (1 << 31).to_bytes(4) * 2 + (4).to_bytes(4),
    bytes((0, 0, 8, 200)) + bytes(20),  # more dimensions than there is file
)


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, min_side=0, max_side=5)))
def test_an_idx_file_comes_out_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray
) -> None:
    read = read_idx(made.idx(tmp_path_factory.mktemp("idx") / "file", array))
    assert read.dtype == np.uint8
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("content", NO_IDX)
def test_what_is_no_idx_file_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(FairbloomError, match="train-images-idx3-ubyte is not an IDX file"):
        read_idx(path)


@needs("MNIST/raw/train-images-idx3-ubyte")
def test_the_real_mnist_is_read_as_it_is_known() -> None:
    task = load_task(
        {
            "task": "mnist",
            "mnist.test": "official",
            "mnist.standardise": "none",
            "partition": "class",
        }
    )
    sizes = {name: tuple(map(len, task.splits(name))) for name in task.clients}
    assert sizes["one"] == (6742, 1135)
    assert np.array(list(sizes.values())).sum(axis=0).tolist() == [60000, 10000]
    images, labels = task.splits("five").train[0:10]
    assert Counter(labels.tolist()) == {5: 10}
    assert isinstance(images, Tensor)
    assert images.shape[1:] == (1, 28, 28)
    assert (images.min(), images.max()) == (0, 1)


# CIFAR's pickles ----------------------------------------------------------------------------------


def test_a_batch_as_python_2_and_3_write_it_is_read(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    images = made.pictures(np.array([3, 0, 9]), (3, 32, 32))
    batch = {"data": images.reshape(3, -1), "labels": [3, 0, 9]}
    path = made.pickled(tmp_path / "batch", batch)
    assert b"cnumpy.core.multiarray\n_reconstruct" in path.read_bytes()
    for content in (path.read_bytes(), *(pickle.dumps(batch, protocol) for protocol in range(5))):
        with subtests.test(content=content):
            path.write_bytes(content)
            read, found = read_batch(path, "labels", 10)
            np.testing.assert_array_equal(read, images)
            assert found.tolist() == [3, 0, 9]


class Hostile:
    """When it is unpickled, a function is called."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.called


def test_a_hostile_pickle_calls_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Neither by itself, nor in the dtype or shape of an array, nor under a name that begins like
    an allowed one."""
    mark = tmp_path / "called"
    path = tmp_path / "batch"
    system = Hostile(os.system, f"touch {mark}")
    for hostile in (
        system,
        Hostile(eval, f"open({str(mark)!r}, 'w')"),
        Hostile(subprocess.Popen, ["touch", str(mark)]),
        Hostile(getattr, np.ndarray, "tofile"),
        {"data": [system], "labels": (system,)},
        Hostile(np.fromfile, str(path)),
    ):
        with subtests.test(hostile=hostile):
            for protocol in (0, 2, 4, 5):
                path.write_bytes(pickle.dumps({"data": hostile, "labels": [1]}, protocol))
                with pytest.raises(
                    FairbloomError, match=r"batch is not a CIFAR batch \(UnpicklingError"
                ):
                    read_batch(path, "labels", 10)
                assert not mark.exists()


GOOD: Mapping[str, Any] = {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}
BATCHES: tuple[Any, ...] = (
    {"data": GOOD["data"]},
    {"labels": GOOD["labels"]},
    {**GOOD, "data": np.zeros((2, 3071), np.uint8)},
    {**GOOD, "data": np.zeros((2, 3072), np.float64)},
    {**GOOD, "data": [0] * 3072},
    {**GOOD, "labels": [1]},
    {**GOOD, "labels": [1, 10]},
    {**GOOD, "labels": [-1, 1]},
    {**GOOD, "labels": [1.0, 2.0]},
    {**GOOD, "labels": [[1], [2]]},
    {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    [1, 2, 3],
)
# Bytes by another codec than latin1: it is looked for by its name, so that a name could import a
# module.
CODEC = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R."


def test_what_is_no_batch_is_refused_with_its_path(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    path = tmp_path / "batch"
    broken = (b"", b"\x80", b"not a pickle", pickle.dumps(GOOD)[:-100], CODEC)
    for content in (*map(pickle.dumps, BATCHES), *broken):
        with subtests.test(content=content):
            path.write_bytes(content)
            with pytest.raises(
                FairbloomError, match=r"batch( is not a CIFAR batch|: labels must).*: put the"
            ):
                read_batch(path, "labels", 10)
    made.cifar10(tmp_path)
    task = load_task({"task": "cifar10", "data-dir": str(tmp_path)})
    # not even unpickled
    with pytest.raises(FairbloomError, match=r"data_batch_1 is not the original of cifar10"):
        task.splits(task.clients[0])


# CINIC-10's tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "counts"), [("train", [16, 4]), ("merged", [24, 6]), ("official", [20, 10])]
)
def test_cinic10s_validation_images_are_for_training(
    tmp_path: Path, test: str, counts: list[int]
) -> None:
    made.cinic10(tmp_path, count=10)
    splits = load(
        "cinic10",
        tmp_path,
        cinic10__test=test,
        clients=1,
        partition="iid",
        cinic10__standardise="none",
    ).splits("client-0")
    assert [len(split) for split in splits] == counts
    own = torch.cat([everything(split)[0] for split in splits])
    assert {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in own} == {
        image.tobytes()
        for seed in ((0, 1) if test == "train" else (0, 1, 2))
        for image in made.pictures(made.balanced(10, 10), (3, 32, 32), seed)
    }


@pytest.mark.parametrize("channels", [1, 4])
def test_grey_and_transparent_images_are_coloured_ones(tmp_path: Path, channels: int) -> None:
    """CINIC-10 has some thousand images of ImageNet that are grey."""
    made.cinic10(tmp_path, count=10)
    made.hub_parquet(
        tmp_path / TASKS["cinic10"].files[2].path,
        np.full((10, channels, 32, 32), 255, np.uint8),
        label=made.balanced(10, 10),
    )
    task = load(
        "cinic10",
        tmp_path,
        cinic10__test="official",
        clients=1,
        partition="iid",
        seed=channels,
    )
    assert everything(task.splits("client-0").test)[0].shape == (10, 3, 32, 32)


def test_another_table_than_the_hubs_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    made.cinic10(tmp_path, count=10)
    path = tmp_path / TASKS["cinic10"].files[1].path
    good = np.zeros((10, 3, 32, 32), np.uint8)
    tables: tuple[tuple[Any, Any], ...] = (
        (good.reshape(10, 3, 16, 64), {"label": range(10)}),
        (good, {"class": range(10)}),
        (good, {"label": range(1, 11)}),
        (good, {"label": list("abcdefghij")}),
    )
    contents = [
        made.hub_parquet(path, images, **columns).read_bytes() for images, columns in tables
    ]
    for content in (*contents, b"", b"PAR1", b"no parquet" * 100):
        with subtests.test(content=content):
            path.write_bytes(content)
            with pytest.raises(FairbloomError, match=re.escape(str(path))):
                load("cinic10", tmp_path, clients=1, partition="iid").splits("client-0")


@pytest.mark.parametrize(
    ("like", "write"),
    [
        ("mnist", made.mnist),
        ("cifar10", made.cifar10),
        ("cinic10", made.cinic10),
    ],
)
def test_another_data_set_in_a_known_format_takes_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, like: str, write: Any
) -> None:
    entry = TASKS[like]
    assert isinstance(entry, PictureSet)
    labels = tuple(f"{name}s" for name in entry.labels)
    monkeypatch.setitem(TASKS, "mine", replace(entry, name="mine", labels=labels))
    settings: dict[str, Value] = {
        "partition": "class",
        "mine.classes": "7,1",
        "mine.test": "official",
    }
    task = load("mine", write(tmp_path, 40), **settings)
    assert task.clients == (labels[7], labels[1])
    train, test = (everything(split) for split in task.splits(labels[7]))
    assert set(train[1].tolist()) == set(test[1].tolist()) == {0}
    assert task.model()(train[0]).shape == (len(train[0]), 2)
