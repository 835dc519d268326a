"""The rows of an account: gradients and losses row by row, and the split into two parts.

All is in float64 on the CPU, and no row has a part in what another one adds. A model is a chain of
linear layers and activations: the norm of a row's gradient and its part of the sum follow from the
layers' inputs and the slopes of their outputs.
"""

import copy
import inspect
import math
from collections.abc import Iterable
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.errors import ReportableError
from fairbloom.protocol.accounts import CLIP as CLIP, largest_loss
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tasks.models import shared_parameters
from fairbloom.tasks.partition import Parts, splits_of
from fairbloom.tasks.targets import Target
from fairbloom.tasks.task import AnyExamples

from ..chain import ELEMENTWISE

# The layers of a model that is trained by an account. A probe of other layers would prove nothing.
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.Dropout, *ELEMENTWISE)

REMEDY = "and a privacy account trains no such model: set model = logistic or mlp"


def check_model(model: nn.Module, task: Task) -> int:
    """Return the number of classes that a model predicts.

    Raise ReportableError unless the model and its loss are on the closed list.
    """
    for layer in layers_of(model):
        flat = type(layer) is not nn.Flatten or (layer.start_dim, layer.end_dim) == (1, -1)
        if type(layer) not in LAYERS or has_hooks(layer) or not flat:
            raise ReportableError(f"the model has a layer {type(layer).__name__}, {REMEDY}")
    if shared_parameters(model):
        raise ReportableError(f"several names of the model are one parameter, {REMEDY}")
    if not is_cross_entropy(task):
        raise ReportableError(
            "the task's loss is not the softmax cross-entropy of classes, and a privacy account"
            " bounds no other one: choose a target of classes"
        )
    classes = task.classes or len(task.class_names)
    if not classes:
        raise ReportableError("the task does not say how many classes it has (Task.classes)")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ReportableError("the model has no parameter to train: all are frozen")
    return classes


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a chain in their order; another model is a layer itself."""
    if type(model) is not nn.Sequential or has_hooks(model):
        return [model]
    return [layer for child in model for layer in layers_of(child)]


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module calls functions of others, which may mix rows."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks))


def is_cross_entropy(task: Task) -> bool:
    """Return whether a task's loss is the softmax cross-entropy of integer classes."""
    loss = inspect.unwrap(task.loss)
    if isinstance(loss, partial):
        return loss.func is cross_entropy and loss.keywords == {"reduction": "none"}
    target = getattr(loss, "__self__", None)
    return isinstance(target, Target) and bool(target.classes)


class Rows:
    """The rows of one split of a client, with a copy of its model in float64 on the CPU."""

    def __init__(self, model: nn.Module, examples: AnyExamples, classes: int) -> None:
        inputs, targets = examples[slice(0, None)]
        self.classes = classes
        self.bound = largest_loss(classes)
        self._inputs = cast(Tensor, inputs).cpu().double().flatten(1)  # see `all_rows`
        self._targets = targets.cpu()
        self._model = copy.deepcopy(model).cpu().double()
        self._layers = layers_of(self._model)
        for layer in self._layers:
            if hasattr(layer, "inplace"):
                setattr(layer, "inplace", False)  # noqa: B010 (the slopes of outputs are needed)
        self._trainable = [each for each in self._model.parameters() if each.requires_grad]
        self.width = sum(parameter.numel() for parameter in self._trainable)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._targets)

    @torch.no_grad()
    def load(self, parameters: Iterable[Tensor]) -> None:
        """Take over the trainable parameters of a model of the same kind, in its order."""
        for own, other in zip(self._trainable, parameters, strict=True):
            own.copy_(other)

    def clipped_sum(self, clip: float = CLIP) -> Tensor:
        """Return Σ g_i min(1, C/‖g_i‖) over the rows, flat, in the model's order.

        A row counts as 0 if its gradient's norm or its loss is not finite.
        """
        self._model.train()
        outputs = self._inputs
        linear = list[tuple[nn.Linear, Tensor, Tensor]]()
        for layer in self._layers:
            before = outputs
            outputs = layer(before)
            if outputs.requires_grad and isinstance(layer, nn.Linear):
                linear.append((layer, before.detach(), outputs))
        losses = cross_entropy(outputs, self._targets, reduction="none")
        slopes = torch.autograd.grad(losses.sum(), [outputs for _, _, outputs in linear])
        squares = torch.zeros(len(self), dtype=torch.float64)
        for (layer, before, _), slope in zip(linear, slopes, strict=True):
            if layer.weight.requires_grad:
                squares += slope.square().sum(1) * before.square().sum(1)
            if layer.bias is not None and layer.bias.requires_grad:
                squares += slope.square().sum(1)
        unusable = ~(squares.isfinite() & losses.detach().isfinite())
        norms = squares.sqrt().masked_fill(unusable, 0.0)
        factors = (clip / norms).clamp(max=1.0).masked_fill(unusable, 0.0)
        sums = list[Tensor]()
        for (layer, before, _), slope in zip(linear, slopes, strict=True):
            # before any product: 0 times infinity is NaN
            clipped = slope.masked_fill(unusable[:, None], 0.0) * factors[:, None]
            if layer.weight.requires_grad:
                used = before.masked_fill(unusable[:, None], 0.0)
                sums.append((clipped.T @ used).flatten())
            if layer.bias is not None and layer.bias.requires_grad:
                sums.append(clipped.sum(0))
        return torch.cat(sums)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Return the model's outputs in evaluation, shape (n, classes)."""
        return cast(Tensor, self._model.eval()(self._inputs))

    def losses(self) -> Tensor:
        """Return clip(loss, 0, B) of each row; a loss that is not finite counts as B."""
        losses = cross_entropy(self.outputs(), self._targets, reduction="none")
        return losses.nan_to_num(self.bound, self.bound, self.bound).clamp(0.0, self.bound)

    def test(self) -> tuple[int, float]:
        """Return the number of right rows, and Σ of losses, of a right row up to ln(classes).

        A right row gives its class the largest output, so a probability of at least 1/classes.
        """
        outputs = self.outputs()
        right = (outputs.argmax(1) == self._targets) & outputs.isfinite().all(1)
        losses = self.losses()
        most = torch.where(right, math.log(self.classes), self.bound)
        return int(right.sum()), float(losses.minimum(most).sum())


# The account's rows ------------------------------------------------------------------------------


def all_rows(splits: Splits) -> Examples:
    """Return a client's training, test and validation rows, in the order of its data."""
    parts = [each for each in (*splits, splits.validation) if isinstance(each, Examples)]
    inputs = parts[0].inputs
    rows = [each.rows for each in parts if each.rows is not None and each.inputs is inputs]
    if not isinstance(inputs, Tensor) or len(rows) < len(parts):
        raise ReportableError("a privacy account needs tables: set task = csv")
    return Examples(inputs, parts[0].targets, torch.unique(torch.cat(rows)))


def split_rows(splits: Splits, seed: int, test_share: float) -> Splits:
    """Return a client's rows, split anew by a permutation of their numbers.

    Neither classes nor units have a part in it, so that no row decides where another one is.
    """
    every = all_rows(splits)
    count = len(every)
    order = np.random.default_rng(seed).permutation(count)
    tests = min(max(1, round(test_share * count)), count - 1)
    trains = np.ones(count, bool)
    trains[order[:tests]] = False
    return split_at(every, trains)


def split_at(every: Examples, trains: NDArray[np.bool_]) -> Splits:
    """Return `all_rows`, each on the side of training or of tests."""
    rows = cast(Tensor, every.rows).cpu().numpy()
    return splits_of(
        cast(Tensor, every.inputs), every.targets, Parts(rows[trains], rows[~trains], rows[:0])
    )
