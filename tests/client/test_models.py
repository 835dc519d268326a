"""Runs of models that users bring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from torch import nn

from fairbloom.client.local import LocalClient
from fairbloom.client.settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_model
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients

from .helpers import ask, context, run_config
from .nets import Auxiliary, Complex, Dropping, Frozen, Net, Once, Tied

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
    assert client.personal.last is not None
    assert client.personal.last.state.keys() == {name for name in received if not name.startswith("first")}


# Shared parameters ----------------------------------------------------------------------------------------------------


def test_tied_weights_count_once(tmp_path: Path) -> None:
    """The run is that of a model which has the weight under one name, to the bit."""
    for method in ("fedfv", "qfedavg"):
        config = {**PLAIN, "method": method}
        tied, once = (ran(net, tmp_path / method / net.__name__, config) for net in (Tied, Once))
        assert tied["back.weight"] == tied["first.weight"]
        assert {name: bits for name, bits in tied.items() if name != "back.weight"} == once


def test_personal_models_with_tied_weights_are_kept_on_disk(tmp_path: Path) -> None:
    config = run_config(**{**PLAIN, "model": named(Tied), "state-dir": str(tmp_path)})
    client = LocalClient.of(config, 0)
    received = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.train(received, Terms(server_round=1, personal_lambda=0.5, personal_epochs=1))
    assert client.personal.last is not None
    kept = LocalClient.of(config, 0).personal.before(2)
    assert kept is not None
    assert kept.keys() == received.keys()
    assert all(torch.equal(tensor, client.personal.last[1][name]) for name, tensor in kept.items())


# Dropout --------------------------------------------------------------------------------------------------------------


def trained(config: Config, partition: int = 1, number: int = 1) -> Bits:
    client = LocalClient.of(config, partition)
    received = {name: tensor.clone() for name, tensor in client.task.model().state_dict().items()}
    update = client.train(received, Terms(server_round=number, measure=("loss-before", "loss-after")))
    arrays = {name: tensor.numpy().tobytes() for name, tensor in update.arrays.items()}
    return {**arrays, "metrics": repr(update.metrics).encode()}


DROPPING = run_config(**{**PLAIN, "model": named(Dropping)})


def test_what_a_model_draws_comes_from_a_stream_of_its_own() -> None:
    first = trained(DROPPING)
    torch.rand(5)
    before = torch.get_rng_state()
    trained(DROPPING, partition=2)
    assert trained(DROPPING) == first
    with pytest.raises(FairbloomError):
        trained(run_config(**{**PLAIN, "model": named(Auxiliary)}))
    assert torch.equal(torch.get_rng_state(), before)


# What cannot be trained -----------------------------------------------------------------------------------------------


def test_an_unsendable_model_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"'first\.weight' has dtype torch\.complex64"):
        ran(Complex, tmp_path)


# A deployed client ----------------------------------------------------------------------------------------------------


def test_a_device_trains_the_model_that_its_owner_has_allowed() -> None:
    whole = run_config(model=named(Net))
    told: tuple[str, Config] = (MessageType.TRAIN, {"measure": ["loss-before"]})
    expected, found = (
        ask(*told, context(1, config)) for config in (whole, accepted_settings(whole, allow=(named(Net),)))
    )
    arrays = found.array_records["arrays"]
    assert "last.weight" in arrays
    assert all(array.data == arrays[name].data for name, array in expected.array_records["arrays"].items())
    assert np.isfinite(found.metric_records["metrics"]["loss-before"])
