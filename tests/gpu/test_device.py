"""Tensors and generators of a card."""

import pytest
import torch
from torch import nn

from fairbloom.client.device import choose_device
from fairbloom.client.training import seeded
from fairbloom.tasks.models import arrays_of

pytestmark = pytest.mark.gpu


def test_models_come_back_from_a_card(device: str) -> None:
    there = choose_device(device)
    model = {"a": torch.rand(2, 3), "b": torch.rand(4), "c": torch.arange(3), "d": torch.rand(())}
    found = arrays_of({name: each.to(there) for name, each in model.items()})
    assert all((found[name] == each.numpy()).all() for name, each in model.items())


def test_dropout_on_a_card_is_seeded_and_leaves_its_generator(card: torch.device) -> None:
    dropout = nn.Dropout(0.5).train()
    ones = torch.ones(100, device=card)
    before = torch.cuda.get_rng_state(card)
    drawn = []
    for _ in range(2):
        with seeded(7, card):
            drawn.append(dropout(ones))
    assert torch.equal(*drawn)
    assert torch.equal(torch.cuda.get_rng_state(card), before)
