"""torchvision's names and initial weights, without torchvision."""

import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import fairbloom
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.errors import FairbloomError, install_command
from fairbloom.protocol.settings import SettingsError, expand_own_settings
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks.models import build
from fairbloom.tasks.models.vision import count_groups
from fairbloom.tasks.models.weights import load_initial_weights

RESNET = "torchvision:resnet18"


def test_without_torchvision_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(FairbloomError, match=re.escape(install_command("vision"))):
        build(RESNET, (3, 32, 32), 2, 0)


class Unfit(types.ModuleType):
    """A torchvision of another build than PyTorch."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")


def test_another_build_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", Unfit("torchvision"))
    monkeypatch.setattr(
        "fairbloom.tasks.models.vision.version", {"torchvision": "0.1", "torch": "9.9"}.__getitem__
    )
    with pytest.raises(FairbloomError, match=r"0\.1 does not fit PyTorch 9\.9 .*of the same build"):
        build(RESNET, (3, 32, 32), 2, 0)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (24, 24), (40, 20), (67, 1)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    assert count_groups(channels) == groups


def test_norm_is_the_networks_own_with_weights() -> None:
    assert expand_own_settings({"model": RESNET, "initial-weights": "r.pth"})["norm"] == "own"
    assert "norm" not in expand_own_settings({"model": RESNET})
    assert "norm" not in expand_own_settings({"model": "mlp", "initial-weights": "r.pth"})


def test_another_norm_with_weights_is_refused() -> None:
    weights = {"model": RESNET, "initial-weights": "r.pth", "norm": "group"}
    with pytest.raises(SettingsError, match="leave norm out"):
        Settings.of(weights)


def test_norm_without_effect_is_refused() -> None:
    with pytest.raises(FairbloomError, match="norm = 'layer' has no effect with model = 'mlp'"):
        build("mlp", (4,), 2, 0, norm="layer")


# Devices ------------------------------------------------------------------------------------------


def test_a_device_takes_the_names_of_the_list() -> None:
    accepted = accepted_settings(
        {"task": "image-folder", "model": RESNET, "initial-weights": "/etc/passwd"}
    )
    assert accepted["model"] == RESNET
    assert accepted["norm"] == "own"
    assert "initial-weights" not in accepted


@pytest.mark.parametrize("model", ["torchvision:os", "torchvision:resnet18.x", "evil:resnet18"])
def test_a_device_takes_no_other_name_of_a_module(model: str) -> None:
    with pytest.raises(SettingRefusedError, match="no import string"):
        accepted_settings({"task": "image-folder", "model": model})


# Initial weights ----------------------------------------------------------------------------------


def net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, outputs))


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_weights_are_those_of_the_file(tmp_path: Path, ending: str) -> None:
    trained = net()
    path = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save(trained.state_dict(), path)
    else:
        save_file(trained.state_dict(), path)
    model = net()
    load_initial_weights(model, str(path))
    torch.testing.assert_close(model.state_dict(), trained.state_dict(), rtol=0, atol=0)


class Named(nn.Module):
    """Layers with names that others have changed, or that mean auxiliary outputs elsewhere."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(8, 8)
        self.denselayer1 = nn.ModuleDict({"norm1": nn.BatchNorm1d(8)})
        self.middle = nn.Linear(8, 8)
        if tied:
            self.middle.weight = self.auxiliary.weight
        self.aux_head = nn.Linear(8, 8)


def renamed(state: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {re.sub(old, new, name): array.clone() for name, array in state.items()}


@pytest.mark.parametrize(
    "written",
    [
        lambda state: dict(state),
        lambda state: {"state_dict": dict(state), "epoch": 3},
        lambda state: renamed(state, "^", "module."),
        lambda state: renamed(state, "^", "_orig_mod."),
        lambda state: renamed(state, "norm1", "norm.1"),
        lambda state: renamed(state, "^", "module.") | {"aux1.fc.bias": torch.ones(3)},
        lambda state: {name: each for name, each in state.items() if "num_batches" not in name},
        lambda state: {name: each for name, each in state.items() if name != "middle.weight"},
        lambda state: {name: each for name, each in state.items() if name != "auxiliary.weight"},
    ],
)
def test_a_file_may_be_written_as_pytorch_takes_it(
    tmp_path: Path, written: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trained = Named(tied=True)
    for parameter in trained.parameters():
        nn.init.normal_(parameter)
    state = trained.state_dict()
    torch.save(written(state), tmp_path / "w.pth")
    model = Named(tied=True)
    load_initial_weights(model, str(tmp_path / "w.pth"))
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert "begins anew" not in caplog.text


def test_only_the_last_layer_may_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for state, said in (
        (net(10).state_dict(), "2.bias, 2.weight"),
        ({name: each for name, each in net().state_dict().items() if name != "2.bias"}, "2.bias"),
    ):
        torch.save(dict(state), tmp_path / "w.pth")
        model = net()
        head = model.state_dict()["2.bias"].clone()
        caplog.clear()
        load_initial_weights(model, str(tmp_path / "w.pth"))
        assert torch.equal(model.state_dict()["2.bias"], head)
        assert f"has no {said}: it begins anew" in caplog.text
    wide = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(FairbloomError, match=r"its 0\.weight has shape"):
        load_initial_weights(wide, str(tmp_path / "w.pth"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"no weights", "it must be a state dict"),
        ({"0.weight": torch.zeros(2, 1, 3, 3)}, "is of another model: it lacks 0.bias"),
        ([1, 2], "holds a list"),
        ({"0.weight": torch.zeros(2, 1, 3, 3) / 0.0}, "is of another model: it lacks 0.bias"),
        (
            {"0.weight": torch.zeros(2, 1, 3, 3) / 0.0, "0.bias": torch.zeros(2)},
            "its 0.weight is not finite",
        ),
        (dict(net().state_dict()) | {"2.scale": torch.ones(1)}, "of another model: it has 2.scale"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: object, words: str) -> None:
    path = tmp_path / "w.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(FairbloomError, match=words):
        load_initial_weights(net(), str(path))


def test_a_pickle_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    torch.save(net(), tmp_path / "whole.pth")
    with pytest.raises(FairbloomError, match="it must be a state dict"):
        load_initial_weights(net(), str(tmp_path / "whole.pth"))


def test_a_run_begins_with_the_weights_and_continues(tmp_path: Path) -> None:
    shared = {"clients": 4, "model": "mlp", "device": "cpu", "learning-rate": 1e-9, "seed": 5}

    def run(name: str, rounds: int, **others: Any) -> fairbloom.Run:
        config = {**shared, "num-rounds": rounds, "out": str(tmp_path / name), **others}
        return fairbloom.load(simulate(Settings.of(config)))

    first = run("first", 1)
    weights = tmp_path / "kept.safetensors"
    weights.write_bytes((first.folder / "model.safetensors").read_bytes())
    second = run("second", 1, **{"initial-weights": str(weights)})
    for name, array in first.model().state_dict().items():
        torch.testing.assert_close(second.model().state_dict()[name], array)
    with pytest.raises(FairbloomError, match=r"goes with seed = 5.* the run has seed = 6"):
        run("other", 1, **{"initial-weights": str(weights), "seed": 6})
    weights.unlink()  # a run that continues does not need them
    assert run("second", 2, **{"initial-weights": str(weights)}).rounds_done == 2
