from pathlib import Path

import pytest

import fairbloom

from .hospitals import run_hospitals, write_hospital, write_hospitals
from .made import train

MOMENTS = (("age", 55.0, 12.0), ("dose", 0.5, 0.25))


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Four hospitals, each of which standardises by its own rows, with global and personal models
    of three classes."""
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
    return train(tmp_path_factory.mktemp("quantity"), rows={"level": 120.0}, learning_rate=0.05)


@pytest.fixture(scope="package")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hospitals who say who is sick, a finished run of theirs, a new one's file in a folder,
    and new rows."""
    folder = tmp_path_factory.mktemp("there")
    write_hospital(folder / "new" / "newtown.csv", 150, 9, 14.0)
    write_hospital(folder / "new.csv", 40, 9)
    run_hospitals(write_hospitals(folder / "hospitals"), folder / "run")
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A place for a file of new rows."""
    return tmp_path / "new.csv"
