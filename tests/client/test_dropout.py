"""Counted masks of dropout: a client draws alone what it draws with others, here on the CPU."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairbloom.client.dropout import CountedDraws, Draws, Drop, squares
from fairbloom.client.training import train

from .test_capture import WORK, examples_of, network, task_of

CPU = torch.device("cpu")
SEEDS = (7, 2**63 - 1, 8)
DROPS = (Drop((3, 5, 4), torch.float32, 0.75), Drop((3, 6, 1, 1), torch.bfloat16, 0.5))


def counted(*seeds: int) -> CountedDraws:
    draws = CountedDraws(len(seeds) + 1, CPU)  # room for more clients
    draws.begin(seeds)
    return draws


def masks_alone(draws: Draws, sizes: Sequence[int]) -> list[Tensor]:
    """Return the masks of a client's steps on so many examples, flat, of two calls of dropout."""
    steps = []
    for size in sizes:
        inputs = [torch.ones(size, 5, 4), torch.ones(size, 6, 3, 2, dtype=torch.bfloat16)]
        with draws.alone():
            outputs = (nn.functional.dropout(inputs[0], 0.25), nn.functional.dropout2d(inputs[1]))
        steps.append(torch.cat([each.float().flatten() for each in outputs]))
    return steps


def test_squares_are_those_of_whole_numbers() -> None:
    mask = 2**64 - 1
    random = np.random.default_rng(0)
    numbers = random.integers(-(2**63), 2**63, (50, 2))

    def rotate(x: int) -> int:
        return (x >> 32 | x << 32) & mask

    for counter, key in numbers.tolist():
        once = counter * key & mask
        twice = once + key & mask
        x = rotate(once * once + once & mask)
        x = rotate(x * x + twice & mask)
        x = rotate(x * x + once & mask)
        x = x * x + twice & mask
        turned = rotate(x)
        expected = x ^ ((turned * turned + once & mask) >> 32)
        assert int(squares(torch.tensor(counter), torch.tensor(key))) & mask == expected


def test_clients_draw_together_what_each_draws_alone() -> None:
    together = counted(*SEEDS)
    sizes = [[4, 4, 2], [3, 3, 3], [1]]  # padded, not padded, and the first client only
    alone = [
        masks_alone(counted(seed), column)
        for seed, column in zip(SEEDS, [(4, 3, 1), (4, 3), (2, 3)], strict=True)
    ]
    for step, of_step in enumerate(sizes):
        first, second = together.masks(DROPS, of_step)
        assert first.shape == (len(of_step), max(of_step), 5, 4)
        assert second.dtype == torch.bfloat16
        for client, size in enumerate(of_step):
            wide = second[client, :size].float().expand(size, 6, 3, 2)
            mask = torch.cat([first[client, :size].flatten(), wide.flatten()])
            assert torch.equal(mask, alone[client][step])


def test_a_mask_keeps_its_share_and_its_mean() -> None:
    for kept in (0.0, 0.5, 0.9, 1.0 - 1e-6):
        (mask,) = counted(1).masks([Drop((1, 100_000), torch.float32, kept)], [1])
        assert {*mask.unique().tolist()} <= {0.0, float(torch.tensor(1.0) / kept) if kept else 1.0}
        assert binomtest(int((mask > 0).sum()), 100_000, kept).pvalue > 1e-3


def test_masks_of_clients_steps_and_calls_are_independent() -> None:
    draws = counted(1, 2, 3)
    many = [
        mask[:, 0] > 0
        for _ in range(3)
        for mask in draws.masks([Drop((1, 4000), torch.float32, 0.5)] * 2, [1, 1, 1])
    ]
    for one, other in combinations([row for each in many for row in each], 2):
        pairs = np.bincount((2 * one + other.int()).numpy(), minlength=4)
        assert chisquare(pairs).pvalue > 1e-5


def test_each_value_of_each_byte_comes_as_often() -> None:
    bits = squares(torch.arange(100_000), squares(torch.tensor(3), 2**62 + 1) | 1)
    for column in bits.view(torch.uint8).reshape(-1, 8).T:
        assert chisquare(np.bincount(column.numpy(), minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_in_place_changes_its_inputs(inplace: bool) -> None:
    inputs = torch.ones(2, 50, requires_grad=True)
    hidden = inputs * 1.0
    with counted(1).alone():
        outputs = nn.functional.dropout(hidden, 0.5, inplace=inplace)
    assert torch.equal(hidden, outputs) == inplace
    (gradient,) = torch.autograd.grad(hidden.sum() if inplace else outputs.sum(), inputs)
    assert torch.equal(gradient, outputs.detach())


class Recomputing(nn.Module):
    """Computes a part with dropout anew on its way back."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self._part = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
        self._reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(self._part, nn.functional.dropout(inputs), use_reentrant=self._reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_model_that_recomputes_draws_from_the_generator(
    reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for kinds in ((), ("cpu",)):
        monkeypatch.setattr("fairbloom.client.dropout.COUNTED", kinds)
        torch.manual_seed(0)
        model = network(Recomputing(reentrant))
        train(model, task_of(model), examples_of(0), replace(WORK, random=np.random.default_rng(0)))
        ends.append([each.clone() for each in model.state_dict().values()])
    assert all(map(torch.equal, *ends))
