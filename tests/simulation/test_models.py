"""Every model of ours under every engine: whichever computes, the run is the same."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from fairbloom.simulation.stacked.programs import Mapped, make_program
from fairbloom.tasks import Examples, Setup, Splits, Task, load_task
from fairbloom.tasks.models import MODELS, build

from .helpers import run, small
from .test_engines import assert_same, ended

CLASSES, EXAMPLES = 5, 6

SHAPES = {"lenet": (1, 16, 16), "lenet-dropout": (1, 16, 16), "cifar-cnn": (3, 16, 16), "lstm": (7,)}
"""The shapes of the examples of those models that take no image of 8×8 pixels."""

ALONE = {"lenet-dropout": "draws, as dropout does", "lstm": "LSTM is 20 times as slow"}
"""Why some models' clients are computed one by one."""

LARGE = ("femnist-cnn", "resnet18-gn")
"""Runs of these models take seconds."""


def generated(setup: Setup) -> Task:
    """A few examples in float64, or lines of characters, for each client: what the run's model takes."""
    shape = SHAPES.get(setup.model, (1, 8, 8))
    random = torch.Generator().manual_seed(setup.seed)
    count = setup.clients * EXAMPLES
    inputs = torch.randn(count, *shape, generator=random, dtype=torch.float64)
    if setup.model == "lstm":
        inputs = torch.randint(CLASSES, (count, *shape), generator=random)
    labels = torch.randint(CLASSES, (count,), generator=random)
    dtype = torch.float32 if inputs.is_floating_point() else inputs.dtype
    names = tuple(f"client-{number}" for number in range(setup.clients))

    def splits(client: str) -> Splits:
        first = EXAMPLES * names.index(client)
        train, test = slice(first, first + EXAMPLES - 2), slice(first + EXAMPLES - 2, first + EXAMPLES)
        return Splits(Examples(inputs[train], labels[train]), Examples(inputs[test], labels[test]))

    return Task(
        clients=names,
        model=lambda: build(setup.model, shape, CLASSES, setup.seed, dtype).double(),
        loss=partial(cross_entropy, reduction="none"),
        splits=splits,
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(MODELS.keys() - set(LARGE)))
def test_every_engine_leaves_the_same_folder_for_any_model(model: str, tmp_path: Path) -> None:
    changes = {"task": f"{__name__}:generated", "model": model, "clients": 2, "fraction": 1.0, "num_rounds": 1}
    changes |= {"method": "fedavg", "batch_size": 3, "learning_rate": 0.1}
    expected = ended(run(tmp_path / "loop", engine="loop", **changes))
    for engine in ("stacked", "workers", "auto"):
        folder = run(tmp_path / engine, engine=engine, **changes)
        assert_same(ended(folder), expected, 0.0 if engine == "workers" else 1e-9)
    about = json.loads((tmp_path / "stacked" / "engine.json").read_text())
    assert about["engine"] == ("loop" if model in ALONE else "stacked")
    assert ALONE.get(model, "it was asked for") in about["reason"]


@pytest.mark.parametrize("model", LARGE)
def test_clients_of_a_large_model_have_their_own_gradients(model: str) -> None:
    task = load_task(small("", task=f"{__name__}:generated", model=model, clients=2).run_config())
    assert isinstance(make_program(task.model(), task, task.splits("client-1").train), Mapped)
