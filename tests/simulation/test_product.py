"""Methods with every local objective finish, are finite, repeat and resume to the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.client.states import ROUNDING
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from tests.federation import KINDS
from tests.rounds.implementations import GROUPED

from .helpers import StoppedError, newest_states, stop_after

OBJECTIVES: dict[str, dict[str, Any]] = {
    "proximal": {"proximal-mu": 0.1},
    "personal": {"personal-lambda": 0.5, "momentum": 0.9},
    "stragglers, averaged models": {"stragglers": 0.5, "local-epochs": 3, "average-models": True},
}
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "noise in updates": (
        "fedfv",
        {"attack": "noise", "attackers": "client-1", "attack-from": 2, "defence": "clip"},
    ),
    "false labels": (
        "fedavg",
        {"attack": "label-flip", "attackers": "client-1", "defence": "krum"},
    ),
    "adamw on a schedule": (
        "ditto",
        {
            **{
                "optimizer": "adamw",
                "learning-rate": 0.01,
                "weight-decay": 0.01,
                "gradient-clip": 1.0,
            },
            **{"schedule": "cosine", "warmup": 1, "model": "mlp", "engine": "stacked"},
        },
    ),
    "frozen parameters": ("fedfv", {"model": "tests.nets:Adapted"}),
    "updates in bfloat16": (
        "fedfv",
        {"wire-dtype": "bfloat16-updates", "model": "mlp", "engine": "workers"},
    ),
    "the model in bfloat16": ("fedmgda", {"wire-dtype": "bfloat16", "engine": "loop"}),
    "an adaptive server": ("fedavg", {"server-optimizer": "adam", "server-optimizer-lr": 0.05}),
}
"""Objectives that are tried with one method."""

REFUSED = {
    *(("proximal", name) for name in ("fedprox", "mgdaprox")),
    *(("personal", name) for name in ("ditto", "fcfl", "feddyn", "qfedsgd", "scaffold")),
}
"""What tests/rounds/test_compatibility.py tests to be refused."""

SMALL: dict[str, Any] = {"clients": 5, "num-rounds": 3, "fraction": 0.6, "device": "cpu"}


def bits(folder: Path) -> dict[str, Any]:
    personal = newest_states(folder)
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "best": (folder / "model-best.safetensors").read_bytes(),
        "clients": (folder / "clients.csv").read_bytes(),
        "personal": sorted(personal.values()),
        "errors": sorted(newest_states(folder, ROUNDING).values()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "objective"),
    [
        *((name, "plain") for name in METHODS),
        *((name, each) for each in OBJECTIVES for name in KINDS if (each, name) not in REFUSED),
        *((name, each) for each, (name, _) in ALONE.items()),
    ],
)
def test_a_run_repeats_and_resumes_to_the_same_bits(
    method: str, objective: str, tmp_path: Path
) -> None:
    """The second run, which is interrupted, repeats two rounds of the first before it goes on from
    its folder."""
    _, alone = ALONE.get(objective, ("", {}))
    config = {
        **SMALL,
        **OBJECTIVES.get(objective, {}),
        **alone,
        "method": method,
        **GROUPED.get(method, {}),
    }
    whole, resumed = (Settings.of({**config, "out": str(tmp_path / name)}) for name in "ab")
    expected = bits(simulate(whole))
    assert all(
        np.isfinite(array).all()
        for array in load_file(tmp_path / "a" / "model.safetensors").values()
    )
    with pytest.raises(StoppedError):
        simulate(resumed, stop_after(2))
    assert bits(simulate(resumed)) == expected
    assert bool(expected["errors"]) == ("bfloat16" in objective)
    has_personal_models = "personal" in objective or method in ("ditto", "local")
    assert bool(expected["personal"]) == has_personal_models
