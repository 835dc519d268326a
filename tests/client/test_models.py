"""Runs of models that users bring."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fairbloom.client.local import LocalClient
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_model
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients

from .helpers import run_config
from .nets import Complex, Frozen

Config = dict[str, Any]
Bits = dict[str, bytes]

PLAIN: Config = {
    "clients": 20,
    "fraction": 0.2,
    "num-rounds": 2,
    "method": "fedfv",
    "fedfv.tau": 1,
    "device": "cpu",
    "batch-size": 16,
    "momentum": 0.9,
    "weight-decay": 0.01,
}
HARDEST: Config = {**PLAIN, "proximal-mu": 0.1, "personal-lambda": 0.5}


def named(net: type[nn.Module]) -> str:
    return f"{net.__module__}:{net.__qualname__}"


def ran(net: type[nn.Module], out: Path, config: Config = PLAIN) -> Bits:
    """Run a model, and return the bits of what the run ends with and of its last round's records."""
    settings = Settings.of({**config, "model": named(net), "out": str(out)})
    path = federate(settings, lambda method: LoopClients(method, dict(settings.run_config())))
    arrays, _ = load_model(path / "model.safetensors")
    measured = (path / "clients.csv").read_bytes()
    return {**{name: array.tobytes() for name, array in arrays.items()}, "clients.csv": measured}


# Frozen layers --------------------------------------------------------------------------------------------------------


def test_a_personal_model_keeps_frozen_layers() -> None:
    client = LocalClient.of(run_config(**{**HARDEST, "model": named(Frozen)}), 0)
    received = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.train(received, Terms(server_round=1, personal_lambda=0.5, personal_epochs=2))
    for name, tensor in client.model.state_dict().items():  # which is the personal one now
        assert torch.equal(tensor, received[name]) == name.startswith("first"), name
    assert client.personal(before=2).keys() == {name for name in received if not name.startswith("first")}


# Dropout --------------------------------------------------------------------------------------------------------------


def trained(config: Config, partition: int = 1, number: int = 1) -> Bits:
    client = LocalClient.of(config, partition)
    received = {name: tensor.clone() for name, tensor in client.task.model().state_dict().items()}
    update = client.train(received, Terms(server_round=number, measure=("loss-before", "loss-after")))
    arrays = {name: tensor.numpy().tobytes() for name, tensor in update.arrays.items()}
    return {**arrays, "metrics": repr(update.metrics).encode()}


# What cannot be trained -----------------------------------------------------------------------------------------------


def test_an_unsendable_model_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"'first\.weight' has dtype torch\.complex64"):
        ran(Complex, tmp_path)
