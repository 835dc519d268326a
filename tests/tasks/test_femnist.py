"""FEMNIST by its writers, from a file in the format of the hub's."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets.classification import group_rows

from . import made
from .made import everything, load

SIZES = {"f0003_09": 70, "f0000_14": 62, "f0002_41": 4, "f0001_41": 5}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return made.femnist(tmp_path, SIZES)


def test_writers_are_clients_and_small_ones_are_left_out_loudly(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        task = load("femnist", small)
    assert task.clients == ("f0000_14", "f0001_41", "f0003_09")
    assert "1 of 4 writers have too few examples and are left out" in caplog.text
    assert [len(task.splits(name).test) for name in task.clients] == [12, 1, 14]


def test_a_client_has_its_writers_characters_once_each(small: Path) -> None:
    splits = load("femnist", small).splits("f0003_09")
    parts = [everything(splits.train), everything(splits.test)]
    images, labels = (torch.cat(pair) for pair in zip(*parts, strict=True))
    assert images.dtype == torch.float32
    labels_of = made.balanced(70, 62)
    written = made.pictures(
        np.concatenate([made.balanced(count, 62) for count in SIZES.values()]), (1, 28, 28)
    )[:70]
    expected = sorted(
        (image.tobytes(), label) for image, label in zip(written, labels_of.tolist(), strict=True)
    )
    pixels = (images * 255).round().to(torch.uint8).numpy()
    assert (
        sorted(
            (image.tobytes(), label) for image, label in zip(pixels, labels.tolist(), strict=True)
        )
        == expected
    )


def test_only_those_who_are_asked_for_are_decoded(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 800,000 images: to decode them takes half a minute."""
    opened: list[object] = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda content: opened.append(content) or real(content))
    task = load("femnist", small)
    task.model()
    assert not opened
    for _ in range(2):
        task.splits("f0001_41")
    assert len(opened) == 5


def test_so_many_writers_as_are_asked_for_are_drawn_by_the_seed(tmp_path: Path) -> None:
    made.femnist(tmp_path, {f"f{k:04d}_00": 6 for k in range(30)})
    drawn = [load("femnist", tmp_path, clients=10, seed=seed).clients for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 10
    assert list(drawn[0]) == sorted(drawn[0])
    assert load("femnist", tmp_path, clients=30).clients == load("femnist", tmp_path).clients
    with pytest.raises(FairbloomError, match=r"clients = 31: of 30 writers 30"):
        load("femnist", tmp_path, clients=31)


def test_characters_can_be_dealt_without_regard_to_writers(small: Path) -> None:
    task = load("femnist", small, partition="iid", clients=3)
    assert task.clients == ("client-0", "client-1", "client-2")
    assert sum(len(split) for name in task.clients for split in task.splits(name)) == sum(
        SIZES.values()
    )


@pytest.mark.parametrize(
    "owners", [["b", "a", "b"], ["a"], ["é", "e", "E", "e"], ["a b", "a", "a,b"]]
)
def test_rows_of_owners_are_complete_and_in_order(owners: list[str]) -> None:
    rows = group_rows(owners)
    assert list(rows) == sorted(set(owners))
    for name, own in rows.items():
        assert own.tolist() == [i for i, owner in enumerate(owners) if owner == name]
