"""Inputs of several tensors, examples of a Dataset, and the errors about them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fairbloom.client.training import outputs_of
from fairbloom.errors import FairbloomError
from fairbloom.tasks import Examples, Splits, Task, model_loss
from fairbloom.tasks.checks import guard_task
from fairbloom.tasks.inputs import (
    combine_inputs,
    count_bytes,
    map_inputs,
    names_of,
    split_inputs,
    tensors_of,
)
from fairbloom.tasks.models import choose_output
from fairbloom.tasks.pooled import join_tensors

X = torch.arange(12.0).view(6, 2)
Y = torch.arange(6) % 2

KINDS: dict[str, Any] = {
    "a tensor": X,
    "by name": {"x": X, "mask": X > 3},
    "in order": (X, X[:, :1]),
}


# Inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", KINDS.values())
def test_inputs_are_taken_split_and_joined_as_a_tensor_is(whole: Any) -> None:
    inputs, targets = Examples(whole, Y, torch.tensor([5, 3, 1, 0]))[torch.tensor([2, 0])]
    assert targets.tolist() == [1, 1]
    assert type(inputs) is type(whole)
    again = combine_inputs(split_inputs(whole, [2, 4]), torch.cat)
    assert names_of(again) == names_of(whole)
    for taken, joined, tensor in zip(
        tensors_of(inputs), tensors_of(again), tensors_of(whole), strict=True
    ):
        assert torch.equal(taken, tensor[[1, 5]])
        assert torch.equal(joined, tensor)
    assert count_bytes(map_inputs(whole, Tensor.double)) >= count_bytes(whole)


def test_inputs_of_other_names_are_not_joined() -> None:
    with pytest.raises(FairbloomError, match=r"some have \('x',\), others \('y',\)"):
        combine_inputs([{"x": X}, {"y": X}], torch.cat)


class Answering(nn.Module):
    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *inputs: Tensor, **named: Tensor) -> object:
        return self.answer(*inputs, **named) if callable(self.answer) else self.answer


def test_a_model_is_called_as_its_inputs_ask_for() -> None:
    seen = lambda *inputs, **named: torch.tensor([len(inputs), len(named)])  # noqa: E731
    assert [outputs_of(Answering(seen), KINDS[kind]).tolist() for kind in KINDS] == [
        [1, 0],
        [0, 2],
        [2, 0],
    ]


@pytest.mark.parametrize(
    ("answer", "output", "chosen"),
    [
        ({"logits": X, "hidden": Y}, "", X),
        ({"hidden": X, "count": 3}, "", X),
        ({"logits": X, "scores": Y}, "scores", Y),
        (X, "scores", X),
    ],
)
def test_of_several_outputs_one_is_chosen_or_it_is_said(
    answer: Any, output: str, chosen: Tensor
) -> None:
    assert choose_output(Answering(answer), answer, output) is chosen


@pytest.mark.parametrize(
    ("answer", "output", "words"),
    [
        ({"a": X, "b": Y}, "", r"a, b in training.* Task\(output=...\)"),
        ({"logits": X}, "scores", r"logits in training.*'scores'"),
        ({"loss": 3.0}, "", "no tensor in training"),
        ((X, Y), "", "a tuple in training"),
    ],
)
def test_without_a_choice_of_outputs_it_is_said(answer: Any, output: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        outputs_of(Answering(answer), X, output)


def test_a_loss_of_the_model_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="the loss that a model returns"):
        model_loss(X, Y)


# Examples of a Dataset ----------------------------------------------------------------------------


class Rows(Dataset[Any]):
    def __init__(self, of: Callable[[int], Any]) -> None:
        self.of = of

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> Any:
        return self.of(place)


BATCHES: tuple[tuple[Any, Callable[[list[Any]], Any] | None, Any], ...] = (
    (TensorDataset(X, Y), None, X),
    (TensorDataset(X, X[:, :1], Y), None, (X, X[:, :1])),
    (Rows(lambda k: {"x": X[k], "labels": Y[k]}), None, {"x": X}),
    (Rows(lambda k: ({"x": X[k]}, Y[k])), None, {"x": X}),
    (Rows(lambda k: ((X[k], X[k, :1]), Y[k])), None, (X, X[:, :1])),
    (Rows(lambda k: k), lambda places: (X[places], Y[places]), X),
)


@pytest.mark.parametrize(
    ("chosen", "rows"), [(torch.tensor([2, 0]), [1, 5]), (slice(1, 3), [3, 1])]
)
@pytest.mark.parametrize(("dataset", "collate", "whole"), BATCHES)
def test_a_batch_is_made_of_the_examples_that_are_chosen(
    dataset: Any, collate: Any, whole: Any, chosen: Tensor | slice, rows: list[int]
) -> None:
    examples = Examples.of(dataset, collate, torch.tensor([5, 3, 1, 0]))
    assert len(examples) == 4
    assert len(Examples.of(dataset, collate)) == 6
    inputs, targets = examples[chosen]
    assert torch.equal(targets, Y[rows])
    assert names_of(inputs) == names_of(whole)
    for taken, tensor in zip(tensors_of(inputs), tensors_of(whole), strict=True):
        assert torch.equal(taken, tensor[rows])


def test_a_dataset_of_several_examples_at_once_is_asked_once() -> None:
    asked = []

    class Together(Rows):
        def __getitems__(self, places: list[int]) -> list[tuple[Tensor, Tensor]]:
            asked.append(places)
            return [(X[place], Y[place]) for place in places]

    assert torch.equal(Examples.of(Together(lambda k: None))[torch.tensor([4, 2])][0], X[[4, 2]])
    assert asked == [[4, 2]]


def test_targets_have_the_given_name_and_go_to_the_device() -> None:
    inputs, targets = Examples.of(Rows(lambda k: {"x": X[k], "y": Y[k]}), target="y").to(
        torch.device("meta")
    )[slice(0, 2)]
    assert (names_of(inputs), targets.device.type, tensors_of(inputs)[0].device.type) == (
        ("x",),
        "meta",
        "meta",
    )


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 1, 2])])
def test_batches_of_examples_that_do_not_fit_go_to_the_device(
    rows: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.tasks.task.has_room", lambda device, size: False)
    given = Examples(X, Y, rows, groups=torch.zeros(len(X), 1, dtype=torch.int64))
    examples = task_of(given).to(torch.device("meta")).splits("site").train
    assert isinstance(examples, Examples)
    assert (examples.targets.device.type, examples.device.type) == ("cpu", "meta")
    inputs, targets = examples[torch.tensor([2, 0])]
    moved = [*tensors_of(inputs), targets, examples.all_targets, examples.group_places()]
    assert {each.device.type for each in moved if each is not None} == {"meta"}
    assert join_tensors([examples, examples])[:][1].shape == (2 * len(examples),)


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield X[0], Y[0]


def task_of(part: Any, **others: Any) -> Task:
    made = Task(
        ("site",),
        lambda: nn.Linear(2, 2),
        partial(cross_entropy, reduction="none"),
        lambda client: Splits(part, Examples(X, Y)),
        **others,
    )
    return guard_task("hers:task", made)


WRONG: tuple[tuple[Any, str], ...] = (
    (Examples.of(Streamed()), "Streamed must have a length"),
    (Examples.of(Rows(lambda k: X[k])), "it returned a Tensor, .*targets NoneType"),
    (Examples.of(Rows(lambda k: {"x": X[k]})), "'labels' among them.*targets NoneType"),
    (
        Examples.of(Rows(lambda k: k), lambda places: (X[places], torch.tensor(1.0))),
        r"2 examples.*shape \(\)",
    ),
    (Examples.of(Rows(lambda k: ({"x": "a note"}, Y[k]))), "inputs list"),
    (Examples.of(TensorDataset(X / 0 - X / 0, Y)), "inputs hold NaN"),
    (Examples.of(TensorDataset(X, Y), rows=torch.tensor([6])), "from 0 to 5"),
    (Examples({}, Y), "inputs are an empty dict"),
    (Examples({0: X}, Y), "inputs has the key 0"),  # type: ignore[dict-item]
    (Examples([X, X], Y), "inputs must be a torch.Tensor, got list"),  # type: ignore[arg-type]
    (Examples({"x": X, "mask": X[:5]}, Y), r"5 inputs\[mask\] and 6 targets"),
    (Examples((X, X / 0), Y), r"inputs\[1\] hold NaN"),
)


@pytest.mark.parametrize(("part", "words"), WRONG)
def test_what_is_wrong_with_inputs_is_said_with_client_and_name(part: Any, words: str) -> None:
    with pytest.raises(
        FairbloomError,
        match=f"'hers:task': the training examples of client site: .*{words}",
    ):
        task_of(part).splits("site")


def test_groups_of_a_dataset_are_those_of_its_rows() -> None:
    places = Examples.of(
        TensorDataset(X, Y),
        rows=torch.tensor([1, 2]),
        groups=torch.arange(6).remainder(2).unsqueeze(1),
    ).group_places()
    assert places is not None
    assert places.tolist() == [[1], [0]]
    with pytest.raises(FairbloomError, match="groups must be"):
        task_of(Examples.of(TensorDataset(X, Y)), groupings={"side": ("left", "right")}).splits(
            "site"
        )


def test_all_targets_of_a_dataset_are_read_without_drawing() -> None:
    dataset = Rows(lambda k: (X[k] + torch.rand(2), Y[k]))
    before = torch.get_rng_state()
    assert torch.equal(Examples.of(dataset, rows=torch.tensor([5, 0])).all_targets, Y[[5, 0]])
    assert torch.equal(torch.get_rng_state(), before)
