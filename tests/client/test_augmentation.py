"""Random changes of training images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairbloom.client.augmentation import Augment, change_images, make_augmentation
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.client.training import fetch_batches
from fairbloom.client.work import LocalWork
from fairbloom.errors import FairbloomError
from fairbloom.tasks import Examples
from tests.simulation.helpers import config_of, model_bytes, run

HERE = "tests.client.test_augmentation"

IMAGES = torch.arange(3 * 2 * 16 * 16, dtype=torch.float32).view(3, 2, 16, 16) + 1.0


def brighten(image: Tensor) -> Tensor:
    """Change an image by a draw from PyTorch's generator."""
    assert image.dim() == 3
    return image * torch.rand(1)


def augmentation(name: str, draws: int = 7) -> Augment:
    made = make_augmentation(
        LocalWork(epochs=1, batch_size=2, learning_rate=0.1, augment=name, draws=draws)
    )
    assert made is not None
    return made


def test_flip_mirrors_images_by_their_first_draw() -> None:
    draws = torch.tensor([[0.1, 0.0, 0.0], [0.9, 0.0, 0.0], [0.4, 0.9, 0.9]])
    flipped = change_images("flip", IMAGES, draws)
    assert [
        (row, mirrored)
        for row, mirrored in enumerate((True, False, True))
        if not torch.equal(flipped[row], IMAGES[row].flip(-1) if mirrored else IMAGES[row])
    ] == []


def test_crop_flip_shifts_by_an_eighth_and_fills_with_zeros() -> None:
    draws = torch.tensor([[0.9, 0.5, 0.5], [0.9, 0.0, 0.999], [0.1, 0.5, 0.0]])
    cropped = change_images("crop-flip", IMAGES, draws)
    assert torch.equal(cropped[0], IMAGES[0])  # the middle of five shifts each way
    assert torch.equal(cropped[1][:, 2:, :-2], IMAGES[1][:, :-2, 2:])
    assert not cropped[1][:, :2].any()
    assert not cropped[1][:, :, -2:].any()
    mirrored_back = cropped[2].flip(-1)
    assert torch.equal(mirrored_back[:, :, 2:], IMAGES[2][:, :, :-2])
    assert not mirrored_back[:, :, :2].any()


@pytest.mark.parametrize("name", ["flip", "crop-flip"])
def test_draws_do_not_depend_on_the_sizes_of_batches(name: str) -> None:
    images = IMAGES.repeat(10, 1, 1, 1)
    changed = augmentation(name)(images)
    parts = augmentation(name)
    split = [parts(images[start : start + 7]) for start in range(0, 30, 7)]
    assert isinstance(changed, Tensor)
    assert torch.equal(changed, torch.cat([each for each in split if isinstance(each, Tensor)]))
    other = augmentation(name, draws=8)(images)
    assert isinstance(other, Tensor)
    assert not torch.equal(changed, other)


def test_batches_are_changed_and_examples_are_not() -> None:
    examples = Examples(IMAGES.clone(), torch.zeros(3, dtype=torch.int64))
    order = iter([torch.tensor([0, 1]), torch.tensor([2])])
    batches = [*fetch_batches(examples, order, augmentation("crop-flip"))]
    assert [len(targets) for _, targets in batches] == [2, 1]
    assert isinstance(batches[0][0], Tensor)
    assert not torch.equal(batches[0][0], IMAGES[:2])
    assert isinstance(examples.inputs, Tensor)
    assert torch.equal(examples.inputs, IMAGES)


@pytest.mark.parametrize("augment", ["flip", "crop-flip", f"{HERE}:brighten"])
def test_augmented_runs_repeat_to_the_bit(tmp_path: Path, augment: str) -> None:
    changes: dict[str, Any] = {"augment": augment, "num_rounds": 2, "model": "cnn"}
    loop = run(tmp_path / "loop", engine="loop", **changes)
    again = run(tmp_path / "again", engine="loop", **changes)
    plain = run(tmp_path / "plain", engine="loop", **(changes | {"augment": "none"}))
    assert model_bytes(loop) == model_bytes(again) != model_bytes(plain)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augment": "flop"}, "did you mean flip"),
        ({"augment": f"{HERE}:HERE"}, "it is a str; it must be a function of an image"),
        (
            {"augment": "torch:flatten"},
            r"augment = 'torch:flatten' makes shape \(64,\) of an example of shape \(1, 8, 8\)",
        ),
        (
            {"augment": "flip", "task": "tests.simulation.several:masked"},
            "augment = 'flip' needs images, .*several tensors",
        ),
        (
            {"augment": "flip", "task": "tests.simulation.odd:wide"},
            "augment = 'flip' needs images, .*shape",
        ),
    ],
)
def test_an_augmentation_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        run(tmp_path / "run", **changes)


def test_a_device_takes_names_and_no_import_string() -> None:
    assert accepted_settings(config_of(augment="crop-flip"))["augment"] == "crop-flip"
    with pytest.raises(SettingRefusedError, match="augment = 'torchvision:flip'"):
        accepted_settings(config_of(augment="torchvision:flip"))
