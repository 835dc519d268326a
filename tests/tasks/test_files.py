"""Clients from folders of images."""

import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairbloom.errors import FairbloomError, install_command
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.tables.schema import ImageSchema, parse_image_schema
from fairbloom.tasks import Task, check_data, describe_data, load_task
from fairbloom.tasks.images import PICTURES, image_inputs, size_of

from .made import everything


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    own = {f"image-folder.{key}": value for key, value in settings.items()}
    return Settings.of({"task": "image-folder", "data-dir": str(folder), **own}).run_config()


def load(folder: Path, **settings: Any) -> Task:
    return load_task(config(folder, **settings))


def seen_of(folder: Path) -> tuple[int, bool]:
    """Return how many images client a trains on, and whether one of them is bright."""
    examples = load(folder).splits("a").train
    return len(examples), bool(everything(examples)[0].max() > 0.9)


# Images -------------------------------------------------------------------------------------------


def images(
    folder: Path, sizes: tuple[int, int] = (9, 7), classes: tuple[str, ...] = ("cat", "dog")
) -> None:
    """Write four images of each class, that of class k all of brightness 50 k + 50."""
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            ending = ("png", "jpg")[number % 2]
            Image.new("RGB", sizes, (50 * k + 50, 0, 0)).save(folder / name / f"{number}.{ending}")


def test_folders_of_classes_become_pixels_from_0_to_1(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    images(tmp_path / "a")
    images(tmp_path / "b")
    (tmp_path / "b" / "cat" / ".hidden.png").write_text("no image")
    task = load(tmp_path)
    assert task.clients == ("a", "b")
    assert parse_image_schema(task.schema) == ImageSchema(
        classes=("cat", "dog"), positive="dog", size=(9, 7)
    )
    for examples in task.splits("b"):
        with subtests.test(examples=examples):
            inputs, targets = everything(examples)
            assert inputs.shape[1:] == (3, 7, 9)
            np.testing.assert_allclose(
                inputs[:, 0].mean(dim=(1, 2)) * 255, 50 * targets + 50, atol=2
            )
            assert inputs[:, 1:].max() < 0.02
    assert task.model()(inputs).shape == (len(inputs), 2)


def test_images_are_brought_to_one_size_and_to_grey(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    images(tmp_path / "a")
    images(tmp_path / "b", sizes=(20, 30))
    with pytest.raises(
        FairbloomError, match=r"20×30 pixels, and the schema says 9×7.*image-folder.size=32"
    ):
        load(tmp_path).splits("b")
    task = load(tmp_path, size=8, grey=True)
    assert everything(task.splits("b").train)[0].shape == (7, 1, 8, 8)
    text = 'classes = ["cat", "dog"]\nsize = [8, 6]\nresize = true\n'
    task = load_task({**config(tmp_path), "schema": text})
    assert everything(task.splits("b").train)[0].shape == (7, 3, 6, 8)
    for right, wrong, words in (
        ('["cat", "dog"]', '["cat"]', "classes = "),
        ("[8, 6]", "[0, 6]", "size"),
        ("resize", "resiz", "resiz"),
    ):
        with subtests.test(right=right, wrong=wrong):
            with pytest.raises(FairbloomError, match=words):
                parse_image_schema(text.replace(right, wrong))


def test_every_format_that_pillow_opens_is_read(tmp_path: Path) -> None:
    Image.init()
    # Other data, films, and what Pillow opens by another program.
    others = {"BUFR", "GRIB", "HDF5", "WMF", "EPS", "MPEG", "IPTC"}
    assert {
        ending
        for ending, kind in Image.registered_extensions().items()
        if kind in Image.OPEN and kind not in others
    } <= {*PICTURES}
    images(tmp_path / "a")
    images(tmp_path / "b")
    for file in (tmp_path / "b" / "dog").iterdir():
        Image.open(file).save(file.with_suffix(".tif" if file.stem < "2" else ".BMP"))
        file.unlink()
    task = load(tmp_path)
    assert parse_image_schema(task.schema).classes == ("cat", "dog")
    assert sum(map(len, task.splits("b"))) == 8


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (["b/cat/1.heic", "b/cat/2.heic", "b/dog/n.txt"], "2 .heic, 1 .txt: save them as .png"),
        (["b/dog/scan"], "1 without an ending"),
        (["b/stray.png"], "b/stray.png lies in no class's folder: move it"),
        (["b/cat/new/1.png", "b/cat/new/2.png"], "new/1.png lies in no class's folder, as 1 more"),
        (["9.png"], "9.png lies in no class's folder"),
        (["b/dog/two.gif"], "two.gif has 2 pictures: save each"),
        (["b/dog/Thumbs.db", "b/dog/~$x", "b/__MACOSX/cat/._0.png", "b/readme.md"], ""),
    ],
    ids=["formats", "no ending", "client", "below", "top", "pages", "systems"],
)
def test_no_picture_is_left_out_in_silence(added: list[str], words: str, tmp_path: Path) -> None:
    images(tmp_path / "a")
    images(tmp_path / "b")
    for name in added:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"no picture")
        if file.suffix in (".png", ".gif"):
            frames = [Image.new("RGB", (9, 7), (k, 0, 0)) for k in range(2)]
            frames[0].save(file, save_all=file.suffix == ".gif", append_images=frames[1:])
    if not words:
        assert sum(map(len, load(tmp_path).splits("b"))) == 8
        return
    with pytest.raises(FairbloomError, match=re.escape(words)):
        check_data(RunSettings.of(config(tmp_path)))


@pytest.mark.parametrize("place", ["x.png", "cat/more/y.png"])
def test_a_device_with_a_stray_picture_names_it(tmp_path: Path, place: str) -> None:
    images(tmp_path / "a")
    (tmp_path / "a" / "cat" / "more").mkdir()
    Image.new("RGB", (9, 7)).save(tmp_path / "a" / place)
    with pytest.raises(FairbloomError, match=f"{place} lies in no class's folder"):
        load(tmp_path / "a").splits("a")


def test_a_device_may_have_the_folders_of_classes_alone(tmp_path: Path) -> None:
    images(tmp_path / "site-a")
    assert load(tmp_path / "site-a").clients == ("site-a",)
    assert load(tmp_path / "site-a").schema == load(tmp_path).schema


def test_without_pillow_images_name_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FairbloomError, match=re.escape(install_command("images"))):
        load(tmp_path)


def test_images_that_have_changed_are_read_again(tmp_path: Path) -> None:
    """However deep they lie, and whether they are new, gone or other ones."""
    for name in ("a", "b"):
        images(tmp_path / name)
    seen = [seen_of(tmp_path)]
    for file in (tmp_path / "a").glob("*/*"):
        Image.new("RGB", (9, 7), (250, 0, 0)).save(file)
    seen.append(seen_of(tmp_path))
    Image.new("RGB", (9, 7)).save(tmp_path / "a" / "dog" / "8.png")
    seen.append(seen_of(tmp_path))
    for file in (tmp_path / "a" / "dog").glob("*.jpg"):
        file.unlink()
    seen.append(seen_of(tmp_path))
    assert seen == [(7, False), (7, True), (8, True), (6, True)]  # of 8, 8, 9 and 7 images


def test_what_is_wrong_with_images_is_said_with_file_and_remedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ("broken", "few", "strange", "uneven"):
        images(tmp_path / name)
    images(tmp_path / "good")
    for name in ("broken", "uneven"):
        (tmp_path / name / "cat" / "1.jpg").write_bytes(b"no image")
    (tmp_path / "uneven" / "cat" / "notes.txt").touch()
    Image.new("L", (9, 8)).save(tmp_path / "uneven" / "dog" / "9.png")
    for file in (tmp_path / "good").glob("*/*"):
        Image.fromarray(np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3)).save(file)
    for file in sorted((tmp_path / "few").glob("*/*"))[:5]:
        file.unlink()
    (tmp_path / "strange" / "dog").rename(tmp_path / "strange" / "wolf")
    shown = {
        str(row["client"]): row
        for row in describe_data(RunSettings.of(config(tmp_path)))["clients"]
    }
    for name, words in {
        "broken": ("cat/1.jpg cannot be read as an image", "take it out"),
        "few": ("few has 3 images", "at least 5", "CLASS/1.png"),
        "uneven": (
            *("dog/9.png has 9×8 pixels, and the schema says 9×7", "image-folder.size=32"),
            *("1 .txt: save them as .png", "cat/1.jpg cannot be read as an image"),
        ),
    }.items():
        with subtests.test(name=name, words=words):
            assert all(word in str(shown[name]["problem"]) for word in words)
    assert shown["good"]["target"] == "cat: 4, dog: 4, wolf: 0"
    with pytest.raises(
        FairbloomError, match=r"strange/wolf is not one of the classes cat, dog: rename it"
    ):
        load(tmp_path, classes="cat,dog").splits("strange")


def tiff_of_twelve_bits(*pixels: int) -> bytes:
    """Return a grey image of 2×2 pixels, which are packed two to three bytes."""
    tags = {256: 2, 257: 2, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: 6}
    return (
        b"II*\0"
        + struct.pack("<I", 14)
        + b"".join(
            (a << 12 | b).to_bytes(3, "big") for a, b in zip(pixels[::2], pixels[1::2], strict=True)
        )
        + struct.pack("<H", len(tags))
        + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        + bytes(4)
    )


def test_an_image_is_scaled_by_the_range_that_its_depth_has(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    grey = np.arange(0, 4096, 64, np.uint16).reshape(8, 8)  # twelve bits
    Image.fromarray(grey).save(tmp_path / "12.tif")
    (tmp_path / "declared.tif").write_bytes(tiff_of_twelve_bits(0, 0x800, 0xFFF, 0x400))
    Image.fromarray(16 * grey).save(tmp_path / "16.png")
    Image.fromarray((grey // 16).astype(np.uint8)).save(tmp_path / "8.png")
    for name, largest in {
        "16.png": 16 * 4032 / 65535,
        "12.tif": 4032 / 65535,
        "8.png": 252 / 255,
    }.items():
        with subtests.test(name=name, largest=largest):
            for shape in ((1, 8, 8), (3, 8, 8), (1, 4, 4)):
                inputs = image_inputs([tmp_path / name], shape)
                assert inputs.shape == (1, *shape)
                assert float(inputs.max()) == pytest.approx(
                    largest, abs=1e-6 if shape[1] == 8 else 0.15
                )
                assert float(inputs.std()) > 0.2 * largest
    np.testing.assert_allclose(
        image_inputs([tmp_path / "declared.tif"], (1, 2, 2)).flatten(),
        [0.0, 0x800 / 4095, 1.0, 0x400 / 4095],
        atol=1e-6,
    )
    black_is_zero = struct.pack("<HHII", 262, 3, 1, 1)
    positive = (tmp_path / "12.tif").read_bytes()
    assert black_is_zero in positive
    (tmp_path / "negative.tif").write_bytes(
        positive.replace(black_is_zero, struct.pack("<HHII", 262, 3, 1, 0))
    )
    both = image_inputs([tmp_path / "12.tif", tmp_path / "negative.tif"], (1, 8, 8))
    np.testing.assert_allclose(both[1], 1.0 - both[0], atol=1e-6)
    for numbers in (grey.astype(np.int32) * 100, grey.astype(np.float32)):
        with subtests.test(numbers=numbers):
            Image.fromarray(numbers).save(tmp_path / "other.tif")
            with pytest.raises(
                FairbloomError, match=r"other\.tif cannot be read .*at most 16 bits"
            ):
                image_inputs([tmp_path / "other.tif"], (1, 8, 8))


def write_brightest(folder: Path, largest: Mapping[str, int]) -> None:
    """Write images of 16 bits for each client; `largest` has the brightest pixel of most."""
    for client, most in largest.items():
        for number, name in enumerate(["cat", "dog"] * 12):
            pixels = np.linspace(0, most, 64).reshape(8, 8).astype(np.uint16)
            pixels[0, 0] = 65_535 if number == 5 else 0  # a mark burnt into one image
            file = folder / client / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)


@pytest.mark.parametrize(
    ("largest", "named"),
    [
        ({"a": 65_535, "b": 4_095, "c": 60_000}, {"b": ("0.0625", "0.958")}),
        ({"a": 4_095, "b": 4_095, "c": 60_000, "d": 4_000}, {"c": ("0.916", "0.0625")}),
        ({"a": 65_535, "b": 16_383}, {"a": ("1 of", "0.25"), "b": ("0.25", "1 elsewhere")}),
        ({"a": 65_535, "b": 24_000, "c": 40_000}, {}),
        ({"a": 4_095}, {}),
    ],
    ids=["12 bits in 16", "all but one", "two sides", "by nature", "one client"],
)
def test_images_far_darker_or_brighter_are_remarked(
    tmp_path: Path, largest: Mapping[str, int], named: Mapping[str, tuple[str, ...]]
) -> None:
    write_brightest(tmp_path, largest)
    found = describe_data(RunSettings.of(config(tmp_path)))["remarks"]
    remarks = {str(row["client"]): str(row["remark"]) for row in found}
    assert remarks.keys() == named.keys()
    for client, words in named.items():
        assert [word for word in words if word not in remarks[client]] == [], remarks[client]


def test_a_run_counts_the_remark_on_dark_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_brightest(tmp_path, {"a": 65_535, "b": 4_095, "c": 60_000})
    check_data(RunSettings.of(config(tmp_path)))
    assert "1 remark on the data" in caplog.text


def test_unreadable_images_leave_the_others_compared(tmp_path: Path) -> None:
    write_brightest(tmp_path, {"a": 65_535, "b": 4_095, "c": 60_000, "d": 50_000})
    for file in (tmp_path / "d").rglob("*.png"):
        file.write_bytes(b"no picture")
    described = describe_data(RunSettings.of(config(tmp_path, size=8)))
    assert [row["client"] for row in described["remarks"]] == ["b"]
    assert [row["client"] for row in described["clients"] if "problem" in row] == ["d"]


@pytest.mark.parametrize(("orientation", "turn"), {1: 0, 3: 2, 6: 1, 8: 3}.items())
def test_photos_are_turned_as_their_camera_says(
    tmp_path: Path, orientation: int, turn: int
) -> None:
    upright = np.zeros((6, 4, 3), np.uint8)
    upright[:3] = 255
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(np.rot90(upright, turn)).save(tmp_path / f"{orientation}.png", exif=exif)
    assert size_of(tmp_path / f"{orientation}.png") == (4, 6)
    pixels = image_inputs([tmp_path / f"{orientation}.png"], (1, 6, 4))[0, 0]
    assert pixels[:3].min() == 1.0
    assert pixels[3:].max() == 0.0


def test_transparent_images_stand_on_white(tmp_path: Path) -> None:
    red = np.zeros((2, 2, 4), np.uint8)
    file = tmp_path / "a.png"
    # opaque above, one part in five below, transparent elsewhere
    red[..., 0] = 255
    red[0, :, 3] = 255
    red[1, 0, 3] = 51
    whole = Image.fromarray(red)
    expected = [[1, 1, 1, 1], [0, 0, 0.8, 1], [0, 0, 0.8, 1]]
    for image in (whole, whole.quantize(8)):
        image.save(file)
        np.testing.assert_allclose(
            image_inputs([file], (3, 2, 2)).reshape(3, 4), expected, atol=0.01
        )
    palette = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.save(file)
    assert image_inputs([file], (3, 2, 2)).tolist() == [
        [[[1, 0], [0, 0]], [[0, 1], [0, 1]], [[0, 0], [1, 0]]]
    ]
    Image.fromarray(np.array([[True, False], [True, False]])).save(file)
    # not 0 or 1
    assert image_inputs([file], (1, 2, 1)).flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_folder_without_folders_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="it holds no folder, but nothing at all"):
        load(tmp_path)
