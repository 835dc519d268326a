from pathlib import Path

import pytest

import fairbloom

from .made import train

MOMENTS = (("age", 55.0, 12.0), ("dose", 0.5, 0.25))


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Four hospitals, each of which standardises by its own rows, with global and personal models of three classes."""
    return train(tmp_path_factory.mktemp("hospitals"))


@pytest.fixture(scope="package")
def together(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """The same with common means and deviations, and missing values that are filled in."""
    common = [('missing = "error', 'missing = "fill')]
    common += [
        (f"[fields.{name}]\n", f"[fields.{name}]\ncenter = {center}\nscale = {scale}\n")
        for name, center, scale in MOMENTS
    ]
    return train(tmp_path_factory.mktemp("together"), rows={"missing": True}, changes=common)


@pytest.fixture(scope="package")
def quantity(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Four hospitals that predict a quantity."""
    return train(tmp_path_factory.mktemp("quantity"), rows={"quantity": True}, learning_rate=0.05)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A place for a file of new rows."""
    return tmp_path / "new.csv"
