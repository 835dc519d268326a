"""The step of a linear classifier, written out."""

from functools import partial

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fairbloom.client.linear import linear_step
from fairbloom.client.training import fetch_batches
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tasks.checks import guard_loss

from .helpers import work

LOSS = partial(cross_entropy, reduction="none")


def task_with(loss: object = LOSS) -> Task:
    none = Examples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    return Task(("a",), lambda: nn.Linear(3, 2), loss, lambda client: Splits(none, none))  # type: ignore[arg-type]


def flat(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs)).double()


def hooked() -> nn.Module:
    model = flat(3, 2)
    model[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def frozen() -> nn.Module:
    model = flat(3, 2)
    model[1].bias.requires_grad_(False)
    return model


class Doubled(nn.Linear):
    """A linear layer that does something else."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


def test_any_other_model_is_left_to_autograd(subtests: pytest.Subtests) -> None:
    for model in (
        hooked(),
        frozen(),
        Doubled(3, 2),
        nn.Linear(3, 2, bias=False),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)),
    ):
        with subtests.test(model=model):
            assert linear_step(model, task_with(), work(), [], []) is None


def test_a_loss_of_a_users_own_task_is_seen_through_its_check() -> None:
    loss = guard_loss("hers", LOSS)
    assert loss is not LOSS
    assert linear_step(flat(3, 2), task_with(loss), work(), [], []) is not None


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    width=st.sampled_from([1, 10_000, 200_000]),
)
def test_gathering_several_batches_at_once_changes_no_example(
    counts: list[int], width: int
) -> None:
    rows = torch.randperm(9)
    examples = Examples(torch.arange(9.0).unsqueeze(1).expand(9, width), torch.arange(9), rows)
    order = [torch.randint(0, 9, (count,)) for count in counts]
    got = list(fetch_batches(examples, iter(order)))
    assert len(got) == len(order)
    for batch, (inputs, targets) in zip(order, got, strict=True):
        assert targets.tolist() == rows[batch].tolist()
        assert inputs[:, 0].tolist() == rows[batch].tolist()
