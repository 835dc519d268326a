"""The rows of an account: gradients and losses row by row, and the split into two parts.

All is in float64 on the CPU, and no row has a part in what another one adds.

A chain of linear layers and activations needs no gradient of a single row in memory: its norm and
its part of the sum follow from the layer's inputs and the slopes of its outputs. Other models of
the closed list `LAYERS` are computed by `torch.func.vmap` over single rows.
"""

import copy
import inspect
import math
from collections.abc import Iterable
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from fairbloom.errors import ReportableError
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tasks.models import shared_parameters
from fairbloom.tasks.partition import Parts, splits_of
from fairbloom.tasks.targets import Target
from fairbloom.tasks.task import AnyExamples

from ..chain import ELEMENTWISE, chain_layers

# The norm to which the gradient of a row is clipped.
CLIP = 1.0

# The largest loss of a row in a report, over the loss of guessing, ln(classes).
LOSS_BOUND = 1.5

# The layers of a model that is trained by an account. A probe of other layers would prove nothing.
LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Linear, nn.Flatten, nn.Dropout, *ELEMENTWISE),
    *(nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)

# Numbers of the gradients of single rows that are in memory at once: 64 MB.
NUMBERS_AT_ONCE = 2**23


def check_model(model: nn.Module, task: Task) -> int:
    """Return the number of classes that a model predicts.

    Raise ReportableError unless the model and its loss are on the closed list.
    """
    for module in model.modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        flat = type(module) is not nn.Flatten or (module.start_dim, module.end_dim) == (1, -1)
        if type(module) not in LAYERS or any(hooks) or not flat:
            raise ReportableError(
                f"the model has a layer {type(module).__name__}, and a privacy account trains only"
                " chains of linear and convolutional layers, activations, pooling, Dropout,"
                " LayerNorm and GroupNorm: set model = logistic, mlp or cnn"
            )
    if shared_parameters(model):
        raise ReportableError(
            "several names of the model are one parameter, and a privacy account trains no such"
            " model: set model = logistic, mlp or cnn"
        )
    if not is_cross_entropy(task):
        raise ReportableError(
            "the task's loss is not the softmax cross-entropy of classes, and a privacy account"
            " bounds no other one: choose a target of classes"
        )
    classes = task.classes or len(task.class_names)
    if not classes:
        raise ReportableError("the task does not say how many classes it has (Task.classes)")
    return classes


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
        self.bound = LOSS_BOUND * math.log(classes)
        self._inputs = cast(Tensor, inputs).cpu().double()  # see `all_rows`
        self._targets = targets.cpu()
        self._model = copy.deepcopy(model).cpu().double()
        for module in self._model.modules():
            if hasattr(module, "inplace"):
                setattr(module, "inplace", False)  # noqa: B010 (the slopes of outputs are needed)
        self._trainable = {
            name: each for name, each in self._model.named_parameters() if each.requires_grad
        }
        self.width = sum(parameter.numel() for parameter in self._trainable.values())
        layers = chain_layers(self._model) or []
        is_flat = self._inputs.dim() == 2 or (bool(layers) and type(layers[0]) is nn.Flatten)
        is_whole = len(self._trainable) == len([*self._model.parameters()])
        self._layers = layers if is_flat and is_whole else []
        if not self._trainable:
            raise ReportableError("the model has no parameter to train: all are frozen")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._targets)

    @torch.no_grad()
    def load(self, parameters: Iterable[Tensor]) -> None:
        """Take over the trainable parameters of a model of the same kind, in its order."""
        for own, other in zip(self._trainable.values(), parameters, strict=True):
            own.copy_(other)

    def clipped_sum(self, clip: float = CLIP) -> Tensor:
        """Return Σ g_i min(1, C/‖g_i‖) over the rows, flat, in the model's order.

        A row whose gradient norm or loss is not finite counts as 0.
        """
        self._model.train()
        return self._sum_of_chain(clip) if self._layers else self._sum_by_row(clip)

    def _sum_of_chain(self, clip: float) -> Tensor:
        outputs = self._inputs
        linear = list[tuple[nn.Linear, Tensor, Tensor]]()
        for layer in self._layers:
            before = outputs
            outputs = layer(before)
            if isinstance(layer, nn.Linear):
                linear.append((layer, before.detach(), outputs))
        losses = cross_entropy(outputs, self._targets, reduction="none")
        slopes = torch.autograd.grad(losses.sum(), [outputs for _, _, outputs in linear])
        squares = torch.zeros(len(self), dtype=torch.float64)
        for (layer, before, _), slope in zip(linear, slopes, strict=True):
            squares += slope.square().sum(1) * (before.square().sum(1) + (layer.bias is not None))
        unusable, factors = _factors(squares, losses.detach(), clip)
        sums = list[Tensor]()
        for (layer, before, _), slope in zip(linear, slopes, strict=True):
            # before any product: 0 times a number that is not finite is none
            clipped = slope.masked_fill(unusable, 0.0) * factors[:, None]
            sums.append((clipped.T @ before.masked_fill(unusable, 0.0)).flatten())
            if layer.bias is not None:
                sums.append(clipped.sum(0))
        return torch.cat(sums)

    def _sum_by_row(self, clip: float) -> Tensor:
        """Return the sum, in parts of a number of rows each."""
        total = torch.zeros(self.width, dtype=torch.float64)
        weights = {name: each.detach() for name, each in self._trainable.items()}

        def loss(weights: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self._model, weights, (row.unsqueeze(0),))
            return cross_entropy(outputs, target.unsqueeze(0))

        of_rows = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        size = max(1, NUMBERS_AT_ONCE // self.width)
        for rows, targets in zip(
            torch.split(self._inputs, size), torch.split(self._targets, size), strict=True
        ):
            gradients, losses = of_rows(weights, rows, targets)
            flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
            unusable, factors = _factors(flat.square().sum(1), losses, clip)
            total += factors @ flat.masked_fill(unusable, 0.0)
        return total

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Return the model's outputs in evaluation, shape (n, classes)."""
        self._model.eval()
        if self._layers:
            return cast(Tensor, self._model(self._inputs))
        by_row = vmap(lambda row: self._model(row.unsqueeze(0)).squeeze(0))
        size = max(1, NUMBERS_AT_ONCE // self._inputs[0].numel())
        return torch.cat([by_row(rows) for rows in torch.split(self._inputs, size)])

    def loss_sum(self) -> float:
        """Return Σ clip(loss, 0, B) over the rows; a loss that is not finite counts as B."""
        losses = cross_entropy(self.outputs(), self._targets, reduction="none")
        bounded = losses.nan_to_num(self.bound, self.bound, self.bound).clamp(0.0, self.bound)
        return float(bounded.sum())

    def count_correct(self) -> int:
        """Return the number of rows whose class has the largest output."""
        return int((self.outputs().argmax(1) == self._targets).sum())


def _factors(squares: Tensor, losses: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return which rows are unusable, shape (n, 1), and each row's min(1, C/‖g‖), shape (n,)."""
    unusable = ~(squares.isfinite() & losses.isfinite())
    norms = squares.sqrt().masked_fill(unusable, 0.0)
    return unusable.unsqueeze(1), (clip / norms).clamp(max=1.0).masked_fill(unusable, 0.0)


# The account's rows ------------------------------------------------------------------------------


def all_rows(splits: Splits) -> Examples:
    """Return a client's training, test and validation rows, in the order of its data."""
    parts = [each for each in (*splits, splits.validation) if each is not None]
    examples = [part for part in parts if isinstance(part, Examples)]
    inputs = [example.inputs for example in examples]
    if len(examples) < len(parts) or not all(isinstance(each, Tensor) for each in inputs):
        raise ReportableError("a privacy account needs examples with one tensor of inputs")
    rows = [example.rows for example in examples if example.rows is not None]
    if len(rows) == len(parts) and all(each is inputs[0] for each in inputs):
        return Examples(inputs[0], examples[0].targets, torch.unique(torch.cat(rows)))
    read = [example[slice(0, None)] for example in examples]
    return Examples(
        torch.cat([each for each, _ in read if isinstance(each, Tensor)]),
        torch.cat([targets for _, targets in read]),
    )


def split_rows(splits: Splits, seed: int, test_share: float) -> Splits:
    """Return a client's rows, split anew by a permutation of their numbers.

    Neither classes nor units have a part in it, so that no row decides where another one is.
    """
    every = all_rows(splits)
    count = len(every)
    order = np.random.default_rng(seed).permutation(count)
    tests = min(max(1, round(test_share * count)), count - 1)
    rows = np.arange(count) if every.rows is None else every.rows.cpu().numpy()
    return splits_of(
        cast(Tensor, every.inputs),
        every.targets,
        Parts(np.sort(rows[order[tests:]]), np.sort(rows[order[:tests]]), rows[:0]),
    )
