"""The defaults of methods and the values that a search tries, those of their papers."""

from typing import Any

import pytest

from fairbloom.strategies import METHODS

Q = (0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0)

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "fedprox": ({"proximal_mu": 0.1}, {"mu": (0.001, 0.01, 0.1, 1.0, 20.0)}),
    "fedavgn": (
        {"server_lr": 1.0, "decay": 0.0, "decay_every": 100},
        {"server_lr": (0.5, 1.0, 1.5, 2.0), "decay": (0.0, 0.025, 0.0333, 0.05, 0.1, 0.333, 0.5)},
    ),
    "feddyn": ({"alpha": 0.01}, {"alpha": (0.001, 0.01, 0.1)}),
    "qfedavg": (
        {"q": 5.0, "lipschitz": 1.0},
        {"q": Q, "lipschitz": (0.1, 1.0, 10.0)},
    ),
    "qfedsgd": (
        {"q": 1.0, "lipschitz": 10.0},
        {"q": Q, "lipschitz": (0.1, 1.0, 10.0)},
    ),
    "term": ({"tilt": 1.0}, {"tilt": (0.01, 0.1, 0.5, 1.0, 5.0)}),
    "afl": ({"gamma": 0.1}, {"gamma": (0.01, 0.1, 0.2, 0.5)}),
    "drfa": ({"gamma": 0.01, "local_steps": 10}, {"gamma": (0.01, 0.1)}),
    "deltafl": ({"theta": 0.5}, {"theta": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}),
    "propfair": ({"baseline": 5.0, "epsilon": 0.2}, {"baseline": (2.0, 3.0, 4.0, 5.0)}),
    "gifair": ({"strength": 0.5}, {"strength": (0.25, 0.5, 0.75, 1.0)}),
    "vred": ({"beta": 0.5}, {"beta": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)}),
    "semivred": ({"beta": 0.5}, {"beta": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)}),
    "eagle": ({"lam": 0.5}, {"lam": (0.1, 0.5)}),
    "fedfa": ({"alpha": 0.5, "beta": 0.5, "server_momentum": 0.5, "client_momentum": 0.9}, {}),
    "aaggff": ({"rule": "ons", "cdf": "weibull"}, {"rule": ("ons", "ftrl")}),
    "fedmgda": ({"epsilon": 1.0}, {"epsilon": (0.01, 0.05, 0.1, 0.5, 1.0)}),
    "fedmgdaplus": (
        {"epsilon": 1.0},
        {
            "epsilon": (0.01, 0.05, 0.1, 0.5, 1.0),
            "server_lr": (0.5, 1.0, 1.5, 2.0),
            "decay": (0.0, 0.025, 0.0333, 0.05, 0.1, 0.333, 0.5),
        },
    ),
    "mgdaprox": (
        {"epsilon": 1.0, "proximal_mu": 0.1},
        {
            "mu": (0.2,),
            "server_lr": (0.5, 1.0, 1.5, 2.0),
            "decay": (0.0, 0.025, 0.0333, 0.05, 0.1, 0.333, 0.5, 0.2),
        },
    ),
    "fedfv": (
        {"alpha": 0.1, "tau": 1, "order": "loss", "rescale": True},
        {"alpha": (0.0, 0.1, 0.2, 1 / 3, 0.5, 2 / 3), "tau": (0, 1, 3, 10)},
    ),
    "adafed": ({"gamma": 1.0}, {"gamma": (1.0, 5.0)}),
    "fedmdfg": ({"angle": 11.25, "history": True, "guidance": "scaled"}, {}),
    "fedlf": ({"history": True, "guidance": "scaled", "groups": None}, {}),
    "fairmoo": ({"tolerance": 0.006, "length": None}, {"tolerance": (0.006, 0.06, 0.6)}),
    "fedpw": ({"beta": 0.3}, {"beta": (0.1, 0.3, 1.0)}),
    "fairfed": ({"beta": 1.0}, {"beta": (0.05, 0.2)}),
    "fcfl": (
        {
            "budget": 0.05,
            "stage1_rounds": 800,
            "delta": 0.5,
            "delta_decay": 0.01,
            "delta_factor": 0.1,
            "delta_min": 0.0001,
            "disparity": "demographic-parity",
        },
        {"budget": (0.05, 0.1)},
    ),
    "ditto": ({"personal_epochs": 1, "personal_lambda": 1.0}, {"lam": (0.1, 1.0)}),
}


@pytest.mark.parametrize("name", METHODS)
def test_defaults_and_grids_are_the_published_ones(name: str) -> None:
    defaults, tries = PUBLISHED.get(name, ({}, {}))
    method = METHODS[name]()
    assert {key: getattr(method, key) for key in defaults} == defaults
    assert dict(method.tries) == tries


def test_eagle_trains_alone_as_long_as_its_docstring_says() -> None:
    terms = METHODS["eagle"]().terms(1)
    assert (terms.baseline_patience, terms.baseline_tolerance) == (5, 1e-4)
    assert terms.baseline_epochs == 200
