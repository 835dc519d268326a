"""Row by row: one row adds at most C, changes no other, and both ways to compute it are one."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.private.rows import (
    CLIP,
    Rows,
    all_rows,
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


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 1 * 2, CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "half frozen": half_frozen,
    "cnn": cnn,
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


@pytest.mark.parametrize("model", ["logistic", "mlp"], indirect=True)
def test_the_chain_equals_single_rows(model: nn.Module) -> None:
    chain = Rows(model, examples(), CLASSES)
    by_row = Rows(model, examples(), CLASSES)
    by_row._layers = []
    torch.testing.assert_close(chain.clipped_sum(), by_row.clipped_sum(), rtol=0, atol=1e-12)
    assert chain.loss_sum() == pytest.approx(by_row.loss_sum(), abs=1e-12)
    assert chain.count_correct() == by_row.count_correct()


def test_rows_in_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part has one row."""
    rows = Rows(cnn(), examples(13), CLASSES)
    in_one = rows.clipped_sum()
    monkeypatch.setattr("fairbloom.client.private.rows.NUMBERS_AT_ONCE", 3 * rows.width)
    in_parts = rows.clipped_sum()
    torch.testing.assert_close(in_parts, in_one, rtol=0, atol=1e-12)
    assert torch.equal(in_parts, rows.clipped_sum())


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
    assert -1e-12 <= with_row.loss_sum() - without.loss_sum() <= with_row.bound * (1.0 + 1e-9)
    assert with_row.count_correct() - without.count_correct() in (0, 1)


def test_a_loss_that_is_not_finite_counts_as_the_bound() -> None:
    model = logistic()
    nn.init.constant_(model[1].weight, float("nan"))
    rows = Rows(model, examples(), CLASSES)
    assert rows.loss_sum() == pytest.approx(12 * rows.bound)


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


@pytest.mark.parametrize(("share", "tests"), [(0.9, 2), (0.5, 2), (0.1, 1)])
def test_both_splits_of_three_rows_have_one(share: float, tests: int) -> None:
    split = split_rows(splits_of_rows([0, 1], [2]), 3, share)
    assert (len(split.train), len(split.test)) == (3 - tests, tests)


def test_examples_in_tensors_of_their_own_are_joined() -> None:
    train, test = examples(5, seed=1), examples(3, seed=2)
    every = all_rows(Splits(train, test))
    assert len(every) == 8
    assert torch.equal(every.all_targets, torch.cat([train.targets, test.targets]))
    assert torch.equal(every.inputs, torch.cat([train.inputs, test.inputs]))
