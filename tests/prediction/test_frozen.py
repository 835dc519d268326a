"""Clients keep the trained part of personal models, and predict with the whole model."""

from pathlib import Path

import pytest
import torch

import fairbloom
from fairbloom.client.states import PERSONAL, ClientStates
from fairbloom.prediction.predictor import load_predictor
from fairbloom.system.versions import Versions

from .made import copy_to_device

CLIENT = "client-1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients with personal models and a frozen first layer."""
    settings = {"model": "tests.client.nets:Frozen", "engine": "stacked", "personal-lambda": 0.1}
    out = tmp_path_factory.mktemp("frozen") / "run"
    return fairbloom.run(
        "digits", clients=3, rounds=2, device="cpu", progress=False, out=out, settings=settings
    )


def test_the_whole_model_predicts_as_it_was_measured(
    run: fairbloom.Run, subtests: pytest.Subtests
) -> None:
    (states,) = (run.folder / "clients").iterdir()
    kept = ClientStates(Versions(states), CLIENT).find(PERSONAL, before=3)
    model = run.model(CLIENT, "personal").state_dict()
    assert kept is not None
    assert model.keys() - kept.state.keys() == {name for name in model if name.startswith("first")}
    shared = run.model().state_dict()
    for name, tensor in model.items():
        with subtests.test(name=name, tensor=tensor):
            assert torch.equal(tensor, shared[name]) == name.startswith("first"), name


def test_a_devices_frozen_parameters_are_the_final_models(
    run: fairbloom.Run,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    copy_to_device(run, CLIENT, tmp_path / "state")
    found = load_predictor(tmp_path / "state", model="personal").module.state_dict()
    for name, tensor in run.model(CLIENT, "personal").state_dict().items():
        with subtests.test(name=name, tensor=tensor):
            assert torch.equal(tensor, found[name]), name
