"""Each precision on a card, and the flags that it leaves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.simulation.helpers import run, table

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ENGINES = ("loop", "stacked")


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_each_precision_learns_digits(tmp_path: Path, engine: str, precision: str) -> None:
    scores = {}
    for device, chosen in (("cpu", "float32"), ("cuda", precision)):
        folder = run(
            tmp_path / device,
            **{"device": device, "precision": chosen, "engine": engine},
            **{"method": "fedavg", "model": "mlp", "fraction": 1.0, "partition": "iid"},
        )
        last = table(folder / "rounds.csv")[-1]
        scores[device] = float(last["test_accuracy_of_global_model_mean"])
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=5.0)  # percent


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_float32_keeps_its_bits_after_another_precision(
    tmp_path: Path, engine: str, precision: str
) -> None:
    folders = [
        run(tmp_path / name, device="cuda", engine=engine, model="cnn", precision=chosen)
        for name, chosen in (("a", "float32"), ("b", precision), ("c", "float32"))
    ]
    first, rough, again = map(model_of, folders)
    assert first == again != rough
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_on_a_card_is_that_of_the_cpu(tmp_path: Path, engine: str) -> None:
    cpu, cuda = (
        load_file(run(tmp_path / device, device=device, engine=engine) / "model.safetensors")
        for device in ("cpu", "cuda")
    )
    for name, expected in cpu.items():
        np.testing.assert_allclose(cuda[name], expected, rtol=0, atol=1e-4)
