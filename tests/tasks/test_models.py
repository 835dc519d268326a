"""Models by name, and the requirements of all models."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairbloom.errors import FairbloomError
from fairbloom.tasks import TASKS, Setup
from fairbloom.tasks.models import (
    MODELS,
    arrays_of,
    build,
    check_arrays,
    float_buffers,
    shared_parameters,
)

IMAGE = (1, 8, 8)
HERE = __name__


def built(name: str, shape: tuple[int, ...] = IMAGE, outputs: int = 10, seed: int = 0) -> nn.Module:
    """Build a model that a class or function of this file makes."""
    return build(f"{HERE}:{name}", shape, outputs, seed)


# The seed -----------------------------------------------------------------------------------------


class Lazy(nn.Module):
    """What makes its weights when it first meets an example."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*MODELS, f"{HERE}:Lazy"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    shape, dtype = ((16,), torch.int64) if name in ("lstm", "rnn") else ((1, 16, 16), torch.float32)
    once, other = (build(name, shape, 10, seed, dtype) for seed in (5, 6))
    torch.rand(17)
    before = torch.get_rng_state()
    again = build(name, shape, 10, 5, dtype)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(once.state_dict()[key], again.state_dict()[key]) for key in once.state_dict()
    )
    for (key, weights), others in zip(once.named_parameters(), other.parameters(), strict=True):
        # norms begin with ones, say
        assert not torch.equal(weights, others) or len(weights.unique()) == 1, key


def test_weights_are_those_that_pytorch_draws_after_its_own_seed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = nn.Linear(64, 10)
    state = build("logistic", IMAGE, 10, 7).state_dict()
    assert torch.equal(state["1.weight"], expected.weight)
    assert torch.equal(state["1.bias"], expected.bias)


def test_a_lazy_model_has_all_its_weights_when_it_is_built() -> None:
    model = built("Lazy")
    check_arrays(model)
    assert all(module.training for module in model.modules())
    assert model.state_dict()["layers.2.running_mean"].tolist() == [0.0] * 5


# A user's own -------------------------------------------------------------------------------------


class Told(nn.Module):
    """A model that fits, and keeps its arguments."""

    def __init__(self, shape: tuple[int, ...], outputs: int, **given: Any) -> None:
        super().__init__()
        self.given = given
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def by_words(
    outputs: int, classes: int, num_classes: int, out_features: int, *, shape: tuple[int, ...]
) -> nn.Module:
    return Told(shape, outputs, classes=classes, num_classes=num_classes, out_features=out_features)


def by_sizes(
    inputs: int, in_features: int, channels: int, in_channels: int, shape: Any, outputs: int
) -> nn.Module:
    return Told(
        shape,
        outputs,
        inputs=inputs,
        in_features=in_features,
        channels=channels,
        in_channels=in_channels,
    )


def channels_of(shape: tuple[int, ...], outputs: int, channels: int = 7) -> nn.Module:
    return Told(shape, outputs, channels=channels)


def with_defaults(
    num_classes: int = 1000, width: float = 0.5, channels: int = 3, *args: Any, **more: Any
) -> nn.Module:
    return Told(IMAGE, num_classes, width=width, channels=channels, args=args, more=more)


def told_nothing() -> nn.Module:
    return Told(IMAGE, 10)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("by_words", {"classes": 10, "num_classes": 10, "out_features": 10}),
        ("by_sizes", {"inputs": 64, "in_features": 64, "channels": 1, "in_channels": 1}),
        ("with_defaults", {"width": 0.5, "channels": 1, "args": (), "more": {}}),
        ("told_nothing", {}),
        ("Told", {}),
    ],
)
def test_a_users_function_is_told_what_its_signature_asks_for(
    name: str, expected: dict[str, Any]
) -> None:
    assert built(name).given == expected


def test_a_vector_has_no_channels() -> None:
    assert built("channels_of", (13,)).given == {"channels": 7}  # a vector has no channels


def ambitious(depth: int, outputs: int) -> nn.Module:
    return told_nothing()


def textual(outputs: int) -> str:
    return "a model"


finished = told_nothing()
NUMBER = 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ambitious", "its parameter depth has no default"),
        ("textual", "it returns a str"),
        ("finished", "a finished Told"),
        ("NUMBER", "a finished int"),
        ("missing", "has no missing"),
    ],
)
def test_what_makes_no_model_is_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=f"model = '{HERE}:{name}': .*{words}"):
        built(name)


def test_a_parameter_of_images_is_refused_for_vectors() -> None:
    with pytest.raises(FairbloomError, match=r"by_sizes': its parameter channels"):
        built("by_sizes", (13,))


def fixed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def flattened() -> nn.Module:
    return nn.Flatten(0)


class Pair(Told):
    def forward(self, x: Tensor) -> Any:
        return self.layers(x), x


def in_double(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)).double()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fixed", r"\(1, 1, 8, 8\).* \(1, 5\).* \(1, 10\)"),
        ("flattened", r"\(64,\)"),
        ("Pair", r"a tuple, .*\(1, 10\)"),
        ("in_double", r"\(1, 1, 8, 8\) and dtype torch.float32 \(RuntimeError"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_both_shapes(name: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=rf"(?s)model = '{HERE}:{name}': .*{words}"):
        built(name)


# The settings' check ------------------------------------------------------------------------------


class BatchAlone(nn.Sequential):
    """A model that takes every batch but a single example."""

    def __init__(self, outputs: int, inputs: int) -> None:
        norm = nn.BatchNorm1d(16, track_running_stats=False)
        super().__init__(nn.Flatten(), nn.Linear(inputs, 16), norm, nn.Linear(16, outputs))


class OfNeither(BatchAlone):
    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__(outputs, inputs + 1)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "BatchAlone",
            r"it takes two examples, but not one .*: its BatchNorm \(2\) has no running",
        ),
        ("OfNeither", "cannot take an example of this task.*its parameters outputs"),
    ],
)
def test_batch_norm_without_statistics_is_named(model: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        build(f"{__name__}:{model}", (1, 8, 8), 10, 0)


class Counting(nn.Module):
    """A model that counts its calls in a buffer, and its examples in an attribute."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.LazyLinear(outputs)
        self.norm = nn.LazyBatchNorm1d()
        self.register_buffer("calls", torch.tensor(0))
        self.examples = torch.tensor(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.examples += len(x)
        outputs: Tensor = self.norm(self.last(x.flatten(1)))
        return outputs


def test_the_trial_of_a_model_leaves_its_buffers_as_they_were() -> None:
    model: Any = build(f"{__name__}:Counting", (1, 8, 8), 10, 0)
    assert (int(model.calls), int(model.examples)) == (0, 0)
    assert model.norm.running_mean.shape == (10,)
    model(torch.zeros(3, 1, 8, 8))
    assert (int(model.calls), int(model.examples)) == (1, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{HERE}:finished", "finished"),
        (f"{HERE}:missing", "missing"),
        ("logstic", "logistic"),
        ("softmax", "task digits has logistic, mlp, cnn"),
    ],
)
def test_the_settings_check_a_models_name(name: str, words: str) -> None:
    TASKS["digits"].check(Setup(model=f"{HERE}:Told", partition="iid"))
    with pytest.raises(FairbloomError, match=f"model = '{name}'.*{words}"):
        TASKS["digits"].check(Setup(model=name, partition="iid"))


# What every model must be -------------------------------------------------------------------------


class Noting(nn.Linear):
    def get_extra_state(self) -> str:
        return "a note"

    def set_extra_state(self, state: str) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 2).to(torch.float8_e5m2), "'weight' has dtype torch.float8_e5m2"),
        (nn.Linear(2, 2, dtype=torch.complex64), "'weight' has dtype torch.complex64"),
        (Noting(2, 2), "'_extra_state' is a str"),
        (nn.Sequential(nn.LazyLinear(2)), "'0.weight' has no shape"),
        (
            nn.ParameterDict({"weight": torch.zeros(2, 1).expand(2, 2)}),
            "'weight' has entries that share",
        ),
    ],
)
def test_a_state_that_cannot_be_sent_is_refused_by_its_name(model: nn.Module, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        check_arrays(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_usual_states_can_be_sent(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(dtype)
    model.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    check_arrays(model)
    arrays = arrays_of(model.state_dict())
    expected = np.float32 if dtype == torch.bfloat16 else arrays["0.weight"].dtype
    assert arrays["0.weight"].dtype == arrays["1.running_var"].dtype == expected
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_stored_float_buffers_are_found_under_all_their_names() -> None:
    norm = nn.BatchNorm1d(2)
    model = nn.ModuleDict(
        {"one": norm, "same": norm, "free": nn.BatchNorm1d(2, track_running_stats=False)}
    )
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    model.register_buffer("kept", torch.zeros(2))
    model.register_buffer("count", torch.tensor(3))
    names = {f"{module}.running_{what}" for module in ("one", "same") for what in ("mean", "var")}
    assert set(float_buffers(model)) == {*names, "kept"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.again = self.middle


def test_shared_parameters_are_found_with_their_first_name() -> None:
    assert shared_parameters(Tied()) == {
        "last.weight": "first.weight",
        "again.weight": "middle.weight",
        "again.bias": "middle.bias",
    }
    assert (
        shared_parameters(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))) == {}
    )
    one = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    other.load_state_dict(one.state_dict())
    assert shared_parameters(nn.Sequential(one, other)) == {}
