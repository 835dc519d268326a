"""Tests on real data, from the folder that FAIRBLOOM_DATA names; nothing is downloaded."""

import os
from pathlib import Path

import pytest


def is_there(file: str) -> bool:
    return Path(os.environ.get("FAIRBLOOM_DATA", ""), file).is_file()


def needs(file: str) -> pytest.MarkDecorator:
    """Return what skips a test, visibly, where a file of real data is not there."""
    return pytest.mark.skipif(
        not is_there(file), reason=f"FAIRBLOOM_DATA names no folder with {file}"
    )
