"""Counted masks of dropout: a client draws alone what it draws with others, here on the CPU."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairbloom.client.dropout import CountedDraws, Draws, Drop, squares
from fairbloom.client.training import seeded

CPU = torch.device("cpu")
SEEDS = tuple(np.random.default_rng(0).integers(2**63, size=3).tolist())
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
        with draws.for_one():
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


@pytest.mark.parametrize("kept", [0.0, 1e-3, 0.5, 0.9, 1.0 - 1e-6])
def test_a_mask_keeps_its_share_and_has_the_mean_1(kept: float) -> None:
    count = 200_000
    (mask,) = counted(SEEDS[0]).masks([Drop((1, count), torch.float64, kept)], [1])
    share = np.ceil(kept * 2**16) / 2**16
    assert {*mask.unique().tolist()} <= {0.0, 1.0 / share if kept else 1.0}
    assert binomtest(int((mask > 0).sum()), count, share).pvalue > 1e-3


def test_masks_of_clients_steps_and_calls_are_independent() -> None:
    draws = counted(*SEEDS)
    many = [
        mask[:, 0] > 0
        for _ in range(3)
        for mask in draws.masks([Drop((1, 4000), torch.float32, 0.5)] * 2, [1, 1, 1])
    ]
    for one, other in combinations([row for each in many for row in each], 2):
        pairs = np.bincount((2 * one + other.int()).numpy(), minlength=4)
        assert chisquare(pairs).pvalue > 1e-5


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_in_place_changes_its_inputs(inplace: bool) -> None:
    inputs = torch.ones(2, 50, requires_grad=True)
    hidden = inputs * 1.0
    with counted(SEEDS[0]).for_one():
        outputs = nn.functional.dropout(hidden, 0.5, inplace=inplace)
    assert torch.equal(hidden, outputs) == inplace
    (gradient,) = torch.autograd.grad(hidden.sum() if inplace else outputs.sum(), inputs)
    assert torch.equal(gradient, outputs.detach())


SHAPES: list[tuple[Any, tuple[int, ...], int]] = [
    (nn.functional.dropout1d, (40, 6), 1),
    (nn.functional.dropout1d, (4, 6, 5), 2),
    (nn.functional.dropout2d, (4, 6, 5), 2),
    (nn.functional.dropout2d, (4, 6, 5, 3), 2),
    (nn.functional.dropout3d, (40, 6, 5, 3), 1),
    (nn.functional.dropout3d, (4, 6, 5, 3, 2), 2),
    (nn.functional.dropout, (4, 6, 5), 3),
]


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize(("function", "shape", "drawn"), SHAPES)
def test_what_is_dropped_together_is_as_in_pytorch(
    function: Any, shape: tuple[int, ...], drawn: int
) -> None:
    torch.manual_seed(0)
    own = function(torch.ones(shape))
    with counted(SEEDS[0]).for_one():
        ours = function(torch.ones(shape))
    for each in (own, ours):
        parts = each.unsqueeze(-1).flatten(drawn)
        first = parts[..., :1]
        assert torch.equal(parts, first.expand_as(parts))
        assert 0 < (first > 0).sum() < first.numel()


def test_what_cannot_be_counted_is_pytorchs() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with counted(SEEDS[0]).for_one():
        assert nn.functional.dropout(nested, 0.5).is_nested
        with pytest.raises(ValueError, match="between 0 and 1"):
            nn.functional.dropout(torch.ones(3), 1.5)


class Recomputing(nn.Module):
    """Computes a part with dropout anew on its way back."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self._part = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
        self._reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(self._part, nn.functional.dropout(inputs), use_reentrant=self._reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_part_that_is_computed_anew_has_the_same_masks(reentrant: bool) -> None:
    """Otherwise its gradient is not that of the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Recomputing(reentrant)).double()
    inputs = torch.randn(5, 4, dtype=torch.float64)
    weight = model[0].weight
    direction = torch.randn_like(weight)

    def loss() -> Tensor:
        with seeded(3, CPU), counted(SEEDS[0]).for_one():
            return model(inputs).square().sum()

    loss().backward()
    ends = []
    for length in (1e-6, -2e-6):
        weight.data.add_(direction, alpha=length)
        ends.append(loss().item())
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((weight.grad * direction).sum()), 1e-6)
