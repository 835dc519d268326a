"""Clients from .npz files and from folders of images."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Setup, Task, describe_data, find_task, load_task
from fairbloom.tasks.measures import MAE
from fairbloom.tasks.partition import split

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 3))
Y = np.arange(20) % 2


def config(task: str, folder: Path | str, **settings: Any) -> dict[str, Any]:
    own = {f"{task}.{key}": value for key, value in settings.items() if key != "model"}
    model = {"model": settings["model"]} if "model" in settings else {}
    return Settings.of({"task": task, "data-dir": str(folder), **model, **own}).run_config()


def told_by(chosen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    task = load_task(chosen)
    assert task.about is not None
    return {client: json.loads(json.dumps(task.about(client))) for client in task.clients}


def agreed(chosen: dict[str, Any]) -> tuple[Task, dict[str, Any]]:
    text, reasons = find_task(chosen["task"]).agreement(told_by(chosen))
    assert reasons == {}
    return load_task({**chosen, "agreed": text}), json.loads(text)


def everything(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    return examples[0 : len(examples)]


# Arrays -------------------------------------------------------------------------------------------------------------


def arrays(folder: Path, **clients: dict[str, Any]) -> Path:
    for name, content in clients.items():
        np.savez(folder / f"{name}.npz", **content)
    return folder


def test_x_and_y_are_split_by_seed_and_client(tmp_path: Path) -> None:
    task, told = agreed(config("npz", arrays(tmp_path, a={"x": X, "y": Y}, b={"x": X + 1, "y": Y})))
    assert told == {"shape": [3], "target": {"classes": ["0", "1"]}}
    for rows, examples in zip(split(np.arange(20), Setup.of({}), "b")[:2], task.splits("b"), strict=True):
        inputs, targets = everything(examples)
        np.testing.assert_allclose(inputs, X[rows] + 1, rtol=1e-6)
        assert targets.tolist() == Y[rows].tolist()
    assert task.model()(inputs).shape == (4, 2)


def test_training_and_test_arrays_stay_what_they_are(tmp_path: Path) -> None:
    apart = {"x_train": X[:15], "y_train": Y[:15], "x_test": X[15:], "y_test": Y[15:]}
    task, _ = agreed(config("npz", arrays(tmp_path, a=apart, b={"x": X, "y": Y})))
    for expected, examples in zip((X[:15], X[15:]), task.splits("a"), strict=True):
        np.testing.assert_allclose(everything(examples)[0], expected, rtol=1e-6)


def test_grey_images_in_bytes_have_one_channel_from_0_to_1(tmp_path: Path) -> None:
    x = RANDOM.integers(0, 256, (20, 8, 6), dtype=np.uint8)
    task, told = agreed(config("npz", arrays(tmp_path, a={"x": x, "y": Y}, b={"x": x, "y": Y}), model="cnn"))
    assert told["shape"] == [1, 8, 6]
    inputs, _ = everything(task.splits("a").train)
    assert inputs.shape == (16, 1, 8, 6)
    assert 0.0 <= inputs.min() < 0.1 < 0.9 < inputs.max() <= 1.0
    assert task.model()(inputs).shape == (16, 2)


def test_targets_are_texts_class_numbers_or_floats(tmp_path: Path) -> None:
    named = np.array(["cat", "dog"])[Y]
    _, told = agreed(config("npz", arrays(tmp_path, a={"x": X, "y": named}, b={"x": X, "y": named})))
    assert told["target"]["classes"] == ["cat", "dog"]
    y = 100.0 + 10.0 * X[:, 0]
    task, told = agreed(config("npz", arrays(tmp_path, a={"x": X, "y": y}, b={"x": X, "y": y})))
    train, *_ = split(np.arange(20), Setup.of({}), "a")
    assert task.score == MAE
    assert set(told["target"]) == {"center", "scale"}
    targets = everything(task.splits("a").train)[1] * told["target"]["scale"] + told["target"]["center"]
    np.testing.assert_allclose(targets, y[train], rtol=1e-5)


def test_floats_that_look_like_classes_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told_by(config("npz", arrays(tmp_path, a={"x": X, "y": Y.astype(float)}, b={"x": X, "y": Y.astype(float)})))
    assert "a.npz: y holds few numbers, as floats: a quantity; classes are y.astype(int)" in caplog.messages[0]
    caplog.clear()
    describe_data(config("npz", tmp_path))
    assert len(caplog.messages) == 2


WRONG_ARRAYS: dict[str, tuple[dict[str, Any] | bytes, tuple[str, ...]]] = {
    "other names": ({"inputs": X, "labels": Y}, ("a.npz holds inputs, labels", "needs x and y", "numpy.savez")),
    "half of the names": ({"x_train": X, "y_train": Y}, ("a.npz holds x_train, y_train", "x_test and y_test")),
    "objects": ({"x": X, "y": np.array([None] * 20)}, ("a.npz cannot be read", "none of Python objects")),
    "no file of arrays": (b"age,target\n1,0\n", ("a.npz cannot be read", "write it again, by numpy.savez")),
    "fewer targets": ({"x": X, "y": Y[:19]}, ("x has 20 examples and y 19",)),
    "no dimension of examples": ({"x": X[:, 0], "y": Y}, ("x has shape (20,)", "first dimension")),
    "several targets": ({"x": X, "y": X}, ("y (20, 3)", "one value in y")),
    "texts": ({"x": X.astype(str), "y": Y}, ("x must hold numbers", "<U")),
    "NaN": ({"x": np.where(X[7] == X, np.nan, X), "y": Y}, ("x holds NaN", "in 1 of 20 examples, first in example 7")),
    "NaN in targets": (
        {"x": X, "y": np.where(Y == 1, np.nan, 0.5)},
        ("y holds NaN", "in 10 of 20 examples, first in example 1"),
    ),
    "too few": ({"x": X[:4], "y": Y[:4]}, ("x has 4 examples, and at least 5",)),
    "none to test on": (
        {"x_train": X, "y_train": Y, "x_test": X[:0], "y_test": Y[:0]},
        ("x_test has 0 examples, and at least 1",),
    ),
    "shapes that differ": (
        {"x_train": X, "y_train": Y, "x_test": X[:, :2], "y_test": Y},
        ("x_train have shape (3,)", "x_test have (2,)"),
    ),
    "one class": ({"x": X, "y": Y * 0}, ("y has 1 different values, as 0", "npz.classes=0,1")),
    "complex targets": ({"x": X, "y": Y * 1j}, ("y is complex128",)),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_faulty_arrays_are_named_with_file_value_and_remedy(tmp_path: Path, case: str) -> None:
    content, words = WRONG_ARRAYS[case]
    if isinstance(content, bytes):
        (tmp_path / "a.npz").write_bytes(content)
    else:
        arrays(tmp_path, a=content)
    task = load_task(config("npz", tmp_path))
    assert task.about is not None
    with pytest.raises(FairbloomError) as refusal:
        task.about("a")
    for word in words:
        assert word in str(refusal.value)


def test_clients_whose_arrays_differ_are_left_out_by_name(tmp_path: Path) -> None:
    good = {"x": X, "y": Y}
    chosen = config(
        "npz", arrays(tmp_path, a=good, b=good, c=good, flat={"x": X[:, :2], "y": Y}, few={"x": X, "y": Y + 1})
    )
    told = told_by(chosen)
    told["liar"] = {"examples": 10, "shape": [10**9, 10**9], "target": told["a"]["target"]}
    told["float"] = told["a"] | {"target": {"kind": "quantity", "classes": [], "moments": [0, 1]}}
    text, reasons = find_task("npz").agreement(told)
    assert json.loads(text)["shape"] == [3]
    assert sorted(reasons) == ["few", "flat", "float", "liar"]
    assert "shape (2,), and those of most others (3,)" in reasons["flat"]
    assert "npz.classes=0,1,2" in reasons["few"]
    assert "at most 10,000,000 numbers" in reasons["liar"]
    assert "classes are whole numbers or texts" in reasons["float"]
    late = load_task({**chosen, "agreed": text})
    for client in ("flat", "few"):
        with pytest.raises(FairbloomError, match=client):
            late.splits(client)


# Images -------------------------------------------------------------------------------------------------------------


def images(folder: Path, sizes: tuple[int, int] = (9, 7), classes: tuple[str, ...] = ("cat", "dog")) -> None:
    """Write four images of each class, that of class k all of brightness 50 k + 50."""
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            ending = ("png", "jpg")[number % 2]
            Image.new("RGB", sizes, (50 * k + 50, 0, 0)).save(folder / name / f"{number}.{ending}")


def test_folders_of_classes_become_pixels_from_0_to_1(tmp_path: Path) -> None:
    images(tmp_path / "a")
    images(tmp_path / "b")
    (tmp_path / "b" / "cat" / ".hidden.png").write_text("no image")
    task, told = agreed(config("image-folder", tmp_path))
    assert task.clients == ("a", "b")
    assert told == {"shape": [3, 7, 9], "target": {"classes": ["cat", "dog"]}}
    for examples in task.splits("b"):
        inputs, targets = everything(examples)
        assert inputs.shape[1:] == (3, 7, 9)
        brightness = inputs[:, 0].mean(dim=(1, 2)) * 255
        np.testing.assert_allclose(brightness, 50 * targets + 50, atol=2)
        assert inputs[:, 1:].max() < 0.02
    assert task.model()(inputs).shape == (len(inputs), 2)


def test_images_are_brought_to_one_size_and_to_grey(tmp_path: Path) -> None:
    images(tmp_path / "a")
    images(tmp_path / "b", sizes=(20, 30))
    with pytest.raises(FairbloomError, match=r"shape \(3, 30, 20\), and those of most others .*image-folder.size=32"):
        raise FairbloomError(find_task("image-folder").agreement(told_by(config("image-folder", tmp_path)))[1]["b"])
    task, told = agreed(config("image-folder", tmp_path, size=8, grey=True))
    assert told["shape"] == [1, 8, 8]
    assert everything(task.splits("b").train)[0].shape == (7, 1, 8, 8)


def test_a_device_may_have_the_folders_of_classes_alone(tmp_path: Path) -> None:
    images(tmp_path / "site-a")
    assert load_task(config("image-folder", tmp_path / "site-a")).clients == ("site-a",)
    assert told_by(config("image-folder", tmp_path / "site-a")) == told_by(config("image-folder", tmp_path))


def test_without_pillow_images_name_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FairbloomError, match=r"Pillow: pip install 'fairbloom\[images\]'"):
        told_by(config("image-folder", tmp_path))


def test_images_that_have_changed_are_read_again(tmp_path: Path) -> None:
    """However deep they lie, and whether they are new, gone or other ones."""
    for name in ("a", "b"):
        images(tmp_path / name)
    chosen = config("image-folder", tmp_path)

    def brightest() -> float:
        return float(everything(agreed(chosen)[0].splits("a").train)[0].max())

    before = brightest()
    for file in (tmp_path / "a").glob("*/*"):
        Image.new("RGB", (9, 7), (250, 0, 0)).save(file)
    assert brightest() > 0.9 > before
    counts = [told_by(chosen)["a"]["examples"]]
    for number in (8, 9):
        Image.new("RGB", (9, 7)).save(tmp_path / "a" / "dog" / f"{number}.png")
        counts.append(told_by(chosen)["a"]["examples"])
    for file in (tmp_path / "a" / "dog").glob("*.jpg"):
        file.unlink()
    counts.append(told_by(chosen)["a"]["examples"])
    assert counts == [7, 8, 8, 7]  # of 8, 9, 10 and 8 images


def test_what_is_wrong_with_images_is_said_with_file_and_remedy(tmp_path: Path) -> None:
    for name in ("broken", "few", "one", "strange", "uneven"):
        images(tmp_path / name)
    images(tmp_path / "good")
    (tmp_path / "broken" / "cat" / "1.jpg").write_bytes(b"no image")
    Image.new("L", (9, 8)).save(tmp_path / "uneven" / "dog" / "9.png")
    for file in (*sorted((tmp_path / "few").glob("*/*"))[:5], *(tmp_path / "one" / "dog").glob("*")):
        file.unlink()
    Image.new("RGB", (9, 7)).save(tmp_path / "one" / "cat" / "9.png")
    (tmp_path / "strange" / "dog").rename(tmp_path / "strange" / "wolf")
    shown = {str(row["client"]): row for row in describe_data(config("image-folder", tmp_path))["clients"]}
    for name, words in {
        "broken": ("cat/1.jpg cannot be read as an image", "take it out"),
        "few": ("few has 3 images", "at least 5", "CLASS/1.png"),
        "one": ("images of one class alone, cat", "image-folder.classes=cat,other"),
        "uneven": ("dog/9.png has 9×8 pixels, and most images of its client 9×7", "image-folder.size=32"),
    }.items():
        for word in words:
            assert word in str(shown[name]["problem"])
    assert shown["good"]["target"] == "cat: 4, dog: 4"
    task = load_task(config("image-folder", tmp_path, classes="cat,dog"))
    assert task.about is not None
    with pytest.raises(FairbloomError, match=r"strange/wolf is a folder of none of the classes cat, dog: rename it"):
        task.about("strange")


def test_a_folder_without_folders_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="there is no folder in it, but nothing at all"):
        load_task(config("image-folder", tmp_path))
