"""The workloads are what their names and the documentation say."""

import math

import pytest

from benchmarks.workloads import WORKLOADS
from fairbloom.tasks import load_task

PARAMETERS = {"logistic": 650, "mlp": 199_210, "lenet": 21_840, "cifar": 797_962, "resnet": 11_173_962, "lstm": 819_920}
STEPS = {"logistic": 1, "logistic-long": 500, "lenet": 10, "cifar": 10, "cifar-100": 2, "resnet": 2, "lstm": 2}
STEPS |= {"mlp": 25, "mlp-all": 25, "mlp-adam": 25, "mlp-full": 1, "mlp-step": 1}


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_sizes_of_the_literature(name: str) -> None:
    model = load_task(WORKLOADS[name].settings().run_config()).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_client_takes_so_many_steps_a_round(name: str) -> None:
    workload = WORKLOADS[name]
    settings = workload.settings()
    task = load_task(settings.run_config())
    examples = len(task.splits(task.clients[-1]).train)
    assert math.ceil(examples / (settings.batch_size or examples)) == STEPS[name]
    assert round(settings.fraction * len(task.clients)) == workload.drawn
