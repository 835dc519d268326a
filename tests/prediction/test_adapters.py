"""Models with adapters of peft: trained, loaded, and merged into plain layers where they are exported."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from fairbloom import load
from fairbloom.prediction.export.export import export_model
from fairbloom.prediction.export.torch_program import PROGRAM, merged
from tests.simulation.helpers import run

pytestmark = pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed")

IMAGES = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "Inside"])
def test_a_merged_model_predicts_the_same_and_keeps_its_adapters(name: str, tmp_path: Path) -> None:
    model = load(run(tmp_path / "run", model=f"tests.prediction.adapted:{name}", num_rounds=2)).model()
    plain = merged(model)
    with torch.no_grad():
        expected = model(IMAGES)
        assert torch.allclose(plain(IMAGES), expected, atol=1e-5)
        adapters = [tensor for key, tensor in model.state_dict().items() if "lora" in key]
        assert len(adapters) == 2
        assert not [key for key in plain.state_dict() if "lora" in key]
        for adapter in adapters:
            adapter.zero_()
        assert not torch.allclose(model(IMAGES), expected, atol=1e-3)


def test_a_model_without_adapters_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert merged(model) is model


def test_an_exported_program_has_plain_layers_and_predicts_alike(tmp_path: Path) -> None:
    predictor = load(run(tmp_path / "run", model="tests.prediction.adapted:lora", num_rounds=2)).predictor()
    folder = export_model(predictor, "torch", lambda *of: "", tmp_path / "exported")
    program = torch.export.load(folder / PROGRAM)
    assert not [key for key in program.state_dict if "lora" in key]
    with torch.no_grad():
        expected = predictor.module(IMAGES).softmax(1)
        assert torch.allclose(program.module()(IMAGES), expected, atol=1e-5)
