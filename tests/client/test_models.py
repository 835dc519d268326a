"""Runs of models that users bring: each is trained as torch.optim.SGD does, whoever computes, and resumes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from torch import nn

from fairbloom.client import local
from fairbloom.client.app import app
from fairbloom.client.local import LocalClient
from fairbloom.client.settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Clients
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.rounds.method import Method
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_model
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.loop import LoopClients

from .helpers import ask, context, run_config
from .nets import USABLE, AllFrozen, Auxiliary, Complex, Dropping, Frozen, Net, Once, Tied
from .reference import train_by_torch

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

IMPLEMENTATIONS: dict[str, Callable[[Method, Config], Clients]] = {
    "local": LoopClients,
    "messages": lambda method, config: FlowerClients(method, InProcessGrid(app, config, config["clients"]), 60.0),
}


def named(net: type[nn.Module]) -> str:
    return f"{net.__module__}:{net.__qualname__}"


def ran(net: type[nn.Module], out: Path, config: Config = PLAIN, clients: str = "local", **options: Any) -> Bits:
    """Run a model, and return the bits of what the run ends with and of its last round's records."""
    settings = Settings.of({**config, "model": named(net), "out": str(out)})
    made = IMPLEMENTATIONS[clients]
    path = federate(settings, lambda method: made(method, dict(settings.run_config())), **options)
    arrays, _ = load_model(path / "model.safetensors")
    measured = (path / "clients.csv").read_bytes()
    return {**{name: array.tobytes() for name, array in arrays.items()}, "clients.csv": measured}


@pytest.mark.slow
def test_a_run_is_that_of_torch_sgd_to_the_bit_whoever_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that was interrupted resumes to the same bits."""

    def kill(recorded: object) -> None:
        raise KilledError

    for net in USABLE:
        folder = tmp_path / net.__name__
        runs = [ran(net, folder / clients, HARDEST, clients) for clients in IMPLEMENTATIONS]
        with pytest.raises(KilledError):
            ran(net, folder / "resumed", HARDEST, on_round=kill)
        torch.rand(3)
        runs.append(ran(net, folder / "resumed", HARDEST))
        with monkeypatch.context() as patch:
            patch.setattr(local, "train", train_by_torch)
            expected = ran(net, folder / "torch", HARDEST)
        assert len(expected["clients.csv"].splitlines()) > 20
        for found in runs:
            assert [name for name in expected if found[name] != expected[name]] == [], net


class KilledError(Exception):
    """A run ends after a round."""


# Frozen layers --------------------------------------------------------------------------------------------------------


def test_frozen_layers_keep_their_bits_on_clients_and_server(tmp_path: Path) -> None:
    initial = LocalClient.of(run_config(**{**HARDEST, "model": named(Frozen)}), 0).task.model().state_dict()
    for method in ("fedavg", "fedfa"):
        final = ran(Frozen, tmp_path / method, {**HARDEST, "method": method})
        for name, tensor in initial.items():
            assert (final[name] == tensor.numpy().tobytes()) == name.startswith("first"), name


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


def test_what_a_model_draws_depends_on_nothing_and_is_taken_from_nobody() -> None:
    first = trained(DROPPING)
    torch.rand(5)
    before = torch.get_rng_state()
    trained(DROPPING, partition=2)
    assert trained(DROPPING) == first
    with pytest.raises(FairbloomError):
        trained(run_config(**{**PLAIN, "model": named(Auxiliary)}))
    assert torch.equal(torch.get_rng_state(), before)


# What cannot be trained -----------------------------------------------------------------------------------------------


def test_an_untrainable_model_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    for net, words in (
        (AllFrozen, "the model, AllFrozen, has no parameter to train: all are frozen"),
        (Auxiliary, "the model, Auxiliary, returns a tuple in training: it must return one tensor"),
    ):
        for clients in IMPLEMENTATIONS:
            with pytest.raises(NothingLearnedError, match=words):
                ran(net, tmp_path / net.__name__ / clients, {**PLAIN, "num-rounds": 4}, clients)


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
