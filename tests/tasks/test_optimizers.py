"""The optimizers, and errors about those that cannot be used."""

from typing import Any

import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks.optimizers import (
    ARGUMENTS,
    OF_PYTORCH,
    arguments_of,
    check_optimizer,
    make_optimizer,
)


def returning_a_list(params: Any, lr: float = 0.1) -> list[Any]:
    return list(params)


def test_sgd_adam_adamw_and_any_of_ones_own_are_known() -> None:
    for name in ("sgd", "adam", "AdamW", "torch.optim:Adafactor", "torch.optim:RMSprop"):
        check_optimizer(RunSettings.of({"optimizer": name}))
    check_optimizer(RunSettings.of({"optimizer": "torch.optim:RMSprop", "momentum": 0.9}))
    check_optimizer(RunSettings.of({"momentum": 0.9, "nesterov": True}))


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_known_arguments_are_those_of_pytorch(name: str) -> None:
    assert {*ARGUMENTS[name]} == {*arguments_of(f"torch.optim:{OF_PYTORCH[name]}")}.intersection(
        ["lr", "momentum", "weight_decay"]
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "adamm"}, "optimizer = 'adamm': .*adam"),
        ({"optimizer": "rmsprop"}, "optimizer = 'rmsprop': .*torch.optim:RMSprop"),
        ({"optimizer": "nowhere:Mine"}, "optimizer = 'nowhere:Mine'"),
        ({"optimizer": "math:pi"}, "optimizer = 'math:pi': it is a float"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 .*optimizer = 'adam'"),
        ({"optimizer": "torch.optim:Rprop", "weight-decay": 0.1}, "weight-decay = 0.1 "),
        ({"nesterov": True}, "nesterov = true .* momentum = 0"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov = true .* 'adam'"),
    ],
)
def test_what_cannot_be_is_named_with_its_remedy(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        check_optimizer(RunSettings.of(changes))


def test_what_cannot_be_made_is_named_with_its_arguments() -> None:
    weights = [torch.ones(2, requires_grad=True)]
    with pytest.raises(FairbloomError, match=r"returning_a_list'.* makes a list"):
        make_optimizer(f"{__name__}:returning_a_list", weights, learning_rate=0.1)
    with pytest.raises(FairbloomError, match=r"optimizer = 'sgd' .*momentum=-1"):
        make_optimizer("sgd", weights, learning_rate=0.1, momentum=-1)
