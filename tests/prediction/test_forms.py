"""Predictions for arrays, images, known data sets and user-defined tasks, and their errors."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.scores import ACCURACY
from fairbloom.tables.preprocessing import encode_columns, input_columns
from fairbloom.tasks import TaskInfo, forget_tasks, load_task
from fairbloom.tasks.datasets.adult import ADULT, COLUMNS
from fairbloom.tasks.datasets.store import folder_of
from fairbloom.tasks.datasets.uci import read_columns
from fairbloom.tasks.task import Setup
from tests.originals import needs
from tests.simulation.helpers import table

from .made import task_of

RANDOM = np.random.default_rng(5)
SMALL: dict[str, Any] = {"rounds": 2, "device": "cpu", "progress": False}


# NumPy arrays -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients with grey images of 8 × 8 pixels."""
    return fairbloom.run(
        "digits", clients=3, out=tmp_path_factory.mktemp("arrays") / "run", partition="iid", **SMALL
    )


X = RANDOM.normal(size=(4, 8, 8))
BROKEN = X.copy()
BROKEN[2, 1, 1] = np.nan
WRONG: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "another shape": ({"x": X[:, :4]}, r"\(4, 4, 8\).*8×8"),
    "no examples": ({"x": X[:0]}, r"\(0, 8, 8\)"),
    "a single number": ({"x": np.array(3.0)}, r"\(\)"),
    "no x": ({"inputs": X}, "inputs"),
    "texts": ({"x": X.astype(str)}, "<U"),
    "NaN": ({"x": BROKEN}, "1 of 4 examples.*\n  example 2"),
    "objects": ({"x": np.array([None] * 30)}, "cannot be read"),
    "no arrays": (b"age,target\n1,0\n", "cannot be read"),
}


@pytest.mark.parametrize(("content", "expected"), WRONG.values())
def test_malformed_arrays_are_refused(
    arrays: fairbloom.Run, tmp_path: Path, content: dict[str, Any] | bytes, expected: str
) -> None:
    path = tmp_path / "new.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    with pytest.raises(FairbloomError, match=f"{re.escape(str(path))}.*{expected}"):
        load_predictor(arrays.folder).predict_file(path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(FairbloomError, match=r"trained on arrays.*Predictor\.outputs"):
        arrays.predict(pandas.DataFrame({"x": [1, 2]}))


# Images -------------------------------------------------------------------------------------------


def draw(folder: Path, count: int, size: tuple[int, int] = (6, 5)) -> None:
    """Write bright and dark images, each class in a folder of its own."""
    for place, name in enumerate(("dark", "bright")):
        (folder / name).mkdir(parents=True)
        for k in range(count):
            Image.fromarray(
                RANDOM.integers(0, 100, (size[1], size[0], 3), dtype=np.uint8)
                + np.uint8(120 * place)
            ).save(folder / name / f"{k}.png")


@pytest.fixture(scope="module", params=[0, 5])
def images(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> fairbloom.Run:
    """Two clients with images of one size, which are resized, or not."""
    folder = tmp_path_factory.mktemp("images")
    for name in ("a", "b"):
        draw(folder / "data" / name, 10)
    settings = {"image-folder.size": request.param, "learning-rate": 0.2}
    data = {"data_dir": folder / "data", "out": folder / "run"}
    return fairbloom.run("image-folder", model="mlp", settings=settings, **data, **SMALL)


def test_images_are_predicted_as_clients_measured(
    images: fairbloom.Run, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    data = images.folder.parent / "data"
    predictor = load_predictor(images.folder)
    for client in ("a", "b"):
        with subtests.test(client=client):
            predictor.predict_file(data / client, tmp_path / f"{client}.csv")
            found = {
                row["file"]: row["predicted_class"] for row in table(tmp_path / f"{client}.csv")
            }
            assert len(found) == 20
            files = [
                f"{name}/{k}.png" for name in ("bright", "dark") for k in sorted(range(10), key=str)
            ]
            test = task_of(images).splits(client).test.rows
            assert test is not None
            assert 100.0 * np.mean(
                [found[files[place]] == files[place].partition("/")[0] for place in test.tolist()]
            ) == pytest.approx(images.final(ACCURACY)[client], abs=1e-4)
    assert predictor.predict_file(data / "a" / "dark" / "0.png", tmp_path / "out.csv") == 1
    assert [row["file"] for row in table(tmp_path / "out.csv")] == ["0.png"]


def test_files_beside_new_pictures_are_counted(images: fairbloom.Run, tmp_path: Path) -> None:
    draw(tmp_path / "new", 2)
    (tmp_path / "new" / "Thumbs.db").touch()
    predictor = load_predictor(images.folder)
    assert predictor.predict_file(tmp_path / "new", tmp_path / "out.csv") == 4
    with pytest.raises(FairbloomError, match="is no table: name a client's own table"):
        predictor.predict_file(tmp_path / "new" / "dark" / "0.png", tmp_path / "tested.csv", "test")
    (tmp_path / "new" / "dark" / "5.heic").touch()
    with pytest.raises(FairbloomError, match=r"no pictures that are read, 1 \.heic"):
        predictor.predict_file(tmp_path / "new", tmp_path / "again.csv")


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "torn": r"2 of 6 images cannot be read(.|\n)*text\.jpg(.|\n)*torn\.png",
        "none": "has no images",
        "nowhere": "no such folder or image",
        "small": "has 9×9 pixels, and the model takes 6×5",
    }.items(),
)
def test_images_that_do_not_fit_are_named(
    images: fairbloom.Run, tmp_path: Path, name: str, expected: str
) -> None:
    predictor = load_predictor(images.folder)
    out = tmp_path / "out.csv"
    (tmp_path / "none").mkdir()
    draw(tmp_path / "small", 1, size=(9, 9))
    draw(tmp_path / "torn", 2)
    (tmp_path / "torn" / "dark" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "torn" / "dark" / "text.jpg").write_text("no image")
    if name == "small" and images.settings["image-folder.size"]:  # resized as in training
        assert predictor.predict_file(tmp_path / name, out) == 2
    else:
        with pytest.raises(FairbloomError, match=expected):
            predictor.predict_file(tmp_path / name, out)


# Known data sets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["new.npz", "bytes.npz"])
def test_digits_are_predicted_by_their_names(
    arrays: fairbloom.Run, tmp_path: Path, file: str
) -> None:
    run = arrays
    task = load_task(arrays.settings)
    inputs, targets = task.splits(task.clients[0]).test[slice(None)]
    np.savez(tmp_path / "new.npz", x=inputs.numpy())
    np.savez(tmp_path / "bytes.npz", x=(16.0 * inputs).round().numpy().astype(np.uint8))
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    load_predictor(run.folder).predict_file(tmp_path / file, tmp_path / "out.csv")
    found = [row["predicted_class"] for row in table(tmp_path / "out.csv")]
    assert 100.0 * np.mean(
        [name == names[target] for name, target in zip(found, targets.tolist(), strict=True)]
    ) == pytest.approx(run.final(ACCURACY)[task.clients[0]], abs=1e-4)
    (tmp_path / "out.csv").unlink()


@needs("adult/adult.data")
def test_people_of_adult_become_the_inputs_of_training(tmp_path: Path) -> None:
    run = fairbloom.run("adult", out=tmp_path / "run", **SMALL)
    path = folder_of(Setup.of({})) / "adult" / "adult.data"
    found = run.predict(
        pandas.read_csv(path, header=None, names=list(COLUMNS), skipinitialspace=True).iloc[:2000]
    )
    inputs = encode_columns(input_columns(ADULT), read_columns(path, COLUMNS, ADULT))
    np.testing.assert_allclose(
        found[["probability_<=50K", "probability_>50K"]],
        run.predictor().outputs(torch.from_numpy(inputs[:2000])).softmax(dim=1).double(),
        rtol=1e-5,
    )


# User-defined tasks and models --------------------------------------------------------------------

MODULE = """
from dataclasses import replace
import torch
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tables.preprocessing import InputColumn, Preprocessing

MEANS = {"a": 10.0, "b": 20.0}


def plain(setup):
    def splits(client):
        x = torch.randn(40, 1, generator=torch.Generator().manual_seed(ord(client)))
        y = (x[:, 0] > 0).long()
        return Splits(Examples(x[10:], y[10:]), Examples(x[:10], y[:10]))
    model = lambda: torch.nn.Linear(1, 2)
    return Task(("a", "b"), model, torch.nn.CrossEntropyLoss(reduction="none"), splits)


def prepared(setup):
    def preprocessing(client):
        center = MEANS.get(client, 0.0)
        column = InputColumn("height", "number", center=center, scale=float(client != ""))
        about = {"form": "table", "columns": (column,), "target": "tall", "classes": ("no", "yes")}
        return Preprocessing(**about, client=client, per_client=() if client else ("height",))
    return replace(plain(setup), preprocessing=preprocessing)


def wrong(setup):
    return replace(plain(setup), preprocessing=lambda client: {})


class Half(torch.nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(inputs, outputs))
        self.bfloat16()

    def forward(self, x):
        return super().forward(x.bfloat16())
"""


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a user's module, in the current directory."""
    monkeypatch.syspath_prepend(here)
    (here / "points_of_mine.py").write_text(MODULE)
    yield here / "points_of_mine.py"
    forget_module()


def forget_module() -> None:
    """Let the module be read again, as another process would."""
    sys.modules.pop("points_of_mine", None)
    forget_tasks()
    TaskInfo.of.cache_clear()


def test_a_task_without_preprocessing_gives_model_and_outputs(mine: Path, tmp_path: Path) -> None:
    run = fairbloom.run("points_of_mine:plain", out="run", **SMALL)
    predictor = run.predictor()
    inputs = torch.randn(3, 1)
    torch.testing.assert_close(predictor.outputs(inputs), run.model()(inputs))
    with pytest.raises(
        FairbloomError, match=r"does not say how files become inputs \(Task\.preprocessing\)"
    ):
        predictor.predict_file(mine, tmp_path / "out.csv")


def test_a_users_task_predicts_by_its_own_preprocessing(
    mine: Path, subtests: pytest.Subtests
) -> None:
    small = SMALL | {"rounds": 10, "settings": {"learning-rate": 1.0}}
    run = fairbloom.run("points_of_mine:prepared", out="run", **small)
    for client, mean in (("a", 10.0), ("b", 20.0)):
        with subtests.test(client=client, mean=mean):
            heights = pandas.DataFrame({"height": [mean - 2.0, mean + 2.0]})
            assert list(run.predict(heights, client=client)["predicted_tall"]) == ["no", "yes"]
    with pytest.raises(FairbloomError, match="by --client with one of a, b"):
        run.predict(heights)
    assert [*run.model().state_dict()] == [*run.model("a").state_dict()]  # it needs no client
    with pytest.raises(
        FairbloomError, match=r"preprocessing\(''\) must return a Preprocessing, got dict"
    ):
        fairbloom.run("points_of_mine:wrong", out="wrong", **SMALL)


def test_a_model_in_bfloat16_predicts(
    mine: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    settings = {"personal-lambda": 0.1}
    run = fairbloom.run(
        "digits", clients=2, out="run", model="points_of_mine:Half", settings=settings, **SMALL
    )
    np.savez(tmp_path / "new.npz", x=RANDOM.random((20, 8, 8)))
    for model in ("last", "best", "personal"):
        with subtests.test(model=model):
            predictor = run.predictor("client-0", model)
            assert {each.dtype for each in predictor.module.parameters()} == {torch.bfloat16}
            assert predictor.predict_file(tmp_path / "new.npz", tmp_path / f"{model}.csv") == 20


def test_a_module_that_has_changed_is_warned_of(
    mine: Path,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    by_task = fairbloom.run("points_of_mine:plain", out="by-task", **SMALL)
    by_model = fairbloom.run(
        "digits", clients=2, out="by-model", model="points_of_mine:Half", **SMALL
    )
    for change in ("", "\n# changed\n"):
        with subtests.test(change=change):
            mine.write_text(MODULE + change)
            for run in (by_task, by_model):
                caplog.clear()
                run.model()
                assert ("module points_of_mine, from which the run in" in caplog.text) == bool(
                    change
                )
    mine.unlink()
    forget_module()
    with pytest.raises(FairbloomError, match="there is no module points_of_mine"):
        by_task.predictor(trust=True)
