"""CIFAR-10, CIFAR-100 and CINIC-10, from files in the format of the real ones."""

import os
import pickle
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS, Task, load_task
from fairbloom.tasks.datasets.pictures.formats import read_batch

from . import made

UNVERIFIED: dict[str, Value] = {"verify-data": False}

WRITERS = {"cifar10": made.cifar10, "cifar100": made.cifar100, "cinic10": made.cinic10}


def load(task: str, folder: Path, **settings: Value) -> Task:
    own: dict[str, Value] = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return load_task({"task": task, "data-dir": str(folder), **UNVERIFIED, **own})


# The files ------------------------------------------------------------------------------------------------------------


def test_a_batch_as_python_2_has_written_it_is_read(tmp_path: Path) -> None:
    labels = np.array([3, 0, 9])
    images = made.pictures(labels, (3, 32, 32))
    path = made.pickled(tmp_path / "batch", {"data": images.reshape(3, -1), "labels": labels.tolist()})
    assert b"cnumpy.core.multiarray\n_reconstruct" in path.read_bytes()
    read, found = read_batch(path, "labels", 10)
    np.testing.assert_array_equal(read, images)
    assert found.tolist() == [3, 0, 9]


@pytest.mark.parametrize("protocol", range(5))
def test_a_batch_as_python_3_writes_it_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.full((2, 3072), 7, np.uint8), "labels": [1, 2]}, protocol))
    images, labels = read_batch(path, "labels", 10)
    assert images.shape == (2, 3, 32, 32)
    assert (images == 7).all()
    assert labels.tolist() == [1, 2]


class Hostile:
    """When it is unpickled, a function is called."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.called


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("how", ["system", "eval", "Popen", "getattr", "nested", "numpy"])
def test_a_hostile_pickle_calls_nothing(tmp_path: Path, protocol: int, how: str) -> None:
    """Neither by itself, nor in the dtype or shape of an array, nor under a name that begins like an allowed one."""
    mark = tmp_path / "called"
    system = Hostile(os.system, f"touch {mark}")
    hostile: Any = {
        "system": system,
        "eval": Hostile(eval, f"open({str(mark)!r}, 'w')"),
        "Popen": Hostile(subprocess.Popen, ["touch", str(mark)]),
        "getattr": Hostile(getattr, np.ndarray, "tofile"),
        "nested": {"data": [system], "labels": (system,)},
        "numpy": Hostile(np.fromfile, str(tmp_path / "batch")),
    }[how]
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": hostile, "labels": [1]}, protocol))
    with pytest.raises(FairbloomError, match=r"batch is no CIFAR batch \(UnpicklingError: it asks for .*original"):
        read_batch(path, "labels", 10)
    assert not mark.exists()


def test_text_of_another_codec_than_latin1_is_not_made_bytes(tmp_path: Path) -> None:
    """A codec is looked for by its name, so that a name could import a module."""
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.")
    with pytest.raises(FairbloomError, match="not in latin1"):
        read_batch(path, "labels", 10)


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
    {**GOOD, "labels": [[1], [2, 3]]},
    {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    [1, 2, 3],
)


def test_what_is_no_batch_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for content in (*map(pickle.dumps, BATCHES), b"", b"\x80", b"not a pickle", pickle.dumps(GOOD)[:-100]):
        path.write_bytes(content)
        with pytest.raises(FairbloomError, match=r"batch is no CIFAR batch.*put the original in its place"):
            read_batch(path, "labels", 10)


def test_other_files_than_the_originals_are_not_even_unpickled(tmp_path: Path) -> None:
    made.cifar10(tmp_path)
    task = load_task({"task": "cifar10", "data-dir": str(tmp_path)})
    with pytest.raises(FairbloomError, match=r"data_batch_1 is not the original of cifar10: its md5 is [0-9a-f]{32}"):
        task.splits(task.clients[0])


def test_the_official_test_set_is_that_of_its_own_file(tmp_path: Path) -> None:
    made.cifar10(tmp_path, train=200, test=40)
    task = load("cifar10", tmp_path, cifar10__test="official", clients=4, partition="iid", cifar10__standardise="none")
    tested = torch.cat([task.splits(name).test[0:40][0] for name in task.clients])
    images, _ = read_batch(tmp_path / "cifar-10-batches-py" / "test_batch", "labels", 10)
    expected = {image.tobytes() for image in images}
    assert {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in tested} == expected


def test_the_hundred_classes_are_named_in_order() -> None:
    labels = load_task({"task": "cifar100", "partition": "class"}).clients
    assert len(labels) == len(set(labels)) == 100
    assert list(labels) == sorted(labels)


# CINIC-10 -------------------------------------------------------------------------------------------------------------


def test_cinic10s_validation_images_are_for_training(tmp_path: Path) -> None:
    made.cinic10(tmp_path, count=100)
    for test, count in (("train", 200), ("merged", 300)):
        task = load("cinic10", tmp_path, cinic10__test=test, clients=4, partition="iid")
        assert sum(len(split) for name in task.clients for split in task.splits(name)) == count
    task = load("cinic10", tmp_path, cinic10__test="official", clients=4, partition="iid")
    sizes = np.array([[len(split) for split in task.splits(name)] for name in task.clients])
    assert sizes.sum(axis=0).tolist() == [200, 100]


def test_images_of_the_hub_come_out_as_they_went_in(tmp_path: Path) -> None:
    made.cinic10(tmp_path, count=10)
    task = load("cinic10", tmp_path, cinic10__test="train", clients=1, partition="iid", cinic10__standardise="none")
    own = torch.cat([split[0:20][0] for split in task.splits("client-0")])
    expected = {image.tobytes() for seed in (0, 1) for image in made.pictures(made.balanced(10, 10), (3, 32, 32), seed)}
    assert {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in own} == expected


def test_grey_and_transparent_images_are_coloured_ones(tmp_path: Path) -> None:
    """CINIC-10 has some thousand images of ImageNet that are grey."""
    made.cinic10(tmp_path, count=10)
    labels = made.balanced(10, 10)
    path = tmp_path / TASKS["cinic10"].files[2].path
    for channels in (1, 4):
        made.hub_parquet(path, np.full((10, channels, 32, 32), 255, np.uint8), label=labels)
        task = load("cinic10", tmp_path, cinic10__test="official", clients=1, partition="iid", seed=channels)
        assert task.splits("client-0").test[0:10][0].shape == (10, 3, 32, 32)


@pytest.mark.parametrize(
    ("images", "columns", "words"),
    [
        (np.zeros((10, 3, 16, 16), np.uint8), {"label": range(10)}, "row 0 holds an image of .16, 16. pixels"),
        (
            np.zeros((10, 3, 32, 32), np.uint8),
            {"class": range(10)},
            "has the columns image, class, and label is needed",
        ),
        (np.zeros((10, 3, 32, 32), np.uint8), {"label": range(1, 11)}, "label must hold whole numbers from 0 to 9"),
        (np.zeros((10, 3, 32, 32), np.uint8), {"label": list("abcdefghij")}, "label must hold whole numbers"),
    ],
)
def test_another_table_than_the_hubs_is_refused(tmp_path: Path, images: Any, columns: Any, words: str) -> None:
    made.cinic10(tmp_path, count=10)
    path = made.hub_parquet(tmp_path / TASKS["cinic10"].files[1].path, images, **columns)
    with pytest.raises(FairbloomError, match=words) as refusal:
        load("cinic10", tmp_path, clients=1, partition="iid").splits("client-0")
    assert str(path) in str(refusal.value)


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    made.cinic10(tmp_path, count=10)
    for content in (b"", b"PAR1", b"no parquet" * 100):
        (tmp_path / TASKS["cinic10"].files[0].path).write_bytes(content)
        with pytest.raises(FairbloomError, match=r"train-00000-of-00001\.parquet cannot be read"):
            load("cinic10", tmp_path, clients=1, partition="iid").splits("client-0")


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_server_without_data_knows_the_clients_and_the_model(tmp_path: Path, name: str) -> None:
    task = load(name, tmp_path / "nowhere", partition="class")
    assert len(task.clients) == TASKS[name].classes
    assert "cat" in task.clients or "cattle" in task.clients
    assert task.model()(torch.zeros(2, 3, 32, 32)).shape == (2, TASKS[name].classes)


@pytest.mark.parametrize(
    ("name", "model", "partition", "examples"),
    [
        ("cifar10", "cifar-cnn", "shards", 100),
        ("cifar100", "resnet18-gn", "iid", 20),
        ("cinic10", "cifar-cnn", "dirichlet", 40),
    ],
)
def test_the_papers_models_train_on_files_of_that_format(
    tmp_path: Path, name: str, model: str, partition: str, examples: int
) -> None:
    WRITERS[name](tmp_path / "data", examples)
    ran = api.run(
        name,
        data_dir=tmp_path / "data",
        model=model,
        clients=2,
        partition=partition,
        rounds=2,
        fraction=0.5,
        device="cpu",
        out=tmp_path / "run",
        settings={**UNVERIFIED, "learning-rate": 0.01, "evaluate-every": 2, "batch-size": 20},
        progress=False,
    )
    assert ran.finished
    assert ran.rounds_done == 2
    assert (tmp_path / "run" / "model.safetensors").is_file()
