"""Row by row: one row adds at most C, changes no other, and the sum is that of single rows."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.private.mechanism import TEST_SENSITIVITY
from fairbloom.client.private.rows import (
    CLIP,
    Rows,
    check_model,
    split_rows,
)
from fairbloom.errors import ReportableError
from fairbloom.tasks import Examples, Splits, Task

from ..helpers import task_of

CLASSES = 3


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES, bias=False)
    )


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))


def half_frozen() -> nn.Module:
    model = mlp()
    model[1].weight.requires_grad_(False)
    return model


def nested() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "half frozen": half_frozen,
    "nested": nested,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


def examples(count: int = 12, seed: int = 0) -> Examples:
    random = torch.Generator().manual_seed(seed)
    return Examples(
        torch.randn(count, 1, 2, 3, generator=random) * 4.0,
        torch.randint(0, CLASSES, (count,), generator=random),
    )


def planted(value: float) -> Examples:
    """Return the same rows in float64, with one that has this value everywhere."""
    data = examples()
    inputs = data.inputs.double()
    inputs[4] = value
    return Examples(inputs, data.targets)


def gradients_one_by_one(model: nn.Module, of: Examples) -> Tensor:
    """Return each row's gradient by autograd, shape (n, d)."""
    model = copy.deepcopy(model).double()
    trained = [each for each in model.parameters() if each.requires_grad]
    rows = list[Tensor]()
    for place in range(len(of)):
        inputs, targets = of[slice(place, place + 1)]
        loss = cross_entropy(model(inputs.double()), targets)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)]))
    return torch.stack(rows)


def test_the_sum_is_that_of_clipped_gradients(model: nn.Module) -> None:
    data = examples()
    each = gradients_one_by_one(model, data)
    factors = (CLIP / each.norm(dim=1)).clamp(max=1.0)
    assert 0.0 < factors.min() < 1.0
    expected = (each * factors[:, None]).sum(0)
    torch.testing.assert_close(
        Rows(model, data, CLASSES).clipped_sum(), expected, rtol=1e-10, atol=1e-12
    )


def test_dropout_draws_for_each_row() -> None:
    """The mask of a row depends on no row, and a report has none."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES))
    rows, other = Rows(model, examples(), CLASSES), Rows(model, planted(7.0), CLASSES)
    sums = list[Tensor]()
    for each in (rows, rows, other):
        torch.manual_seed(0)
        sums.append(each.clipped_sum())
    assert torch.equal(sums[0], sums[1])
    assert float((sums[2] - sums[0]).norm()) <= 2.0 * CLIP
    assert not torch.equal(rows.clipped_sum(), sums[0])
    assert torch.equal(rows.outputs(), rows.outputs())


PLANTED = [0.0, 1e38, -1e38, float("nan"), float("inf"), 1e-45, 1e-38, 300.0, 1e160]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_blanking_a_row_moves_the_sum_by_at_most_c(name: str, data: st.DataObject) -> None:
    """Whatever the weights are, all is finite; a blanked row is one whose gradient counts 0."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    parameters = list(model.parameters())
    with torch.no_grad():
        for _ in range(data.draw(st.integers(0, 4))):
            array = parameters[data.draw(st.integers(0, len(parameters) - 1))]
            value = data.draw(st.sampled_from(PLANTED))
            if data.draw(st.booleans()):
                array.fill_(value)
            else:
                array.view(-1)[data.draw(st.integers(0, array.numel() - 1))] = value
    rows = examples()
    inputs = rows.inputs.double() * data.draw(st.sampled_from([1.0, 1e-30, 1e30, 1e155]))
    place = data.draw(st.integers(0, 11))
    with_row = Rows(model, Examples(inputs, rows.targets), CLASSES)
    kept = torch.arange(12) != place
    without = Rows(model, Examples(inputs[kept], rows.targets[kept]), CLASSES)
    moved = with_row.clipped_sum() - without.clipped_sum()
    assert moved.isfinite().all()
    assert float(moved.norm()) <= CLIP * (1.0 + 1e-9)
    loss = float(with_row.losses().sum() - without.losses().sum())
    assert -1e-12 <= loss <= with_row.bound * (1.0 + 1e-9)
    right, losses = (a - b for a, b in zip(with_row.test(), without.test(), strict=True))
    assert right in (0, 1)
    assert losses >= -1e-12
    assert math.hypot(right, 0.3 * losses / with_row.bound) <= TEST_SENSITIVITY * (1.0 + 1e-9)


def test_a_loss_that_is_not_finite_counts_as_the_bound() -> None:
    model = logistic()
    nn.init.constant_(model[1].weight, float("nan"))
    rows = Rows(model, examples(), CLASSES)
    assert rows.losses().tolist() == [rows.bound] * 12
    assert rows.test() == (0, pytest.approx(12 * rows.bound))


def test_a_right_row_has_at_most_the_loss_of_guessing() -> None:
    """With equal outputs the first class is right, and its loss is that of guessing."""
    model = logistic()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    data = Examples(examples().inputs, torch.arange(12) % CLASSES)
    assert Rows(model, data, CLASSES).test() == (4, pytest.approx(12 * math.log(CLASSES)))
    nn.init.constant_(model[1].weight, float("inf"))
    right, losses = Rows(model, data, CLASSES).test()
    assert (right, losses) == (0, pytest.approx(12 * 1.5 * math.log(CLASSES)))


@pytest.mark.parametrize("value", [0.0, -7.0, float("nan"), 1e300])
def test_no_row_changes_another(model: nn.Module, value: float) -> None:
    """Their outputs have the same bits."""
    first = Rows(model, examples(), CLASSES).outputs()
    other = Rows(model, planted(value), CLASSES).outputs()
    kept = torch.arange(12) != 4
    assert torch.equal(first[kept], other[kept])


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e308])
def test_a_row_that_is_not_finite_adds_zero(model: nn.Module, value: float) -> None:
    """The sum of the others has the same bits, whatever its numbers are."""
    each, other = (Rows(model, planted(bad), CLASSES) for bad in (value, float("nan")))
    assert torch.equal(each.clipped_sum(), other.clipped_sum())


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(6),
        nn.Conv2d(1, 1, 1),
        nn.LayerNorm(6),
        nn.MaxPool2d(2),
        nn.Softmax(dim=0),
        nn.MultiheadAttention(6, 1),
        nn.LSTM(6, 3),
        nn.Flatten(0),
        nn.Embedding(3, 3),
        type("Mine", (nn.Linear,), {})(6, 3),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_are_refused(layer: nn.Module) -> None:
    with pytest.raises(ReportableError, match="has a layer"):
        check_model(nn.Sequential(layer), partial_task(nn.Sequential(layer)))


def partial_task(model: nn.Module) -> Task:
    return replace(task_of(model), loss=partial(cross_entropy, reduction="none"), classes=CLASSES)


def test_a_hook_or_a_shared_layer_is_refused() -> None:
    hooked = nn.Sequential(nn.Linear(6, 3))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ReportableError, match="has a layer Linear"):
        check_model(hooked, partial_task(hooked))
    whole = nn.Sequential(nn.Linear(6, 3))
    whole.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(ReportableError, match="has a layer Sequential"):
        check_model(whole, partial_task(whole))
    frozen = nn.Sequential(nn.Linear(6, 3)).requires_grad_(False)
    with pytest.raises(ReportableError, match="all are frozen"):
        check_model(frozen, partial_task(frozen))
    layer = nn.Linear(3, 3)
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    with pytest.raises(ReportableError, match="one parameter"):
        check_model(twice, partial_task(twice))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (task_of(logistic()), "loss"),
        (replace(partial_task(logistic()), classes=None), "how many classes"),
    ],
    ids=["loss", "classes"],
)
def test_a_task_without_classes_is_refused(task: Task, words: str) -> None:
    with pytest.raises(ReportableError, match=words):
        check_model(task.model(), task)


def test_our_models_are_allowed(model: nn.Module) -> None:
    assert check_model(model, partial_task(model)) == CLASSES


def splits_of_rows(train: list[int], test: list[int]) -> Splits:
    data = examples(20)
    return Splits(
        Examples(data.inputs, data.targets, torch.tensor(train)),
        Examples(data.inputs, data.targets, torch.tensor(test)),
    )


def test_the_split_depends_on_row_numbers_only() -> None:
    """Another split of the run gives the same one, and changed rows stay where they were."""
    first = splits_of_rows([0, 1, 2, 3, 5, 8], [4, 6, 7, 9])
    other = splits_of_rows([9, 8, 7, 6, 4], [0, 1, 2, 3, 5])
    one = split_rows(first, 3, 0.3)
    assert len(one.test) == 3
    assert len(one.train) == 7
    for part in ("train", "test"):
        assert torch.equal(getattr(one, part).rows, getattr(split_rows(other, 3, 0.3), part).rows)
    assert not torch.equal(one.train.rows, split_rows(first, 4, 0.3).train.rows)
