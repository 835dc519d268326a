"""Devices with accounts train what one process with simulated accounts does, to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.client.app import app
from fairbloom.client.private import noise
from fairbloom.client.private.simulated import SimulatedAccount
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.run_folder.files import PRIVACY
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate

from .device import SCHEMA, Device

ROUNDS = 4


def injected(count: int) -> np.ndarray:
    """Return the same noise wherever as many numbers are asked for."""
    return (np.arange(count) * 7919 % 101 - 50) * 2**20


@pytest.mark.parametrize("spend", ["", "all"])
@pytest.mark.parametrize("method", ["fedavg", "term", "scaffold"])
def test_four_devices_equal_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, spend: str
) -> None:
    monkeypatch.setattr(noise, "draw_noise", injected)
    monkeypatch.setattr(SimulatedAccount, "_draw", lambda *_: injected)
    shared: dict[str, Any] = {
        **{"task": "csv", "batch-size": 0, "device": "cpu", "num-rounds": ROUNDS, "seed": 0},
        **{"method": method, "local-epochs": 2, "privacy.spend": spend, "fraction": 1.0},
        **{"learning-rate": 0.5, "score": "accuracy"},
    }
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    together = tmp_path / "together"
    together.mkdir()
    devices = []
    for place, rows in enumerate((40, 60, 33, 80)):
        device = Device(tmp_path / f"device-{place}", rows, steps=20)
        device.own = {"name": f"site-{place}"}
        (together / f"site-{place}.csv").write_text((device.data / "site.csv").read_text())
        device.open()
        devices.append(device)
    settings = Settings.of({**shared, "schema": str(schema), "out": str(tmp_path / "deployed")})
    grid = InProcessGrid(app, settings.run_config(), len(devices))
    for context, device in zip(grid.contexts.values(), devices, strict=True):
        context.node_config.update(device.node)
    deployed = federate(settings, lambda method: FlowerClients(method, grid, 60.0), deployed=True)
    one = simulate(
        Settings.of(
            {
                **{**shared, "schema": str(schema), "data-dir": str(together)},
                **{"test-share": 0.25, "out": str(tmp_path / "one"), "privacy.mode": "simulated"},
                **{"privacy.epsilon": "3", "privacy.steps": 20},
            }
        )
    )
    models = [load_file(folder / "model.safetensors") for folder in (deployed, one)]
    assert {name: each.tobytes() for name, each in models[0].items()} == {
        name: each.tobytes() for name, each in models[1].items()
    }
    units = [
        {name: each["units"] for name, each in PRIVACY.read(folder)["clients"].items()}
        for folder in (deployed, one)
    ]
    assert units[0] == units[1]
    assert [device.left[0] for device in devices] == [*map(int, units[0].values())]
