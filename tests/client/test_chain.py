"""A class that computes a chain is the chain of its layers, and no other class is."""

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


class Plain(nn.Module):
    """Two layers, and a last one that only some classes use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh())
        self.second = nn.Linear(WIDE, WIDE)

    def forward(self, inputs: Tensor) -> Any:
        return self.second(functional.relu(self.first(torch.flatten(inputs, 1)), inplace=True))


class Method(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(self.first(inputs.flatten(start_dim=1)).relu()).sigmoid()


class Viewed(Plain):
    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.view(inputs.size(0), -1)
        return self.second(functional.leaky_relu(self.first(rows), 0.3))


class Reshaped(Plain):
    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.reshape(inputs.shape[0], -1).view(-1, WIDE)
        return functional.gelu(self.second(self.first(rows)), approximate="tanh")


class Keeping(Plain):
    """Keeps its last outputs."""

    last: object = None

    def forward(self, inputs: Tensor) -> Any:
        self.last = self.second(self.first(inputs.flatten(1)))
        return self.last


@pytest.mark.parametrize("made", [Plain, Method, Viewed, Reshaped, Keeping])
def test_a_class_is_the_chain_of_its_layers(made: type[nn.Module]) -> None:
    model = made()
    assert chain_layers(model) is None
    layers = traced_layers(model)
    assert layers is not None
    inputs = torch.randn(5, 2, WIDE // 2)
    assert getattr(model, "last", None) is None  # it is not traced itself
    assert torch.equal(nn.Sequential(*layers)(inputs), model(inputs))
    parameters = [each for layer in layers for each in layer.parameters()]
    assert [*map(id, parameters)] == [*map(id, model.parameters())]


class Reordered(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.first(self.second(inputs.flatten(1)))


class Again(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(self.second(self.first(inputs.flatten(1))))


class Partly(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.first(inputs.flatten(1))


class Residual(Plain):
    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.flatten(1)
        return self.second(self.first(rows)) + rows


class Around(Plain):
    """Computes a layer whose outputs it does not use."""

    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.flatten(1)
        self.first(rows)
        return self.second(rows)


class Branching(Plain):
    def forward(self, inputs: Tensor) -> Any:
        rows = inputs.flatten(1)
        return self.second(self.first(rows) if rows.sum() > 0 else rows)


class Dropping(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(functional.dropout(self.first(inputs.flatten(1)), 0.5, self.training))


class Transposed(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(self.first(inputs.flatten(1, 2)))


class Turned(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(self.first(inputs.transpose(1, -1).flatten(1)))


class Two(Plain):
    def forward(self, inputs: Tensor, others: Tensor) -> Any:
        return self.second(self.first(inputs.flatten(1)))


class Tuple(Plain):
    def forward(self, inputs: Tensor) -> Any:
        return self.second(self.first(inputs.flatten(1))), inputs


class Sequences(nn.Sequential):
    """Linear layers of each step of a sequence, whose steps are then flattened."""

    def forward(self, inputs: Tensor) -> Any:
        return self[1](self[0](inputs).flatten(1))


class Precise(Plain):
    """Computes in float32 under autocast, too."""

    def forward(self, inputs: Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.second(self.first(inputs.flatten(1)))


class Measured(Plain):
    """Has other outputs without gradients."""

    def forward(self, inputs: Tensor) -> Any:
        outputs = self.second(self.first(inputs.flatten(1)))
        return outputs if torch.is_grad_enabled() else 2.0 * outputs


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Viewed(), Chain),
        (Sequences(nn.Linear(3, 4), nn.Linear(8, 6)), Mapped),
        (Precise(), Mapped),
        (Measured(), Mapped),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_chain_that_is_another_model_is_not_used(model: nn.Module, kind: type[Program]) -> None:
    examples = Examples(torch.randn(5, 2, 3), torch.randint(WIDE, (5,)))
    assert isinstance(make_program(model, task_of(model), examples), kind)


def hooked() -> nn.Module:
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    return model


def hooked_before() -> nn.Module:
    model = Plain()
    model.register_forward_pre_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "made",
    [
        *(Reordered, Again, Partly, Residual, Around, Branching, Dropping, Transposed, Turned, Two),
        Tuple,
        *(hooked, hooked_before),
        lambda: nn.LSTM(WIDE, WIDE),
    ],
)
def test_other_models_are_no_chain(made: Any) -> None:
    assert traced_layers(made()) is None
