"""What a client reports of groups: fairlearn's numbers, and nothing from which a small group can be
found out."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score, mean_absolute_error, recall_score

from fairbloom.client.group_metrics import group_examples, measure_groups, reportable
from fairbloom.client.training import measure
from fairbloom.errors import ReportableError
from fairbloom.protocol.scores import Score
from fairbloom.simulation.stacked.batched_metrics import measure_clients
from fairbloom.tasks import Examples, Task
from fairbloom.tasks.extra_scores import add_scores
from fairbloom.tasks.measures import absolute_error, auc, group_scores_of_classes

fairlearn = pytest.importorskip("fairlearn.metrics")

SEXES = ("female", "male")
WARDS = ("north", "south", "west")


def task_of(classes: int = 2, positive: int = 1, **changes: Any) -> Task:
    """Return a task with groups by sex and ward, and with neither a model nor clients."""
    given = {
        "groupings": {"sex": SEXES, "ward": WARDS},
        "group_scores": group_scores_of_classes(classes, positive),
    } | changes
    return Task((), lambda: None, lambda outputs, targets: outputs, lambda client: None, **given)  # type: ignore[arg-type,return-value]


def drawn(
    count: int, seed: int, classes: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    outputs = torch.from_numpy(random.normal(size=(count, classes)).astype(np.float32))
    targets = torch.from_numpy(random.integers(0, classes, count))
    groups = torch.from_numpy(
        np.stack([random.integers(0, 2, count), random.integers(0, 3, count)], axis=1)
    )
    return outputs, targets, groups


def measured_groups(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor, groups: torch.Tensor, smallest: int
) -> dict[str, int | float]:
    (found,) = measure_groups(
        task,
        {score: of(outputs, targets) for score, of in task.group_scores.items()},
        groups,
        [len(groups)],
        smallest,
    )
    return found


# Scores -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@given(count=st.integers(2, 60), seed=st.integers(0, 999), positive=st.sampled_from((0, 1)))
def test_scores_by_group_are_fairlearns(count: int, seed: int, positive: int) -> None:
    outputs, targets, groups = drawn(count, seed)
    found = measured_groups(task_of(positive=positive), outputs, targets, groups, smallest=1)
    right = (targets == positive).long().numpy()
    answers = (outputs.argmax(1) == positive).long().numpy()
    of = {"accuracy": accuracy_score, "selection-rate": fairlearn.selection_rate}
    of |= {"true-positive-rate": fairlearn.true_positive_rate, "count": fairlearn.count}
    for column, (grouping, names) in enumerate((("sex", SEXES), ("ward", WARDS))):
        by = np.array(names)[groups[:, column].numpy()]
        table = fairlearn.MetricFrame(
            metrics=of, y_true=right, y_pred=answers, sensitive_features=by
        ).by_group
        for name in names:
            positives = int(right[by == name].sum())
            there = {key: found.get(f"{key}[{grouping}:{name}]") for key in of}
            if name not in table.index:
                assert set(there.values()) == {None}
                continue
            expected = dict(table.loc[name])
            assert found.get(f"positives[{grouping}:{name}]", 0) == positives
            if not positives:  # fairlearn calls it 0; here it is left out
                assert there.pop("true-positive-rate") is None
                expected.pop("true-positive-rate")
            assert there == pytest.approx(expected, rel=1e-12)


def test_accuracy_and_error_are_measured_in_groups_too() -> None:
    outputs, targets, groups = drawn(50, 3, classes=4)
    found = measured_groups(task_of(classes=4), outputs, targets, groups, smallest=1)
    assert {key.partition("[")[0] for key in found} == {"count", "accuracy"}
    women = groups[:, 0] == 0
    assert found["accuracy[sex:female]"] == accuracy_score(targets[women], outputs.argmax(1)[women])
    numbers = outputs[:, :1]
    errors = {Score("mae", higher_is_better=False): absolute_error}
    found = measured_groups(
        task_of(group_scores={}, scores=errors), numbers, targets.float(), groups, smallest=1
    )
    assert found["mae[sex:female]"] == pytest.approx(
        mean_absolute_error(targets[women], numbers[women]), rel=1e-6
    )


def test_a_score_of_all_together_cannot_be_measured_in_groups() -> None:
    outputs, targets, groups = drawn(20, 1)
    task = task_of(group_scores={}, scores={Score("auc"): auc})
    with pytest.raises(
        ReportableError, match=r"score auc cannot be measured in groups.*give the task group_scores"
    ):
        measured_groups(task, outputs, targets, groups, smallest=1)


def test_an_infinite_score_is_left_out_of_its_group_alone() -> None:
    outputs, targets, groups = drawn(30, 2)
    task = task_of(group_scores={}, scores={Score("mae", higher_is_better=False): absolute_error})
    numbers = outputs[:, :1].clone()
    numbers[int((groups[:, 0] == 0).nonzero()[0])] = math.nan
    found = measured_groups(task, numbers, targets.float(), groups, smallest=1)
    assert "mae[sex:female]" not in found
    assert math.isfinite(found["mae[sex:male]"])


# The recall of each class --------------------------------------------------------------------------


def with_recall(classes: int | None, **changes: Any) -> Task:
    """Return a task by whose true classes clients report recalls."""
    task = replace(task_of(classes or 0, **changes), classes=classes)
    return add_scores(replace(task, loss=lambda outputs, targets: outputs[:, 0]), ("recall",))


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    classes=st.integers(2, 4),
    smallest=st.sampled_from([1, 3]),
    column=st.sampled_from(["sex", "class"]),
)
def test_the_recall_of_each_class_is_scikit_learns(
    counts: list[int], classes: int, smallest: int, column: str
) -> None:
    names = tuple("abcd"[:classes])
    task = with_recall(classes, class_names=names, groupings={column: SEXES})
    by = "class" if column == "sex" else "true class"
    assert [*task.reported_groupings] == [column, by]  # fairness between groups goes by the first
    parts = [
        Examples(outputs, targets, groups=groups[:, :1])
        for outputs, targets, groups in map(drawn, counts, itertools.count(), [classes] * 3)
    ]
    found = measure_clients(torch.nn.Identity(), task, parts, smallest)
    for part, report in zip(parts, found, strict=True):
        assert report == pytest.approx(measure(torch.nn.Identity(), task, part, smallest))
        recalls = recall_score(
            part.targets,
            torch.as_tensor(part.inputs).argmax(1),
            labels=range(classes),
            average=None,
            zero_division=np.nan,
        )
        assert report["recall"] == pytest.approx(np.nanmean(recalls), rel=1e-6)
        sizes = np.bincount(part.targets, minlength=classes).tolist()
        shown = reportable([sizes], smallest)
        assert {name: each for name, each in report.items() if f"[{by}:" in name} == pytest.approx(
            {f"count[{by}:{names[place]}]": sizes[place] for place in shown}
            | {f"recall[{by}:{names[place]}]": recalls[place] for place in shown}
        )
        assert not any(name.startswith(f"recall[{column}:") for name in report)


@pytest.mark.parametrize(
    "targets", [[0, 1, 3], [0, 1, -1], [0.5, 1.0, 0.0], [[0, 1], [1, 2], [2, 0]]]
)
def test_targets_that_are_no_classes_are_refused(targets: list[Any]) -> None:
    with pytest.raises(ReportableError, match="each example needs one of 3 classes"):
        group_examples(
            with_recall(3, groupings={}), Examples(torch.zeros(3, 3), torch.tensor(targets))
        )


def test_recall_needs_a_known_number_of_classes() -> None:
    with pytest.raises(ReportableError, match=r"'recall': .* and the target is a quantity"):
        with_recall(0)
    with pytest.raises(ReportableError, match=r"'recall': .* does not say how many .* by classes"):
        with_recall(None)
    task = with_recall(2, groupings={})
    assert task.reported_groupings == {"class": ("0", "1")}
    examples = Examples(torch.zeros(3, 1), torch.tensor([[0.0], [1.0], [1.0]]))
    assert group_examples(task, examples).tolist() == [[0], [1], [1]]


# What is held back --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "smallest", "shown"),
    [
        ((20, 30), 5, [0, 1]),
        ((3, 30), 5, []),  # 30 would say that there are 3
        ((3, 9, 30), 5, [2]),  # those of fewer than ten go with it
        ((3, 10, 30), 5, []),  # there are none
        ((3, 9, 9, 30), 5, [3]),
        ((3, 3, 30), 5, [2]),  # two groups that are too small hide each other
        ((1, 2, 30), 5, []),  # together they are still too few
        ((1, 2, 6, 30), 5, [3]),
        ((0, 30), 5, [1]),  # an empty group does not count
        ((0, 0), 5, []),
        ((1, 2), 1, [0, 1]),
        ((5, 5), 5, [0, 1]),
    ],
)
def test_with_a_small_group_others_are_held_back(
    counts: tuple[int, ...], smallest: int, shown: list[int]
) -> None:
    assert reportable([counts], smallest) == shown


def possible(counts: tuple[int, ...], smallest: int) -> Mapping[int, set[int]]:
    """Return what somebody who knows total, reported counts and the rule can think of each group
    that is held back."""
    shown = reportable([counts], smallest)
    hidden = [place for place in range(len(counts)) if place not in shown]
    left = sum(counts) - sum(counts[place] for place in shown)
    found: dict[int, set[int]] = {place: set() for place in hidden}
    for guess in itertools.product(range(left + 1), repeat=len(hidden)):
        if sum(guess) == left:
            whole = [*counts]
            for place, value in zip(hidden, guess, strict=True):
                whole[place] = value
            if reportable([whole], smallest) == shown:
                for place, value in zip(hidden, guess, strict=True):
                    found[place].add(value)
    return found


@pytest.mark.slow
@settings(max_examples=50)
@given(counts=st.lists(st.integers(0, 12), min_size=2, max_size=4), smallest=st.integers(3, 6))
def test_a_small_groups_count_cannot_be_derived(counts: list[int], smallest: int) -> None:
    found = possible(tuple(counts), smallest).items()
    assert all(len(values) > 1 for place, values in found if 0 < counts[place] < smallest)


@given(count=st.integers(1, 80), seed=st.integers(0, 999), smallest=st.integers(2, 12))
def test_what_leaves_is_over_enough_examples_as_is_the_rest(
    count: int, seed: int, smallest: int
) -> None:
    outputs, targets, groups = drawn(count, seed)
    found = measured_groups(task_of(), outputs, targets, groups, smallest)
    for column, (grouping, names) in enumerate((("sex", SEXES), ("ward", WARDS))):
        of_groups = torch.bincount(groups[:, column], minlength=len(names)).tolist()
        with_target = torch.bincount(groups[targets == 1, column], minlength=len(names)).tolist()
        for what, true in (("count", of_groups), ("positives", with_target)):
            reported = {
                place: found[key]
                for place, name in enumerate(names)
                if (key := f"{what}[{grouping}:{name}]") in found
            }
            assert all(value == true[place] >= smallest for place, value in reported.items())
            hidden = [
                value
                for place, value in enumerate(true)
                if place not in reported and of_groups[place]
            ]
            if reported and hidden:
                assert len(hidden) > 1
                assert sum(hidden) >= smallest
        for name in names:  # no example is identified by what all others of its group share
            if (positives := found.get(f"positives[{grouping}:{name}]")) is not None:
                assert found[f"count[{grouping}:{name}]"] - positives >= smallest
            for score in ("accuracy", "selection-rate"):
                assert (f"{score}[{grouping}:{name}]" in found) == (
                    f"count[{grouping}:{name}]" in found
                )


def test_examples_that_are_pooled_keep_their_groups() -> None:
    from fairbloom.tasks.pooled import join

    part = Examples(
        torch.zeros(4, 1), torch.zeros(4), torch.tensor([2, 0]), torch.arange(4)[:, None]
    )
    assert join([part, part]).group_places().flatten().tolist() == [2, 0, 2, 0]
    assert join(
        [part, Examples(part.inputs, part.targets, torch.tensor([3]), part.groups)]
    ).group_places().flatten().tolist() == [2, 0, 3]
