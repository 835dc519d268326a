"""torchvision's classifiers as models: their norm layers, grey images, and the sizes they take."""

import copy
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fairbloom.errors import FairbloomError, ReportableError, install_command, join_names

from ..classifiers import PREFIX, check_classifier
from .networks import IMAGE, Shape

# The values of the setting `norm`: the default, the network's own layers, and what replaces them.
AUTO = "auto"
OWN = "own"
GROUP = "group"

# The most groups of a GroupNorm.
MAX_GROUPS = 32

# The sides of square images that an error tries.
SIDES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299)

COLOURS = 3


def build_classifier(model: str, shape: Shape, outputs: int, norm: str) -> nn.Module:
    """Return a classifier of torchvision without weights of its own, for images of a shape.

    Parameters
    ----------
    model
        Its name, with torchvision: in front.
    shape
        (channels, height, width) with one channel or three; with one, the weights of the first
        convolution are summed over the colours.
    norm
        own, group or layer: what BatchNorm layers are, or are replaced by. group is GroupNorm with
        as many groups as divide the channels, up to MAX_GROUPS; layer is GroupNorm with one group.
        auto is group, if there is a BatchNorm.
    """
    check_classifier(model)
    if len(shape) != IMAGE or shape[0] not in (1, COLOURS):
        raise FairbloomError(
            f"model = {model!r} takes images of one or three channels, and an example of this task"
            f" has shape {shape}: choose another model"
        )
    options: dict[str, Any] = {"weights": None, "num_classes": outputs}
    if model.removeprefix(PREFIX) in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
        # Trained weights are for other means of colours, which exist only for three.
        options["transform_input"] = shape[0] == COLOURS
    network: nn.Module = _import_models(model).get_model(model.removeprefix(PREFIX), **options)
    if norm != OWN:
        replaced = _replace_batch_norm(network, one_group=norm == "layer")
        if not replaced and norm != AUTO:
            raise FairbloomError(
                f"norm = {norm!r} has no effect: {model} has no BatchNorm: leave it out"
            )
    if shape[0] != COLOURS:
        first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
        first.in_channels = 1
        first.weight = nn.Parameter(first.weight.detach().sum(dim=1, keepdim=True))
    _check_size(network, model, shape)
    return network


def _import_models(model: str) -> Any:
    """Return torchvision.models; raise ReportableError if it is missing or does not fit."""
    try:
        from torchvision import models  # imported late: it is an extra
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise ReportableError(
            f"model = {model!r} needs torchvision: {install_command('vision')}, with torchvision"
            " from the same index as PyTorch"
        ) from error
    except (RuntimeError, ImportError, OSError) as error:
        raise ReportableError(
            f"model = {model!r}: torchvision {version('torchvision')} does not fit PyTorch"
            f" {version('torch')} ({error}): install both again, of the same build and from one"
            " index"
        ) from error
    return models


def _replace_batch_norm(network: nn.Module, *, one_group: bool) -> bool:
    """Replace each BatchNorm by a GroupNorm of the same channels; return whether there is one."""
    found = []
    for module in network.modules():
        layers = module.named_children()
        found += [(module, name, child) for name, child in layers if isinstance(child, _BatchNorm)]
    for module, name, child in found:
        groups = 1 if one_group else count_groups(child.num_features)
        setattr(module, name, nn.GroupNorm(groups, child.num_features, eps=child.eps))
    return bool(found)


def count_groups(channels: int) -> int:
    """Return the largest divisor of a number of channels that is at most MAX_GROUPS."""
    return max(each for each in range(1, MAX_GROUPS + 1) if channels % each == 0)


def _check_size(network: nn.Module, model: str, shape: Shape) -> None:
    """Raise FairbloomError with sizes that the network can take, if it cannot take this one."""
    channels, *sides = shape
    if _takes(network, channels, *sides):
        return
    # Without any, a layer may have no form on the meta device: the trial step tells.
    possible = [f"{side}" for side in SIDES if _takes(network, channels, side, side)]
    if possible:
        raise FairbloomError(
            f"model = {model!r} cannot take images of {' × '.join(map(str, sides))} pixels, but of"
            f" {join_names(possible)} on a side: choose such a size, for your images by"
            " image-folder.size, or another model"
        )


@torch.no_grad()
def _takes(network: nn.Module, channels: int, *sides: int) -> bool:
    """Return whether a network can train and evaluate images of this size; nothing is computed."""
    tried = copy.deepcopy(network).to("meta")
    images = torch.empty(2, channels, *sides, device="meta")
    try:
        tried.train()(images)
        tried.eval()(images[:1])
    except Exception:  # a layer may raise anything
        return False
    return True
