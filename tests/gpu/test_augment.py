"""Augmentation and dropout on a card."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.simulation.helpers import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DROPPED = "tests.simulation.test_stacked:Dropped"


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def engine_of(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["engine"])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
def test_a_card_augments_as_the_cpu_does(tmp_path: Path, engine: str, augment: str) -> None:
    cpu, cuda = (
        weights_of(run(tmp_path / device, device=device, engine=engine, augment=augment))
        for device in ("cpu", "cuda")
    )
    for name, expected in cpu.items():
        np.testing.assert_allclose(cuda[name], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_dropout_on_a_card_has_equal_bits_twice(tmp_path: Path, engine: str) -> None:
    first, second = (
        run(tmp_path / name, device="cuda", engine=engine, model=DROPPED, num_rounds=3)
        for name in ("first", "second")
    )
    assert engine_of(first) == engine
    model = (first / "model.safetensors").read_bytes()
    assert model == (second / "model.safetensors").read_bytes()


def test_auto_leaves_dropout_on_a_card_to_the_loop(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", device="cuda", model=DROPPED, fraction=1.0, num_rounds=1)
    assert engine_of(folder) == "loop"
