"""Scores besides accuracy, against scikit-learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from sklearn import metrics

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import FURTHER, WHY_UNDEFINED
from fairbloom.tasks import load_task
from fairbloom.tasks.extra_scores import (
    BINS,
    brier,
    calibration_error,
    f1,
    probabilities,
    sensitivity,
    specificity,
)
from fairbloom.tasks.measures import absolute_error, auc, balanced_accuracy, r2, rmse
from tests.tables.helpers import Folder, config, csv_of, load, schema_with


def drawn(count: int, seed: int, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    outputs = torch.from_numpy(random.normal(scale=2.0, size=(count, classes)).astype(np.float32))
    return outputs, torch.from_numpy(random.integers(0, classes, count))


EXAMPLES = {"count": st.integers(1, 50), "seed": st.integers(0, 999)}


@given(**EXAMPLES, positive=st.sampled_from((0, 1)))
def test_f1_sensitivity_and_specificity_are_scikit_learns(
    count: int, seed: int, positive: int
) -> None:
    outputs, targets = drawn(count, seed)
    right = (targets == positive).numpy()
    answers = outputs.argmax(1).numpy() == positive
    for score, of, expected in (
        ("f1", f1, metrics.f1_score(right, answers, zero_division=np.nan)),
        ("sensitivity", sensitivity, metrics.recall_score(right, answers, zero_division=np.nan)),
        ("specificity", specificity, metrics.recall_score(~right, ~answers, zero_division=np.nan)),
    ):
        assert float(of(outputs, targets, positive=positive)) == pytest.approx(
            float(expected), rel=1e-12, nan_ok=True
        ), score


@given(**EXAMPLES, positive=st.sampled_from((0, 1)))
def test_the_brier_score_is_scikit_learns_or_a_sum_over_classes(
    count: int, seed: int, positive: int
) -> None:
    outputs, targets = drawn(count, seed, classes=4)
    apart = probabilities(outputs).numpy() - np.eye(4)[targets.numpy()]
    assert float(brier(outputs, targets)) == pytest.approx((apart**2).sum(1).mean(), rel=1e-12)
    outputs, targets = drawn(count, seed)
    chances = probabilities(outputs)[:, positive].numpy()
    expected = metrics.brier_score_loss(
        (targets == positive).long().numpy(), chances, labels=[0, 1], pos_label=1
    )
    assert float(brier(outputs, targets, positive=positive)) == pytest.approx(expected, rel=1e-12)


@given(**EXAMPLES, classes=st.integers(2, 5))
def test_the_calibration_error_is_that_of_ten_bins(count: int, seed: int, classes: int) -> None:
    """Written out bin by bin, as in the paper's equations 3 and 4."""
    outputs, targets = drawn(count, seed, classes)
    chances = torch.softmax(outputs.double(), 1).numpy()
    confidence = chances.max(1)
    right = chances.argmax(1) == targets.numpy()
    expected = 0.0
    for b in range(1, BINS + 1):
        within = (confidence > (b - 1) / BINS) & (confidence <= b / BINS)
        if within.any():
            expected += within.mean() * abs(right[within].mean() - confidence[within].mean())
    assert float(calibration_error(outputs, targets)) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_a_missing_class_leaves_a_score_out_with_the_reason() -> None:
    outputs = torch.tensor([[1.0, 0.0]] * 3)
    healthy = torch.zeros(3).long()
    sick = torch.ones(3).long()
    assert math.isnan(sensitivity(outputs, healthy))
    assert math.isnan(f1(outputs, healthy))
    assert math.isnan(specificity(outputs, sick))
    assert (float(sensitivity(outputs, sick)), float(specificity(outputs, healthy))) == (0.0, 1.0)
    assert {"f1", "sensitivity", "specificity"} <= WHY_UNDEFINED.keys()


# Accuracy of classes, AUC and errors --------------------------------------------------------------

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def outputs_for(labels: list[int], classes: int, seed: int, levels: int) -> torch.Tensor:
    """Return outputs of few levels, so that many are tied."""
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, levels, (len(labels), classes)).astype(np.float32)
    )


@given(labels=LABELS, seed=st.integers(0, 99))
def test_balanced_accuracy_is_the_mean_recall_of_known_classes(
    labels: list[int], seed: int
) -> None:
    outputs = outputs_for(labels, 4, seed, 5)
    targets = torch.tensor(labels)
    answers = outputs.argmax(dim=1).tolist()
    recalls = [
        metrics.recall_score(labels, answers, labels=[k], average="macro")
        for k in sorted(set(labels))
    ]
    assert balanced_accuracy(outputs, targets) == pytest.approx(np.mean(recalls))


@given(
    labels=st.lists(st.integers(0, 1), min_size=2, max_size=40).filter(
        lambda labels: len(set(labels)) == 2
    ),
    seed=st.integers(0, 99),
    levels=st.sampled_from((1, 2, 3, 1000)),
)
def test_auc_is_scikit_learns_with_and_without_ties(
    labels: list[int], seed: int, levels: int
) -> None:
    outputs = outputs_for(labels, 2, seed, levels)
    targets = torch.tensor(labels)
    margins = (outputs[:, 1] - outputs[:, 0]).numpy()
    expected = metrics.roc_auc_score(labels, margins)
    assert auc(outputs, targets) == pytest.approx(expected)
    assert auc(torch.from_numpy(margins)[:, None], targets[:, None].float()) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [1, 1]),
        ([[0.0, math.nan], [0.0, 1.0]], [0, 1]),
    ],
)
def test_auc_of_one_class_or_of_no_numbers_is_no_number(
    outputs: list[list[float]], targets: list[int]
) -> None:
    assert math.isnan(auc(torch.tensor(outputs), torch.tensor(targets)))


@given(
    targets=st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30).filter(
        lambda t: np.ptp(t) > 1
    ),
    seed=st.integers(0, 99),
)
def test_errors_and_explained_variance_are_scikit_learns(targets: list[float], seed: int) -> None:
    answers = np.random.default_rng(seed).normal(scale=100.0, size=len(targets)).astype(np.float32)
    outputs = torch.from_numpy(answers)[:, None]
    true = torch.tensor(targets)
    assert absolute_error(outputs, true).mean().item() == pytest.approx(
        metrics.mean_absolute_error(targets, answers), rel=1e-5, abs=1e-3
    )
    assert rmse(outputs, true) == pytest.approx(
        metrics.root_mean_squared_error(targets, answers), rel=1e-6
    )
    assert r2(outputs, true) == pytest.approx(
        metrics.r2_score(targets, answers), rel=1e-5, abs=1e-5
    )


def test_no_variance_is_nothing_to_explain() -> None:
    assert math.isnan(r2(torch.zeros(3, 1), torch.ones(3)))


# In a run -----------------------------------------------------------------------------------------


def test_extra_scores_come_after_those_of_the_task(folder: Folder) -> None:
    there = folder(a=csv_of(30), b=csv_of(30, seed=1))
    plain = load(there)
    task = load_task(config(there) | {"scores": "brier, f1"})
    assert [score.name for score in task.scores] == [
        *(score.name for score in plain.scores),
        "brier",
        "f1",
    ]
    outputs, targets = drawn(20, 1)
    found = {score.name: of(outputs, targets) for score, of in task.scores.items()}
    assert float(found["f1"]) == float(f1(outputs, targets))
    assert float(
        load_task(
            config(there, schema_with(('target = "target"', 'target = "target"\npositive = 0')))
            | {"scores": "f1"}
        ).scores[replace(FURTHER["f1"], of="0")](outputs, targets)
    ) == float(f1(outputs, targets, positive=0))


@pytest.mark.parametrize("asked", ["f1", "f2", "brier,sensitivity", "specificty"])
def test_an_error_offers_only_scores_that_fit(asked: str) -> None:
    with pytest.raises(FairbloomError, match="leave it out, or take") as error:
        load_task({"task": "digits", "scores": asked})
    assert "did you mean" not in str(error.value)
    offered = str(error.value).partition("or take ")[2].split(", ")
    names = {
        score.name for score in load_task({"task": "digits", "scores": ",".join(offered)}).scores
    }
    assert names > {*offered} >= {"brier", "calibration-error"}


def test_scores_that_do_not_fit_the_target_are_refused(folder: Folder) -> None:
    with pytest.raises(
        FairbloomError,
        match=r"'brierr': it is unknown: did you mean brier\? leave it out, or take f1, ",
    ):
        load_task({"task": "heart-disease", "scores": "f1,brierr"})
    with pytest.raises(
        FairbloomError, match=r"scores = 'f1': it is of two classes, and there are 10: leave it out"
    ):
        load_task({"task": "digits", "scores": "f1"})
    there = folder(a=csv_of(30), b=csv_of(30, seed=1))
    with pytest.raises(
        FairbloomError, match=r"scores = 'brier': it is of classes, and the target is a quantity"
    ):
        load_task(config(there, target="dose") | {"scores": "brier"})
    with pytest.raises(FairbloomError, match=r"scores = f1, .* shape \(3, 1\)"):
        f1(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(FairbloomError, match=r"brier: .* shape \(3,\)"):
        brier(torch.zeros(3), torch.zeros(3))
