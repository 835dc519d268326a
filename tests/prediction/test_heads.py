"""Predictions and exports of runs whose clients keep a part of the model for themselves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import fairbloom
from fairbloom.tasks import load_task
from tests.experiments.helpers import fairbloom as command
from tests.simulation.helpers import table

from .made import copy_to_device

CLIENT = "client-1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients of digits, each with its own last layer."""
    out = tmp_path_factory.mktemp("heads") / "run"
    settings = {"model": "mlp", "partition": "shards", "personal-parameters": "head"}
    return fairbloom.run(
        "digits", clients=3, rounds=3, device="cpu", progress=False, out=out, settings=settings
    )


@pytest.fixture
def images(run: fairbloom.Run, tmp_path: Path) -> Path:
    """The test images of a client, in a file."""
    inputs, _ = load_task(run.settings).splits(CLIENT).test[:]
    np.savez(tmp_path / "new.npz", x=inputs.numpy())
    return tmp_path / "new.npz"


def share_of_right(run: fairbloom.Run, predicted: Sequence[str]) -> float:
    """Return how many percent of the client's test images are right."""
    task = load_task(run.settings)
    _, targets = task.splits(CLIENT).test[:]
    assert task.preprocessing is not None
    names = task.preprocessing("").classes
    pairs = zip(predicted, targets.tolist(), strict=True)
    return 100.0 * float(np.mean([name == names[target] for name, target in pairs]))


def predict(folder: Path, images: Path, *options: str) -> list[str]:
    out = images.with_name("out.csv")
    assert command("predict", folder, images, *options, "--out", out) == 0
    predicted = [row["predicted_class"] for row in table(out)]
    out.unlink()
    return predicted


def test_a_named_client_predicts_with_its_own_head(run: fairbloom.Run, images: Path) -> None:
    predicted = predict(run.folder, images, "--client", CLIENT)
    measured = run.final(model="personal")[CLIENT]
    assert share_of_right(run, predicted) == pytest.approx(measured, abs=1e-4)


def test_without_a_name_the_model_lacks_heads(
    run: fairbloom.Run, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predicted = predict(run.folder, images)
    assert "the initial values of the parameters that each client keeps" in caplog.text
    assert "personal-parameters = 'head': take a client's by --client" in caplog.text
    measured = run.final(model="global")[CLIENT]
    assert share_of_right(run, predicted) == pytest.approx(measured, abs=1e-4)
    initial = load_task(run.settings).model().state_dict()
    common = run.model().state_dict()
    assert torch.equal(common["5.weight"], initial["5.weight"])
    assert not torch.equal(common["1.weight"], initial["1.weight"])


def test_a_device_predicts_with_its_own_head(
    run: fairbloom.Run, images: Path, tmp_path: Path
) -> None:
    state = copy_to_device(run, CLIENT, tmp_path / "state")
    assert predict(state / "model", images) == predict(run.folder, images, "--client", CLIENT)


@pytest.mark.parametrize("client", [CLIENT, ""])
def test_an_export_has_the_head_that_predicts(
    run: fairbloom.Run, images: Path, caplog: pytest.LogCaptureFixture, client: str
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = images.with_name("model.onnx")
    named = ("--client", client) if client else ()
    assert command("export", run.folder, *named, "--out", out) == 0
    assert ("take a client's by --client" in caplog.text) == (client == "")
    session = runtime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    values, _ = session.run(None, {given.name: np.load(images)["x"]})
    assert list(values) == predict(run.folder, images, *named)
