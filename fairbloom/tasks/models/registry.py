"""Build models by name, and read their parameters and buffers."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean, join_names
from fairbloom.imports import imported, is_import_string

from ..classifiers import PREFIX
from ..generators import all_seeded
from . import networks
from .held import HeldTensors
from .networks import IMAGE, Shape
from .vision import AUTO, build_classifier

# The built-in models by name.
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "logistic": networks.logistic,
    "softmax": networks.softmax,
    "mlp": networks.mlp,
    "mlp-softmax": networks.mlp_softmax,
    "cnn": networks.cnn,
    "mnist-cnn": networks.mnist_cnn,
    "mnist-cnn-softmax": networks.mnist_cnn_softmax,
    "femnist-cnn": networks.femnist_cnn,
    "femnist-cnn-small": networks.femnist_cnn_small,
    "fashion-cnn": networks.fashion_cnn,
    "cifar-cnn": networks.cifar_cnn,
    "resnet18-gn": networks.resnet18_gn,
    "lstm": networks.lstm,
    "rnn": networks.rnn,
}


def build(
    name: str,
    shape: Shape,
    outputs: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    norm: str = AUTO,
) -> nn.Module:
    """Return a model for examples of a shape and dtype; its weights depend only on the seed.

    The global generators of PyTorch, NumPy and Python are seeded while it is made.

    `name` is a built-in model, a classifier of torchvision with layers of this `norm`, or an import
    string; a dtype of torch.int64 is a line of characters.
    """
    maker = MODELS.get(name) or partial(build_user_defined, name)
    if name.startswith(PREFIX):
        maker = partial(build_classifier, name, norm=norm)
    elif norm != AUTO:
        raise FairbloomError(
            f"norm = {norm!r} has no effect with model = {name!r}: it is for torchvision's models:"
            " leave it out"
        )
    with all_seeded(seed):
        model = maker(shape, outputs)
        _check_outputs(name, model, torch.zeros(1, *shape, dtype=dtype), outputs)
    check_arrays(model)
    return model


# User-defined ones --------------------------------------------------------------------------------


def build_user_defined(name: str, shape: Shape, outputs: int) -> nn.Module:
    """Return the model that an import string's class or function makes.

    It is called with the known arguments below that its signature has. Any other parameter
    needs a default.
    """
    maker = maker_of(name)
    known: dict[str, Any] = {
        **dict.fromkeys(("outputs", "out_features", "classes", "num_classes"), outputs),
        **dict.fromkeys(("inputs", "in_features"), math.prod(shape)),
        **dict.fromkeys(("channels", "in_channels") if len(shape) == IMAGE else (), shape[0]),
        "shape": shape,
    }
    arguments = {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in known:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty:
            raise FairbloomError(
                f"model = {name!r}: its parameter {parameter.name} has no default, and nothing says"
                f" what it should be: it may ask for {', '.join(known)}"
            )
    model = maker(**arguments)
    if not isinstance(model, nn.Module):
        raise FairbloomError(
            f"model = {name!r}: it returns a {type(model).__name__}; a model is a torch.nn.Module"
        )
    return model


def maker_of(name: str) -> Callable[..., Any]:
    """Return the class, or function, that an import string names."""
    if not is_import_string(name):
        raise FairbloomError(
            f"model = {name!r} is unknown: {did_you_mean(name, MODELS)}there are"
            f" {', '.join(MODELS)}, and yours as my_models:Net"
        )
    maker = imported("model", name)
    if isinstance(maker, nn.Module) or not callable(maker):
        raise FairbloomError(
            f"model = {name!r}: it is a finished {type(maker).__name__}; name the class, or a"
            " function that makes the model, so that the run's seed decides its initial weights"
        )
    return maker  # type: ignore[no-any-return]


def choose_output(model: nn.Module, outputs: object, output: str) -> Tensor:
    """Return the tensor of a model's outputs that a task uses.

    It is the one named `output`, or if that is "", the only one, or `logits`.
    """
    if isinstance(outputs, Tensor):
        return outputs
    when = "in training" if model.training else "in evaluation"
    if not isinstance(outputs, Mapping):
        raise ReportableError(
            f"the model, {type(model).__name__}, returns a {type(outputs).__name__} {when}: it must"
            " return one tensor, with a row for each example, or tensors by name; an auxiliary"
            " output or a hidden state must be left out"
        )
    tensors = {str(name): each for name, each in outputs.items() if isinstance(each, Tensor)}
    name = output or "logits"
    if not output and len(tensors) == 1:
        (name,) = tensors
    if name not in tensors:
        returned = ", ".join(tensors) or "no tensor"
        problem = "the task does not say which of them are its outputs"
        if output:
            problem = f"the task asks for {name!r}"
        raise ReportableError(
            f"the model, {type(model).__name__}, returns {returned} {when}, and {problem}: name one"
            " by Task(output=...)"
        )
    return tensors[name]


# Requirements of all models -----------------------------------------------------------------------


@torch.no_grad()
def _check_outputs(name: str, model: nn.Module, example: Tensor, outputs: int) -> None:
    """Raise FairbloomError if a model does not map one example to a row of outputs.

    The call also initialises lazy modules; other buffers are then as before.
    """
    remedy = "its parameters outputs, inputs, channels and shape say it"
    if name in MODELS:
        remedy = "choose another model"
    held = HeldTensors(model)
    try:
        answer = model.eval()(example)
    except Exception as error:  # a user's model may raise anything
        why = f"({type(error).__name__}: {' '.join(str(error).split())})"
        without = _find_batch_norm(model, example)
        if without:
            raise FairbloomError(
                f"model = {name!r}: it takes two examples, but not one {why}: its BatchNorm"
                f" ({join_names(without)}) has no running statistics, so an output depends on the"
                " other examples of its batch: leave out track_running_stats=False, or take"
                " GroupNorm or LayerNorm"
            ) from error
        raise FairbloomError(
            f"model = {name!r}: it cannot take an example of this task, a tensor of shape"
            f" {tuple(example.shape)} and dtype {example.dtype} {why}: {remedy}"
        ) from error
    try:
        chosen = choose_output(model, answer, "")
    except ReportableError:
        chosen = None
    if chosen is None or chosen.shape != (1, outputs):
        got = f"a {type(answer).__name__}"
        if chosen is not None:
            got = f"a tensor of shape {tuple(chosen.shape)}"
        raise FairbloomError(
            f"model = {name!r}: for one example, of shape {tuple(example.shape)}, it returns {got},"
            f" and this task needs a tensor of shape {(1, outputs)}, or tensors by name with logits"
            f" of that shape: {remedy}"
        )
    held.restore()
    model.train()


def _find_batch_norm(model: nn.Module, example: Tensor) -> list[str]:
    """Return the modules of BatchNorm without statistics if two examples work where one fails."""
    without = [
        path
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is None
    ]
    if without:
        try:
            model(torch.cat([example, example]))
        except Exception:  # the error of the single example says more
            return []
    return without


def check_arrays(model: nn.Module) -> None:
    """Raise FairbloomError if a part of a model's state cannot be sent as an array."""
    floats = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise FairbloomError(
                f"the model's state {name!r} is a {type(value).__name__}; all of a model's state"
                " must be tensors"
            )
        if is_lazy(value):
            raise FairbloomError(
                f"the model's parameter {name!r} has no shape yet: its task must call a lazy module"
                " once, on an example"
            )
        if _overlaps(value):
            raise FairbloomError(
                f"the model's array {name!r} has entries that share their memory, as after"
                " .expand(), so a received model cannot be written into it: keep .clone() of it"
            )
        if value.is_complex() or (value.is_floating_point() and value.dtype not in floats):
            raise FairbloomError(
                f"the model's array {name!r} has dtype {value.dtype}, which cannot be sent: keep"
                " weights in float32, float16, bfloat16 or float64"
            )


@torch.no_grad()
def _overlaps(value: Tensor) -> bool:
    """Return whether entries of a tensor share memory, so that it cannot be written to."""
    if value.is_contiguous():
        return False
    try:
        value.copy_(value.clone())
    except RuntimeError:
        return True
    return False


def sendable(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's state for sending and averaging: bfloat16, unknown to NumPy, as float32."""
    return {
        name: each.float() if each.dtype == torch.bfloat16 else each for name, each in state.items()
    }


def arrays_of(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return a model's state as NumPy arrays; they share its memory if that is the processor's."""
    here = on_processor(sendable(state))
    return {name: tensor.numpy() for name, tensor in here.items()}


def on_processor(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state in the processor's memory; from CUDA by one pinned copy for each dtype."""
    tensors = {name: tensor.detach() for name, tensor in state.items()}
    for kind in {
        (tensor.device, tensor.dtype) for tensor in tensors.values() if tensor.device.type == "cuda"
    }:
        names = [name for name, tensor in tensors.items() if (tensor.device, tensor.dtype) == kind]
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        pinned = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat)
        for name, part in zip(
            names, torch.split(pinned, [tensors[name].numel() for name in names]), strict=True
        ):
            tensors[name] = part.view(tensors[name].shape)
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def float_buffers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of buffers that are averaged outside the update: BatchNorm's statistics."""
    stored = model.state_dict()
    return tuple(
        name
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if buffer.is_floating_point() and name in stored
    )


def shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return second and further names of shared parameters, each with the first name."""
    first: dict[nn.Parameter, str] = {}
    return {
        name: first[value]
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, nn.Parameter) and first.setdefault(value, name) != name
    }


def frozen_parameters(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that are not trained: their requires_grad is False."""
    arrays = model.state_dict(keep_vars=True).items()
    parameters = [(name, value) for name, value in arrays if isinstance(value, nn.Parameter)]
    return tuple(name for name, value in parameters if not value.requires_grad)
