"""Where a run is written."""

from typing import Any

import pytest

from fairbloom.server.app import run_folder
from fairbloom.server.settings import Settings


@pytest.mark.parametrize(
    "config",
    [
        {"metrics-port": 9464},
        {"log-format": "json"},
        {"enrolled-sizes": "client-0=80"},
        {"max-growth": 20.0},
        {"loss-limit": float("inf")},
        {"unused-rounds": 0},
        {"num-rounds": 51},
        {"method": "FedAvg"},
    ],
)
def test_what_may_change_while_a_run_goes_on_does_not_move_its_folder(config: dict[str, Any]) -> None:
    assert run_folder(Settings.of(config)) == run_folder(Settings.of({}))


@pytest.mark.parametrize("config", [{"seed": 1}, {"method": "fedfv"}, {"learning-rate": 0.05}])
def test_every_other_setting_does(config: dict[str, Any]) -> None:
    assert run_folder(Settings.of(config)) != run_folder(Settings.of({}))
