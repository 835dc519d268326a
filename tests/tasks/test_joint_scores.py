"""Scores of many clients at once are, to the bit, those of each client by itself."""

import cProfile
import math
import pstats
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from fairbloom.client.group_metrics import measure_groups
from fairbloom.tasks.extra_scores import brier, f1
from fairbloom.tasks.joint_scores import JOINT, Compute, score_all, values_of_all
from fairbloom.tasks.measures import (
    absolute_error,
    auc,
    balanced_accuracy,
    group_scores_of_classes,
    r2,
    rmse,
)
from fairbloom.tasks.task import is_highest
from tests.client.test_groups import SEXES, WARDS, task_of

COUNTS = [1, 2, 3, 5, 8, 9, 17, 64, 127, 130, 1000, 40, 7]


def examples(classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return outputs, some of them equal, and targets of the clients; some clients lack classes."""
    random = np.random.default_rng(seed)
    count = sum(COUNTS)
    outputs = torch.from_numpy(random.normal(size=(count, max(classes, 1))).round(1))
    if not classes:
        return outputs.float(), torch.from_numpy(random.normal(1e3, 40.0, count)).float()
    return outputs.float(), torch.from_numpy(random.integers(0, classes, count))


def by_client(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(outputs, COUNTS), torch.split(targets, COUNTS), strict=True))


# The formulas of one client, as they were before scores were computed together.


def auc_by_ranks(outputs: Tensor, targets: Tensor) -> float:
    outputs = outputs.double()
    margins = outputs[:, 1] - outputs[:, 0]
    ascending = margins.sort().values
    second = targets == 1
    below = torch.searchsorted(ascending, margins)
    ranks = (below + torch.searchsorted(ascending, margins, right=True) + 1).double() / 2
    ones = int(second.sum())
    pairs = ones * (len(margins) - ones)
    if not pairs:
        return math.nan
    return (float(ranks[second].sum()) - ones * (ones + 1) / 2) / pairs


def balanced_by_class(outputs: Tensor, targets: Tensor) -> float:
    predicted = outputs.argmax(dim=1)
    counts = torch.bincount(targets)
    occurs = counts > 0
    right = torch.bincount(targets, weights=(predicted == targets).double())
    return float((right[occurs] / counts[occurs]).mean())


def r2_of_one(outputs: Tensor, targets: Tensor) -> float:
    targets = targets.double()
    total = (targets - targets.mean()).square().sum()
    residual = (outputs.reshape(targets.shape).double() - targets).square().sum()
    return (1.0 - residual / total).item() if total > 0 else math.nan


def rmse_of_one(outputs: Tensor, targets: Tensor) -> float:
    errors = outputs.reshape(targets.shape).double() - targets.double()
    return 3.0 * errors.square().mean().sqrt().item()


def mean_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (3.0 * (outputs.reshape(targets.shape).double() - targets.double()).abs()).mean()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).double().mean()


def f1_of_one(outputs: Tensor, targets: Tensor) -> Tensor:
    predicted = outputs.argmax(dim=1) == 0
    true = targets == 0
    hits = int((predicted & true).sum())
    of = 2 * hits + int((predicted & ~true).sum()) + int((~predicted & true).sum())
    return torch.tensor(2 * hits / of if of else math.nan, dtype=torch.float64)


CASES: dict[str, tuple[int, Compute, Compute]] = {
    "accuracy": (10, is_highest, accuracy),
    "balanced accuracy of two": (2, balanced_accuracy, balanced_by_class),
    "balanced accuracy of eleven": (11, balanced_accuracy, balanced_by_class),
    "auc": (2, auc, auc_by_ranks),
    "f1": (2, partial(f1, positive=0), f1_of_one),
    "r2": (0, r2, r2_of_one),
    "rmse": (0, partial(rmse, scale=3.0), rmse_of_one),
    "mae": (0, partial(absolute_error, scale=3.0), mean_error),
}


@pytest.mark.parametrize("case", CASES)
def test_a_score_has_the_bits_of_the_formula_of_one_client(case: str) -> None:
    classes, compute, formula = CASES[case]
    parts = examples(classes)
    np.testing.assert_array_equal(
        score_all(compute, *parts, COUNTS),
        [torch.as_tensor(formula(*each)).double().item() for each in by_client(*parts)],
    )


@pytest.mark.parametrize("compute", [*JOINT, brier], ids=lambda each: each.__name__)
def test_a_score_of_all_clients_is_that_of_each(compute: Callable[..., float]) -> None:
    parts = examples(0 if compute in (r2, rmse) else 2, seed=1)
    np.testing.assert_array_equal(
        score_all(compute, *parts, COUNTS),
        [torch.as_tensor(compute(*each)).double().item() for each in by_client(*parts)],
    )


def test_a_client_with_an_infinite_output_has_no_auc() -> None:
    outputs, targets = examples(2)
    outputs[20] = torch.tensor([0.0, math.inf])  # of the sixth client
    found = np.array(score_all(auc, outputs, targets, COUNTS))
    before = np.array(score_all(auc, *examples(2), COUNTS))
    assert math.isnan(found[5])
    assert not math.isnan(before[5])
    np.testing.assert_array_equal(np.delete(found, 5), np.delete(before, 5))


@pytest.mark.parametrize("smallest", [1, 5])
def test_scores_by_group_of_all_clients_are_those_of_each(smallest: int) -> None:
    outputs, targets = examples(2, seed=2)
    random = np.random.default_rng(3)
    shape = (len(targets), 1)
    groups = torch.from_numpy(
        np.hstack([random.integers(0, len(of), shape) for of in (SEXES, WARDS)])
    )
    task = task_of()
    values = {
        score: values_of_all(of, outputs, targets, COUNTS)
        for score, of in task.group_scores.items()
    }
    together = measure_groups(task, values, groups, COUNTS, smallest)
    for found, (own_outputs, own_targets), own_groups in zip(
        together, by_client(outputs, targets), torch.split(groups, COUNTS), strict=True
    ):
        alone = {score: of(own_outputs, own_targets) for score, of in task.group_scores.items()}
        assert [found] == measure_groups(task, alone, own_groups, [len(own_targets)], smallest)


@pytest.mark.parametrize("compute", [is_highest, balanced_accuracy, auc, f1])
def test_counts_and_ranks_need_no_call_for_each_client(compute: Compute) -> None:
    outputs, targets = examples(2)
    counts = [3] * (len(targets) // 3)
    profile = cProfile.Profile()
    profile.runcall(score_all, compute, outputs, targets, counts)
    assert pstats.Stats(profile).total_calls < 0.5 * len(counts)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("score", "compute"), group_scores_of_classes(2).items())
def test_group_scores_are_of_each_example(score: object, compute: Compute) -> None:
    outputs, targets = examples(2)
    together = values_of_all(compute, outputs, targets, COUNTS)
    alone = torch.cat([compute(*each) for each in by_client(outputs, targets)])
    assert torch.equal(together.double().nan_to_num(2.0), alone.double().nan_to_num(2.0))
