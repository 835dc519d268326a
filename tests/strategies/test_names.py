"""Methods are known by the names of their papers."""

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.strategies import METHODS, canonical, find_method, published_name

OF_PAPERS = {
    "q-FFL": "qfedavg",
    "qffl": "qfedavg",
    "q-FedAvg": "qfedavg",
    "q-FedSGD": "qfedsgd",
    "FedAvg-n": "fedavgn",
    "Agnostic Federated Learning": "afl",
    "Δ-FL": "deltafl",
    "GIFAIR-FL": "gifair",
    "Semi-VRed": "semivred",
    "FedMGDA+": "fedmgdaplus",
    "MGDA-Prox": "mgdaprox",
}


def test_published_names_are_known() -> None:
    for name, method in OF_PAPERS.items():
        assert canonical(name) == method
        assert find_method(name) is METHODS[method]
    for name, method in METHODS.items():
        assert canonical(published_name(name)) == canonical(method.__name__) == name


def test_only_near_names_are_suggested_by_their_published_name() -> None:
    near = {"q-fedsg": "q-FedSGD", "qfeadvg": "q-FedAvg", "fedmgda++": "FedMGDA+", "scafold": "SCAFFOLD"}
    for name, published in near.items():
        with pytest.raises(FairbloomError, match=rf"did you mean {published.replace('+', '.')}\?"):
            find_method(name)
    for name in ("FedNova", "qf", "fedx", "median"):
        with pytest.raises(FairbloomError, match="unknown method: there are fedavg"):
            find_method(name)
