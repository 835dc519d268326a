"""torchvision's classifiers as models, where torchvision is installed: make test-vision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks.classifiers import CLASSIFIERS, PREFIX
from fairbloom.tasks.models import build
from fairbloom.tasks.models.weights import load_initial_weights

pytestmark = pytest.mark.vision
models = pytest.importorskip("torchvision.models", reason="needs torchvision: make test-vision")
Image = pytest.importorskip("PIL.Image")

# The side of the images of networks that do not take 32 pixels.
SIZES = {"vit_b_16": 224, "alexnet": 64, "inception_v3": 96, "googlenet": 64}


def made(name: str, shape: tuple[int, ...], norm: str = "auto", seed: int = 3) -> nn.Module:
    return build(f"{PREFIX}{name}", shape, 7, seed, norm=norm)


def norms_of(model: nn.Module) -> set[type[nn.Module]]:
    return {type(each) for each in model.modules() if "Norm" in type(each).__name__}


def resnet(outputs: int) -> nn.Module:
    network: nn.Module = models.resnet18(num_classes=outputs)
    return network


# Networks -----------------------------------------------------------------------------------------


def test_the_names_are_those_of_torchvision() -> None:
    assert sorted(CLASSIFIERS) == sorted(models.list_models(module=models))


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v3_small",
        "squeezenet1_1",
        "googlenet",
        "inception_v3",
        "alexnet",
        "vgg11_bn",
        "shufflenet_v2_x0_5",
        "regnet_y_400mf",
        "efficientnet_b0",
        "densenet121",
        "convnext_tiny",
        "vit_b_16",
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_classifier_trains_with_the_outputs_of_a_task(name: str, channels: int) -> None:
    side = SIZES.get(name, 32)
    model = made(name, (channels, side, side))
    answers = model(torch.randn(3, channels, side, side))
    assert answers.shape == (3, 7)
    answers.sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    assert nn.BatchNorm2d not in norms_of(model)


def test_its_own_norm_is_the_network_of_torchvision() -> None:
    """To the bit, by the run's seed: as a user's function that calls torchvision."""
    ours = made("resnet18", (3, 32, 32), "own").state_dict()
    theirs = build(f"{__name__}:resnet", (3, 32, 32), 7, 3).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("norm", "groups"), [("group", {32}), ("layer", {1})])
def test_norm_layers_are_replaced(norm: str, groups: set[int]) -> None:
    model = made("resnet18", (3, 32, 32), norm)
    found = [each for each in model.modules() if isinstance(each, nn.GroupNorm)]
    assert len(found) == 20
    assert {each.num_groups for each in found} == groups
    assert norms_of(model) == {nn.GroupNorm}


def test_a_grey_image_is_one_of_three_equal_channels() -> None:
    grey = made("resnet18", (1, 32, 32)).eval()
    coloured = made("resnet18", (3, 32, 32)).eval()
    image = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            grey(image), coloured(image.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("name", "shape", "norm", "words"),
    [
        ("resnet99", (3, 32, 32), "auto", "did you mean resnet"),
        ("vit_b_32", (3, 32, 32), "auto", "32 × 32 pixels, but of 224 on a side"),
        ("alexnet", (1, 28, 28), "auto", "28 × 28 pixels, but of 64, 96, 128"),
        ("resnet18", (13,), "auto", "takes images of one or three channels"),
        ("resnet18", (4, 32, 32), "auto", "takes images of one or three channels"),
        ("convnext_tiny", (3, 32, 32), "group", "it has no BatchNorm|has no BatchNorm"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, shape: tuple[int, ...], norm: str, words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        made(name, shape, norm)


# Weights ------------------------------------------------------------------------------------------


def test_weights_may_be_of_other_outputs_and_colours(tmp_path: Path) -> None:
    trained = models.resnet18(num_classes=1000)
    torch.save(trained.state_dict(), tmp_path / "trained.pth")
    model = made("resnet18", (1, 32, 32), "own")
    before = model.state_dict()["fc.weight"].clone()
    load_initial_weights(model, str(tmp_path / "trained.pth"))
    state = model.state_dict()
    stored = trained.state_dict()
    assert torch.equal(state["layer4.1.conv2.weight"], stored["layer4.1.conv2.weight"])
    assert torch.equal(state["conv1.weight"], stored["conv1.weight"].sum(1, keepdim=True))
    assert torch.equal(state["fc.weight"], before)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(models.resnet34().state_dict(), tmp_path / "other.pth")
    with pytest.raises(FairbloomError, match=r"is of another model: it has layer1\.2\.bn1"):
        load_initial_weights(made("resnet18", (3, 32, 32), "own"), str(tmp_path / "other.pth"))


# Runs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 pictures of two clients: the class is the colour."""
    random = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("pictures")
    for client in ("north", "south"):
        for channel, label in enumerate(("red", "green")):
            folder = root / client / label
            folder.mkdir(parents=True)
            for number in range(50):
                pixels = random.integers(0, 120, (32, 32, 3), dtype=np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def run(pictures: Path, out: Path, **changes: Any) -> fairbloom.Run:
    settings = {
        "task": "image-folder",
        "data-dir": str(pictures),
        "model": f"{PREFIX}mobilenet_v3_small",
        "augment": "flip",
        "num-rounds": 1,
        "device": "cpu",
        "out": str(out),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return fairbloom.load(simulate(Settings.of(settings)))


def test_a_run_predicts(pictures: Path, tmp_path: Path) -> None:
    finished = run(pictures, tmp_path / "run")
    assert finished.finished
    predictor = load_predictor(finished.folder)
    assert predictor.predict_file(pictures / "north", tmp_path / "predicted.csv") == 100


def test_engines_train_the_same_model(pictures: Path, tmp_path: Path) -> None:
    model = f"{PREFIX}resnet18"
    loop, stacked = (
        run(pictures, tmp_path / engine, engine=engine, model=model, learning_rate=0.01)
        for engine in ("loop", "stacked")
    )
    one, near = (each.model().state_dict() for each in (loop, stacked))
    for name in one:
        torch.testing.assert_close(one[name], near[name], rtol=1e-3, atol=1e-3)


def test_a_run_begins_with_the_weights_of_a_file(pictures: Path, tmp_path: Path) -> None:
    first = run(pictures, tmp_path / "first", model=f"{PREFIX}resnet18", norm="own")
    weights = str(first.folder / "model.safetensors")
    named = {"model": f"{PREFIX}resnet18", "initial_weights": weights, "learning_rate": 1e-9}
    second = run(pictures, tmp_path / "second", **named)
    assert second.settings["norm"] == "own"
    before = first.model().state_dict()
    after = second.model().state_dict()
    for name, parameter in first.model().named_parameters():
        torch.testing.assert_close(after[name], parameter.data, msg=name)
    assert before.keys() == after.keys()
