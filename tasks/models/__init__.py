"""Models by name: built-in networks, user-defined ones, and those of torchvision."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import imported, is_import_string

from ..outputs import choose_output
from . import networks
from .networks import IMAGE, Shape

TORCHVISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""Arguments of these models of torchvision, so that they return one tensor in training too, and do not warn."""


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "logistic": networks.logistic,
    "softmax": networks.softmax,
    "mlp": networks.mlp,
    "mlp-softmax": networks.mlp_softmax,
    "cnn": networks.cnn,
    "mnist-cnn": networks.mnist_cnn,
    "femnist-cnn": networks.femnist_cnn,
    "lenet": networks.lenet,
    "cifar-cnn": networks.cifar_cnn,
    "resnet18-gn": networks.resnet18_gn,
    "lstm": networks.LSTM,
}
"""The built-in models by name."""


def build(name: str, shape: Shape, outputs: int, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a freshly initialised model for examples of a shape and dtype; the seed alone decides its weights.

    `name` is a built-in model, an import string, or one of torchvision's; a dtype of torch.int64 is a line of
    characters.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name in MODELS:
            model = MODELS[name](shape, outputs)
        elif is_import_string(name):
            model = build_user_defined(name, shape, outputs)
        else:
            model = from_torchvision(name, shape, outputs)
        _check_outputs(name, model, torch.zeros(1, *shape, dtype=dtype), outputs)
    check_arrays(model)
    return model


# User-defined ones ----------------------------------------------------------------------------------------------------


def build_user_defined(name: str, shape: Shape, outputs: int) -> nn.Module:
    """Return the model that an import string's class, or function, makes; it gets what its signature asks for.

    Parameters that nothing is known of need a default.
    """
    maker = maker_of(name)
    known: dict[str, Any] = {
        **dict.fromkeys(("outputs", "out_features", "classes", "num_classes"), outputs),
        **dict.fromkeys(("inputs", "in_features"), math.prod(shape)),
        **dict.fromkeys(("channels", "in_channels") if len(shape) == IMAGE else (), shape[0]),
        "shape": shape,
    }
    asked = [
        each
        for each in inspect.signature(maker).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    for each in asked:
        if each.name not in known and each.default is each.empty:
            raise FairbloomError(
                f"model = {name!r}: its parameter {each.name} has no default, and nothing says what it should be: it "
                f"may ask for {', '.join(known)}"
            )
    model = maker(**{each.name: known[each.name] for each in asked if each.name in known})
    if not isinstance(model, nn.Module):
        raise FairbloomError(f"model = {name!r}: it returns a {type(model).__name__}; a model is a torch.nn.Module")
    return model


def maker_of(name: str) -> Callable[..., Any]:
    """Return the class, or function, that an import string names."""
    maker = imported("model", name)
    if isinstance(maker, nn.Module) or not callable(maker):
        raise FairbloomError(
            f"model = {name!r}: it is a finished {type(maker).__name__}; name the class, or a function that makes the "
            "model, so that the run's seed decides its initial weights"
        )
    return maker  # type: ignore[no-any-return]


# torchvision's --------------------------------------------------------------------------------------------------------


def from_torchvision(name: str, shape: Shape, outputs: int) -> nn.Module:
    """Return one of torchvision's models of images, untrained, for this number of outputs and the images' channels."""
    check_known(name, tuple(MODELS))
    if len(shape) != IMAGE:
        raise FairbloomError(
            f"model = {name!r}: torchvision's models take images, (channels, height, width), and an example of this "
            f"task has shape {shape}: logistic and mlp take it"
        )
    arguments = {"weights": None, "num_classes": outputs, **TORCHVISION_ARGUMENTS.get(name, {})}
    model: nn.Module = import_module("torchvision.models").get_model(name, **arguments)
    set_channels(model, shape[0])
    return model


def set_channels(model: nn.Module, channels: int) -> None:
    """Replace a model's first convolution by one for this number of channels, if it has another."""
    for name, old in model.named_modules():
        if isinstance(old, nn.Conv2d):
            if old.in_channels != channels:
                parent, _, child = name.rpartition(".")
                sizes: tuple[Any, Any, Any, Any] = (old.kernel_size, old.stride, old.padding, old.dilation)
                rest = (old.groups, old.bias is not None, old.padding_mode)
                setattr(model.get_submodule(parent), child, nn.Conv2d(channels, old.out_channels, *sizes, *rest))
            return


def check_known(name: str, ours: tuple[str, ...]) -> None:
    """Raise FairbloomError when torchvision has no model of images of this name; `ours` would do in its place."""
    theirs: list[str] = []
    cause: Exception | None = None
    hint = "one of torchvision's, as resnet18"
    try:
        with warnings.catch_warnings(action="ignore"):  # that it cannot read image files, which nobody needs here
            models = import_module("torchvision.models")
        theirs = models.list_models(module=models)
    except ImportError as error:
        cause, hint = error, "torchvision's models need torchvision, which is not installed: pip install torchvision"
    except RuntimeError as error:
        cause, hint = error, f"torchvision, installed here, is made for another torch than {torch.__version__}: {error}"
    if name in theirs:
        return
    meant = did_you_mean(name, [*ours, *theirs])
    raise FairbloomError(
        f"model = {name!r} is unknown: {meant}there are {', '.join(ours)}; your own, as my_models:Net; {hint}"
    ) from cause


# What every model must be ---------------------------------------------------------------------------------------------


@torch.no_grad()
def _check_outputs(name: str, model: nn.Module, example: Tensor, outputs: int) -> None:
    """Raise FairbloomError when a model does not map one example to a row of outputs; lazy modules are made by this."""
    try:
        answer = model.eval()(example)
    except Exception as error:  # whatever a user's model raises
        raise FairbloomError(
            f"model = {name!r}: it cannot take an example of this task, a tensor of shape {tuple(example.shape)} and "
            f"dtype {example.dtype} ({type(error).__name__}: {' '.join(str(error).split())}): "
            f"{_explain_batch_norm(model) or _remedy(name)}"
        ) from error
    try:
        chosen = choose_output(model, answer, "")
    except ReportableError:
        chosen = None
    if chosen is None or chosen.shape != (1, outputs):
        got = f"a {type(answer).__name__}" if chosen is None else f"a tensor of shape {tuple(chosen.shape)}"
        raise FairbloomError(
            f"model = {name!r}: for one example, of shape {tuple(example.shape)}, it returns {got}, and this task "
            f"needs a tensor of shape {(1, outputs)}, or tensors by name with logits of that shape: {_remedy(name)}"
        )
    model.train()


def _explain_batch_norm(model: nn.Module) -> str:
    """Return the remedy where a BatchNorm has no running statistics and takes no single example, "" elsewhere."""
    kinds = [
        type(each).__name__ for each in model.modules() if isinstance(each, _BatchNorm) and each.running_mean is None
    ]
    if not kinds:
        return ""
    return (
        f"its {kinds[0]} keeps no running statistics (track_running_stats=False), so it takes no example by itself: "
        "let it keep them, or put GroupNorm or LayerNorm in its place"
    )


def _remedy(name: str) -> str:
    if name in MODELS:
        return "choose another model"
    if not is_import_string(name):
        return "it takes images of another size; choose another model"
    return (
        "its parameters outputs, inputs, channels and shape, where it has them, are the number of outputs, the "
        "numbers in an example, its channels and its shape"
    )


def check_arrays(model: nn.Module) -> None:
    """Raise FairbloomError when a model's state holds what cannot be sent as arrays."""
    floats = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise FairbloomError(
                f"the model's state {name!r} is a {type(value).__name__}; all of a model's state must be tensors"
            )
        if is_lazy(value):
            raise FairbloomError(
                f"the model's parameter {name!r} has no shape yet: its task must call a lazy module once, on an example"
            )
        if _overlaps(value):
            raise FairbloomError(
                f"the model's array {name!r} has entries that share their memory, as those of .expand() do, so a "
                "received model cannot be written into it: keep .clone() of it"
            )
        if value.is_complex() or (value.is_floating_point() and value.dtype not in floats):
            raise FairbloomError(
                f"the model's array {name!r} has dtype {value.dtype}, which cannot be sent: keep weights in float32, "
                "float16, bfloat16 or float64"
            )


@torch.no_grad()
def _overlaps(value: Tensor) -> bool:
    """Return whether a tensor cannot be written to, since several of its entries are one."""
    if value.is_contiguous():
        return False
    try:
        value.copy_(value.clone())
    except RuntimeError:
        return True
    return False


def sendable(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's state as it is sent and averaged: bfloat16, which NumPy lacks, as float32, without loss."""
    return {name: each.float() if each.dtype == torch.bfloat16 else each for name, each in state.items()}


def arrays_of(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return a model's state as NumPy arrays, which share its memory where that is the processor's and they can."""
    return {name: tensor.numpy() for name, tensor in on_processor(sendable(state)).items()}


def on_processor(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model in the memory of the processor: from a CUDA device by one pinned copy for each dtype."""
    found = {name: tensor.detach() for name, tensor in state.items()}
    for kind in {(each.device, each.dtype) for each in found.values() if each.device.type == "cuda"}:
        names = [name for name, each in found.items() if (each.device, each.dtype) == kind]
        flat = torch.cat([found[name].reshape(-1) for name in names])
        pinned = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat)
        parts = torch.split(pinned, [found[name].numel() for name in names])
        found |= {name: part.view(found[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: tensor.cpu() for name, tensor in found.items()}


def float_buffers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that are averaged and are no part of an update: BatchNorm's statistics."""
    stored, named = model.state_dict(), model.named_buffers(remove_duplicate=False)
    return tuple(name for name, buffer in named if buffer.is_floating_point() and name in stored)


def shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that a model has under several names, each with the first of them."""
    first: dict[nn.Parameter, str] = {}
    stored = model.state_dict(keep_vars=True)
    named = {name: value for name, value in stored.items() if isinstance(value, nn.Parameter)}
    return {name: first[value] for name, value in named.items() if first.setdefault(value, name) != name}


def frozen_parameters(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that are never trained: their requires_grad is False."""
    stored = model.state_dict(keep_vars=True)
    return tuple(name for name, value in stored.items() if isinstance(value, nn.Parameter) and not value.requires_grad)
