"""The workloads are what their names and the documentation say."""

import math

import pytest

from benchmarks import workloads
from benchmarks.workloads import CLIENTS, SIZES, WORKLOADS
from fairbloom.tasks import load_task
from fairbloom.tasks.models import build

PARAMETERS = {"logistic": 650, "mlp": 199_210, "lenet": 21_840, "cifar": 797_962, "resnet": 11_173_962, "lstm": 819_920}
STEPS = {
    "logistic": 1,
    "logistic-long": 500,
    "mlp": 25,
    "mlp-all": 25,
    "mlp-adam": 25,
    "mlp-full": 1,
    "lenet": 10,
    "cifar": 10,
    "cifar-100": 2,
} | {
    "resnet": 2,
    "lstm": 2,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_sizes_of_the_literature(name: str) -> None:
    model = load_task(WORKLOADS[name].settings().run_config()).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("size", SIZES)
def test_models_that_grow_have_about_the_size_that_names_them(size: str) -> None:
    model = build(f"{workloads.__name__}:wide_{size}", (64,), 10, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(float(size), rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_client_takes_so_many_steps_a_round(name: str) -> None:
    workload = WORKLOADS[name]
    settings = workload.settings()
    task = load_task(settings.run_config())
    examples = len(task.splits(task.clients[-1]).train)
    assert math.ceil(examples / (settings.batch_size or examples)) == STEPS[name]
    assert round(settings.fraction * len(task.clients)) == workload.drawn


def test_data_follow_the_seed_and_no_clients_share_them() -> None:
    task, again, other = (
        load_task({**CLIENTS[10].settings().run_config(), "seed": seed, "learning-rate": rate})
        for seed, rate in ((0, 0.1), (0, 0.2), (1, 0.1))
    )
    first, second = task.clients[:2]
    inputs = task.splits(first).train.inputs
    assert inputs.equal(again.splits(first).train.inputs)
    assert not inputs.equal(other.splits(first).train.inputs)
    assert not inputs.equal(task.splits(second).train.inputs)
