"""Models with adapters of peft are exported with them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fairbloom import load
from tests.simulation.helpers import run

from .test_export import predict

pytestmark = pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed")


@pytest.mark.parametrize("name", ["lora", "Inside"])
def test_an_exported_model_predicts_with_its_adapters(name: str, tmp_path: Path) -> None:
    trained = load(run(tmp_path / "run", model=f"tests.prediction.adapted:{name}", num_rounds=2))
    images = np.random.default_rng(1).random((5, 1, 8, 8), np.float32)
    with torch.no_grad():
        expected = trained.model()(torch.from_numpy(images)).softmax(1)
    np.testing.assert_allclose(predict(trained.export(), images)[1], expected, atol=1e-5)
