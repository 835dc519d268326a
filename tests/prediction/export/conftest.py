import pytest

import fairbloom

from .wards import train


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Each site standardises by its own rows."""
    return train(tmp_path_factory.mktemp("own"), {})


@pytest.fixture(scope="package")
def together(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Means and deviations are common, and missing values are filled in."""
    settings = {"csv.standardise": "together", "csv.missing": "fill"}
    return train(tmp_path_factory.mktemp("together"), settings, missing=True)


@pytest.fixture(scope="package")
def quantity(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """A quantity is predicted, by a network of several layers."""
    return train(tmp_path_factory.mktemp("quantity"), {"model": "mlp"}, quantity=True)
