"""Scores beside accuracy, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fairbloom.tasks.measures import absolute_error, auc, balanced_accuracy, r2, rmse

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def outputs_for(labels: list[int], classes: int, seed: int, levels: int) -> torch.Tensor:
    """Return outputs of few levels, so that many are tied."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, levels, (len(labels), classes)).astype(np.float32))


@given(labels=LABELS, seed=st.integers(0, 99))
def test_balanced_accuracy_is_the_mean_recall_of_known_classes(labels: list[int], seed: int) -> None:
    outputs, targets = outputs_for(labels, 4, seed, 5), torch.tensor(labels)
    answers = outputs.argmax(dim=1).tolist()
    recalls = [metrics.recall_score(labels, answers, labels=[k], average="macro") for k in sorted(set(labels))]
    assert balanced_accuracy(outputs, targets) == pytest.approx(np.mean(recalls))


@given(
    labels=st.lists(st.integers(0, 1), min_size=2, max_size=40).filter(lambda labels: len(set(labels)) == 2),
    seed=st.integers(0, 99),
    levels=st.sampled_from((1, 2, 3, 1000)),
)
def test_auc_is_scikit_learns_with_and_without_ties(labels: list[int], seed: int, levels: int) -> None:
    outputs, targets = outputs_for(labels, 2, seed, levels), torch.tensor(labels)
    margins = (outputs[:, 1] - outputs[:, 0]).numpy()
    expected = metrics.roc_auc_score(labels, margins)
    assert auc(outputs, targets) == pytest.approx(expected)
    assert auc(torch.from_numpy(margins)[:, None], targets[:, None].float()) == pytest.approx(expected)


def test_auc_of_one_class_or_of_no_numbers_is_no_number() -> None:
    for outputs, targets in (([[0.0, 1.0], [1.0, 0.0]], [1, 1]), ([[0.0, math.nan], [0.0, 1.0]], [0, 1])):
        assert math.isnan(auc(torch.tensor(outputs), torch.tensor(targets)))


@given(
    targets=st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30).filter(lambda t: np.ptp(t) > 1),
    seed=st.integers(0, 99),
)
def test_errors_and_explained_variance_are_scikit_learns(targets: list[float], seed: int) -> None:
    answers = np.random.default_rng(seed).normal(scale=100.0, size=len(targets)).astype(np.float32)
    outputs, told = torch.from_numpy(answers)[:, None], torch.tensor(targets)
    assert absolute_error(outputs, told).mean().item() == pytest.approx(
        metrics.mean_absolute_error(targets, answers), rel=1e-5, abs=1e-3
    )
    assert rmse(outputs, told) == pytest.approx(metrics.root_mean_squared_error(targets, answers), rel=1e-6)
    assert r2(outputs, told) == pytest.approx(metrics.r2_score(targets, answers), rel=1e-5, abs=1e-5)


def test_no_variance_is_nothing_to_explain() -> None:
    assert math.isnan(r2(torch.zeros(3, 1), torch.ones(3)))
