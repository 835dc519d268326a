"""Tests of a card: `FAIRBLOOM_TEST_CUDA=1 pytest -m gpu`, or `pytest -m gpu --device cpu` to try
those that any device can run."""

import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.flower import SCRIPTS


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """Return the device to compute on; skip without a card."""
    name = str(request.config.getoption("--device"))
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and FAIRBLOOM_TEST_CUDA=1")
    return name


@pytest.fixture
def card(device: str) -> torch.device:
    """Return the card with its index, as clients have it; skip on another device."""
    if not device.startswith("cuda"):
        pytest.skip("needs a card's own memory and errors")
    return torch.zeros(1, device=device).device


@pytest.fixture
def scripts() -> Path:
    found = shutil.which("fairbloom")
    return Path(found).parent if found else SCRIPTS
