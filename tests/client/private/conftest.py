"""A device with an account."""

from pathlib import Path

import pytest

from .device import Device, opened


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return opened(tmp_path)
