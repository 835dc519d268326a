"""A class that computes a chain is the chain of its layers, and no other class is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fairbloom.client.chain import chain_layers, traced_layers
from fairbloom.simulation.stacked.programs import Chain, Mapped, Program, make_program
from fairbloom.tasks import Examples

from .test_capture import task_of

WIDE = 6

Forward = Callable[[Any, Tensor], Any]


class Net(nn.Module):
    """Two linear layers, with whatever a test computes of them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Tanh(), nn.Linear(WIDE, WIDE))
        self.second = nn.Linear(WIDE, WIDE)
        self.last: Any = None
        self._computed = forward

    def forward(self, inputs: Tensor) -> Any:
        self.last = self._computed(self, inputs)
        return self.last


CHAINS: list[Forward] = [
    lambda net, x: net.second(functional.relu(net.first(torch.flatten(x, 1)), inplace=True)),
    lambda net, x: net.second(net.first(x.flatten(start_dim=1)).relu()).sigmoid(),
    lambda net, x: net.second(functional.leaky_relu(net.first(x.view(x.size(0), -1)), 0.3)),
    lambda net, x: net.second(net.first(x.reshape(x.shape[0], -1).view(-1, WIDE))),
    lambda net, x: functional.gelu(net.second(net.first(x.flatten(1))), approximate="tanh"),
]


@pytest.mark.parametrize("forward", CHAINS)
def test_a_class_is_the_chain_of_its_layers(forward: Forward) -> None:
    model = Net(forward)
    assert chain_layers(model) is None
    layers = traced_layers(model)
    assert layers is not None
    assert model.last is None  # it is not traced itself
    inputs = torch.randn(5, 2, WIDE // 2)
    assert torch.equal(nn.Sequential(*layers)(inputs), model(inputs))
    parameters = [each for layer in layers for each in layer.parameters()]
    assert [*map(id, parameters)] == [*map(id, model.parameters())]


def plain(net: Any, inputs: Tensor) -> Any:
    return net.second(net.first(inputs.flatten(1)))


OTHERS: dict[str, Forward] = {
    "reordered": lambda net, x: net.first(net.second(x.flatten(1))),
    "again": lambda net, x: net.second(net.second(net.first(x.flatten(1)))),
    "partly": lambda net, x: net.first(x.flatten(1)),
    "residual": lambda net, x: plain(net, x) + x.flatten(1),
    "unused": lambda net, x: [net.first(x.flatten(1)), net.second(x.flatten(1))][1],
    "branching": lambda net, x: plain(net, x) if x.sum() > 0 else net.second(x),
    "dropping": lambda net, x: functional.dropout(plain(net, x), 0.5, net.training),
    "partly flat": lambda net, x: net.second(net.first(x.flatten(1, 2))),
    "transposed": lambda net, x: plain(net, x.transpose(1, -1)),
    "tuple": lambda net, x: (plain(net, x), x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_no_chain(name: str) -> None:
    assert traced_layers(Net(OTHERS[name])) is None
    assert traced_layers(nn.LSTM(WIDE, WIDE)) is None


@pytest.mark.parametrize("before", [False, True])
def test_a_model_with_hooks_is_no_chain(before: bool) -> None:
    model = Net(plain)
    assert traced_layers(model) is not None
    part = model if before else model.first
    register = part.register_forward_pre_hook if before else part.register_forward_hook
    register(lambda *_: None)
    assert traced_layers(model) is None


def precise(net: Any, inputs: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        return plain(net, inputs)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Net(plain), Chain),
        (Net(lambda net, x: net.second(net.first(x)).flatten(1)), Mapped),
        (Net(precise), Mapped),
        (Net(lambda net, x: plain(net, x if torch.is_grad_enabled() else 2.0 * x)), Mapped),
    ],
)
def test_a_chain_that_is_another_model_is_not_used(model: nn.Module, kind: type[Program]) -> None:
    # Its forward may depend on gradients and autocast, which the trace does not show.
    examples = Examples(torch.randn(5, 1, WIDE), torch.randint(WIDE, (5,)))
    assert isinstance(make_program(model, task_of(model), examples), kind)
