"""The networks of the papers: their shapes and numbers of parameters, and what each of them
does."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.tasks.models import MODELS, build
from fairbloom.tasks.models.networks import Shape
from tests.tables.helpers import refused_with

MNIST = (1, 28, 28)
COLOURS = (3, 32, 32)
LINE = (80,)

PARAMETERS: dict[tuple[str, Shape, int], int] = {
    ("logistic", (99,), 2): 200,
    ("softmax", MNIST, 3): 2_355,
    ("mlp", MNIST, 10): 199_210,
    ("mlp", COLOURS, 10): 656_810,
    ("mlp-softmax", COLOURS, 10): 656_810,
    ("cnn", MNIST, 10): 20_490,
    ("mnist-cnn", MNIST, 10): 1_663_370,
    ("mnist-cnn-softmax", MNIST, 10): 582_026,
    ("femnist-cnn", MNIST, 62): 6_603_710,
    ("femnist-cnn-small", MNIST, 62): 1_206_590,
    ("fashion-cnn", MNIST, 10): 21_840,
    ("cifar-cnn", COLOURS, 10): 797_962,
    ("resnet18-gn", COLOURS, 10): 11_173_962,
    ("lstm", LINE, 80): 819_920,
    ("rnn", LINE, 10_004): 4_053_428,
}

# Pixels each way of the smallest image that a model takes.
SMALLEST = {
    "cnn": 4,
    "mnist-cnn": 4,
    "mnist-cnn-softmax": 16,
    "femnist-cnn": 4,
    "femnist-cnn-small": 6,
    "fashion-cnn": 16,
    "cifar-cnn": 16,
    "resnet18-gn": 8,
}


def made(name: str, shape: Shape, outputs: int, seed: int = 0) -> nn.Module:
    return build(
        name, shape, outputs, seed, torch.int64 if name in ("lstm", "rnn") else torch.float32
    )


# Sizes --------------------------------------------------------------------------------------------


def test_the_number_of_parameters_of_every_model_is_known() -> None:
    assert {name for name, *_ in PARAMETERS} == set(MODELS)


@pytest.mark.parametrize(("model", "expected"), PARAMETERS.items())
def test_models_have_the_papers_numbers_of_parameters(
    model: tuple[str, Shape, int], expected: int
) -> None:
    assert sum(parameter.numel() for parameter in made(*model).parameters()) == expected
    assert f"{expected:,}" in str(MODELS[model[0]].__doc__)


@pytest.mark.parametrize(("name", "least"), SMALLEST.items())
def test_models_of_images_take_them_from_the_smallest_on(name: str, least: int) -> None:
    for shape in ((2, 33, 30), (1, least, least)):
        assert made(name, shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
    for shape in ((1, least - 1, 28), (1, 28, least - 1), (13,)):
        with refused_with(f"model = '{name}'", f"{least}×{least}", f"{shape}"):
            made(name, shape, 3)


# FedFV's double softmax ---------------------------------------------------------------------------


def test_the_softmax_model_starts_without_bias_and_uniform() -> None:
    weight, bias = made("softmax", MNIST, 3).parameters()
    assert not bias.any()
    assert 0.99 / 28 < weight.abs().max() <= 1 / 28
    assert weight.std().item() == pytest.approx(1 / 28 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(("name", "usual"), [("softmax", "logistic"), ("mlp-softmax", "mlp")])
def test_outputs_are_probabilities_for_the_softmax_loss(name: str, usual: str) -> None:
    plain = made(usual, MNIST, 3)
    model = made(name, MNIST, 3)
    plain.load_state_dict(model.state_dict())
    images = torch.randn(5, *MNIST)
    labels = torch.tensor([0, 1, 2, 0, 1])
    outputs = model(images)
    torch.testing.assert_close(outputs, plain(images).softmax(1))
    torch.testing.assert_close(
        cross_entropy(outputs, labels),
        -outputs.exp().div(outputs.exp().sum(1, keepdim=True)).log()[range(5), labels].mean(),
    )


# ResNet-18 ----------------------------------------------------------------------------------------


def test_the_resnet_has_two_groups_and_keeps_small_images_large() -> None:
    model = made("resnet18-gn", COLOURS, 10)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert [norm.num_groups for norm in norms] == [2] * 20
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 20
    assert not list(model.buffers())
    seen: list[tuple[int, ...]] = []
    for module in model.children():
        module.register_forward_hook(
            lambda _, inputs, outputs: seen.append(tuple(outputs.shape[1:]))
        )
    model(torch.zeros(1, *COLOURS))
    sizes = [(64, 32, 32)] * 5 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2 + [(512, 4, 4)] * 2
    assert seen == [*sizes, (512, 1, 1), (512,), (10,)]


# Text ---------------------------------------------------------------------------------------------


def test_the_lstm_reads_lines_of_any_length_in_order() -> None:
    model = made("lstm", LINE, 80)
    one, other, turned = model(torch.tensor([[1, 2, 3], [4, 2, 3], [3, 2, 1]]))
    assert not torch.equal(one, other)
    assert not torch.equal(one, turned)
    torch.testing.assert_close(model(torch.tensor([[4, 2, 3]]))[0], other)
    embedding, lstm, _, last = model.children()
    assert embedding.weight.shape == (80, 8)
    assert (lstm.input_size, lstm.hidden_size, lstm.num_layers) == (8, 256, 2)
    assert last.weight.shape == (80, 256)


@pytest.mark.parametrize(("name", "dtype"), [("lstm", torch.float32), ("mlp", torch.int64)])
def test_inputs_of_another_dtype_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(FairbloomError, match=f"model = '{name}'.* dtype {dtype}"):
        build(name, (13,), 10, 0, dtype)
