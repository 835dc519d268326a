"""Programs that compute one model with the parameters of many clients at once.

A client's parameters are a row of a matrix, its trainable arrays one after the other. A chain of
linear layers and activations is computed by batched products; any other model by torch.func.vmap,
if that gives the same numbers as the model by itself. For all other models, UnstackableError gives
the reason, and clients are computed one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fairbloom.client.chain import chain_layers, traced_layers
from fairbloom.client.device import autocast
from fairbloom.client.dropout import Drop, make_draws, record_drops, with_masks
from fairbloom.client.training import gradients_of, outputs_of, seeded
from fairbloom.client.work import Kind, LocalWork, descend, fields_of, step_fields
from fairbloom.errors import place_of
from fairbloom.tasks import Task
from fairbloom.tasks.collated import CollatedExamples
from fairbloom.tasks.inputs import (
    Inputs,
    arguments_of,
    combine_inputs,
    device_of,
    map_inputs,
    tensors_of,
)
from fairbloom.tasks.models import HeldTensors, choose_output
from fairbloom.tasks.task import AnyExamples, Examples, is_of_model

from .optimizers import RowOptimizer


class UnstackableError(Exception):
    """A model that cannot be computed for many clients at once, with the reason as its message."""


# The fields of local work with which a gradient can be added to the weights as it is computed.
ADDED_AT_ONCE = fields_of(Kind.CHAIN)

# (outputs, shape (k, b, …)) → the loss of each example, shape (k, b), and the sum of the clients'
# objectives.
Summed = Callable[[Tensor], tuple[Tensor, Tensor]]


class StepArrays(NamedTuple):
    """The arrays that a step of k clients changes, in the model's order, each of shape (k, *shape).

    The anchor of a pull has one row for all clients, or one for each. Velocity, anchor and the
    shift of gradients are empty if they are not used, and so are the masks of dropout, each of
    shape (k, b, …). `rate` holds the learning rate of recorded steps.
    """

    weights: Sequence[Tensor]
    velocity: Sequence[Tensor]
    anchor: Sequence[Tensor]
    optimizer: RowOptimizer | None = None
    shift: Sequence[Tensor] = ()
    masks: Sequence[Tensor] = ()
    rate: Tensor | None = None


# (arrays of the step, inputs of shape (k, b, …), objective) → the losses, shape (k, b).
TakeStep = Callable[[StepArrays, Inputs, Summed], Tensor]


class Program(Protocol):
    """One model with the parameters of many clients.

    `weights` are its arrays in their order, shape (k, *shape). `drops` are the calls of dropout in
    training. `draws_alike`: whether clients that train by themselves draw the same masks.
    """

    model: nn.Module
    drops: Sequence[Drop] = ()
    draws_alike: bool = True

    def __call__(
        self, weights: Sequence[Tensor], inputs: Inputs, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the outputs, shape (k, b, …), for b examples of each of k clients.

        With masks they are the outputs of training.
        """

    def make_step(self, work: LocalWork, *, shifted: bool) -> TakeStep:
        """Return a function that takes a step in place, as `fairbloom.client.work.descend` does.

        `shifted` is True if a rule adds offsets to the gradients.
        """
        return partial(step_by_autograd, self, work)


class Mapped(Program):
    """Any model with operations that PyTorch can map over many sets of parameters.

    Parameters and buffers that are not in `names` are the model's own.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], output: str, drops: Sequence[Drop] = ()
    ) -> None:
        def one(weights: Sequence[Tensor], inputs: Inputs, masks: Sequence[Tensor]) -> Tensor:
            positional, named = arguments_of(inputs)
            of_client = dict(zip(names, weights, strict=True))
            with with_masks(iter(masks)) if masks else nullcontext():
                outputs = functional_call(model, of_client, positional, named)
            return choose_output(model, outputs, output)

        self.drops = drops
        self.model = model
        self._all = vmap(one, randomness="error")

    def __call__(
        self, weights: Sequence[Tensor], inputs: Inputs, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the outputs; see Program."""
        # Measuring clients switches the model, which they share.
        if self.drops and self.model.training != bool(masks):
            self.model.train(bool(masks))
        outputs: Tensor = self._all(tuple(weights), inputs, tuple(masks))
        return outputs


def step_by_autograd(
    program: Program, work: LocalWork, arrays: StepArrays, inputs: Inputs, summed: Summed
) -> Tensor:
    """Take a step in place, for any work; return the losses, shape (k, b)."""
    if arrays.optimizer is None:
        leaves = [weight.detach().requires_grad_() for weight in arrays.weights]
        optimizer = None
    else:
        leaves, optimizer = arrays.optimizer.of_first(len(arrays.weights[0]))
    with autocast(leaves[0].device, bfloat16=work.bfloat16):
        losses, total = summed(program(leaves, inputs, arrays.masks))
    gradients = gradients_of(total, leaves)
    with torch.no_grad():
        correct = partial(torch._foreach_add, arrays.shift) if arrays.shift else None
        descend(
            leaves,
            gradients,
            arrays.anchor,
            arrays.velocity,
            work,
            optimizer=optimizer,
            correct=correct,
            stacked=True,
            rate=arrays.rate,
        )
    return losses.detach()


class Chain(Program):
    """Linear layers and activations, one after the other, each layer as one batched product.

    A step adds its gradient to the weights as it is computed. The gradient is never stored: with
    small batches, writing and reading it would take most of a step's time.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = tuple(layers)
        self.model: nn.Module = nn.ModuleList(layers)

    def __call__(
        self, weights: Sequence[Tensor], inputs: Inputs, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the outputs, shape (k, b, outputs); see Program."""
        left = iter(weights)
        (x,) = tensors_of(inputs)
        for layer in self._layers:
            x = _linear(layer, left, x) if isinstance(layer, nn.Linear) else _other(layer, x)
        return x

    def make_step(self, work: LocalWork, *, shifted: bool) -> TakeStep:
        """Return a function that takes a step in place; see Program."""
        if step_fields(work) <= ADDED_AT_ONCE and not shifted:
            return partial(self._step, work)
        return partial(step_by_autograd, self, work)

    def _step(self, work: LocalWork, arrays: StepArrays, inputs: Inputs, summed: Summed) -> Tensor:
        activations = list[tuple[Tensor, Tensor]]()  # the inputs and outputs of each layer
        left = iter(arrays.weights)
        (x,) = tensors_of(inputs)
        for layer in self._layers:
            before = x.detach()
            if isinstance(layer, nn.Linear):
                x = _linear(layer, left, before)
            else:
                # The first layer's inputs are examples, which need no gradient.
                before.requires_grad_(len(activations) > 0 and before.is_floating_point())
                x = _other(layer, before)
            activations.append((before, x))
        outputs = x.detach().requires_grad_()
        losses, total = summed(outputs)
        (slope,) = torch.autograd.grad(total, outputs)
        with torch.no_grad():
            self._backward(arrays, activations, slope, work)
        return losses.detach()

    def _backward(
        self,
        arrays: StepArrays,
        activations: Sequence[tuple[Tensor, Tensor]],
        slope: Tensor,
        work: LocalWork,
    ) -> None:
        """Go back through the layers, and change each one's weights when they are not needed again.

        `slope` is the gradient by the outputs of the last layer.
        """
        place = len(arrays.weights)
        for layer, (before, after) in zip(
            reversed(self._layers), reversed(activations), strict=True
        ):
            if not isinstance(layer, nn.Linear):
                (slope,) = torch.autograd.grad(after, before, slope)
                continue
            adds: list[Callable[[Tensor, Tensor, Tensor, float, float], None]] = [_add_product]
            if layer.bias is not None:
                adds.append(_add_sum)
            place -= len(adds)
            # The slope by the inputs needs the weights as they were before this step.
            slope_before = torch.bmm(slope, arrays.weights[place]) if place else slope
            for array, add in enumerate(adds, start=place):
                of_one = slice(array, array + 1)
                _move(
                    arrays.weights[array],
                    arrays.velocity[of_one],
                    arrays.anchor[of_one],
                    partial(add, slope, before),
                    work,
                )
            if not place:
                return
            slope = slope_before


def _add_product(slope: Tensor, inputs: Tensor, array: Tensor, kept: float, rate: float) -> None:
    """Add the gradient by a layer's weights."""
    array.baddbmm_(slope.transpose(1, 2), inputs, beta=kept, alpha=rate)


def _add_sum(slope: Tensor, _inputs: Tensor, array: Tensor, kept: float, rate: float) -> None:
    """Add the gradient by a layer's bias."""
    array.mul_(kept).add_(slope.sum(1), alpha=rate)


def _move(
    weight: Tensor,
    velocity: Sequence[Tensor],
    anchor: Sequence[Tensor],
    add: Callable[[Tensor, float, float], None],
    work: LocalWork,
) -> None:
    """Take the step of one array in place.

    `add(array, kept, rate)` replaces the array by kept · array + rate · gradient.
    """
    rate = work.learning_rate
    if not velocity:
        kept = work.weight_decay + work.pull
        if kept:
            weight.mul_(1.0 - rate * kept)
        for received in anchor:
            weight.add_(received, alpha=rate * work.pull)
        add(weight, 1.0, -rate)
        return
    add(velocity[0], work.momentum, 1.0)
    if work.weight_decay:
        velocity[0].add_(weight, alpha=work.weight_decay)
    for received in anchor:
        velocity[0].add_(weight - received, alpha=work.pull)
    weight.add_(velocity[0], alpha=-rate)


def _linear(layer: nn.Linear, left: Iterator[Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs of many clients' linear layer, with the next arrays in `left`."""
    weight = next(left).transpose(1, 2)
    if layer.bias is None:
        return torch.bmm(inputs, weight)
    return torch.baddbmm(next(left).unsqueeze(1), inputs, weight)


def _other(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of an activation or a flattening layer of many clients."""
    outputs: Tensor = inputs.flatten(2) if isinstance(layer, nn.Flatten) else layer(inputs)
    return outputs


def make_program(model: nn.Module, task: Task, examples: AnyExamples) -> Program:
    """Return a program that computes a model for many clients; try it on examples of any client.

    Raise UnstackableError if the model or the loss cannot be computed for many clients at once.
    """
    (examples,) = in_tensors([examples])
    if is_of_model(task.loss):
        raise UnstackableError("the loss is its own")
    _check_parameters(model)
    trainable = _trainable(model)
    held = HeldTensors(model)
    try:
        first_inputs, _ = examples[slice(0, min(3, len(examples)))]
        drops = _find_drops(model, task, first_inputs)
        held.restore()
        program: Program = Mapped(model, [*trainable], task.output, drops)
        if isinstance(examples.inputs, Tensor) and len(trainable) == len(list(model.parameters())):
            program = _find_chain(model, task, examples) or program
        _check_same(program, model, task, examples)
        if any(held.other_attributes()):  # a kept tensor of mapped clients cannot be used again
            _check_same(program, model, task, examples)
        if drops:
            program.draws_alike = _draws_alike(program, model, task, examples)
    except UnstackableError:
        raise
    except Exception as error:  # PyTorch, or a user's model, may raise anything on many clients
        words = " ".join(str(error).split())[:200]
        place = place_of(error)
        at = f", {place}" if place else ""
        raise UnstackableError(
            f"PyTorch cannot map it over clients ({type(error).__name__}: {words}{at})"
        ) from error
    finally:
        changes_buffers = held.has_other_buffers()
        held.restore()
    if changes_buffers:
        raise UnstackableError("it changes buffers as it trains")
    return program


def _find_chain(model: nn.Module, task: Task, examples: Examples) -> Chain | None:
    """Return the chain that computes a model, None for other models.

    That of a class is compared with the class, also without gradients and in bfloat16: `forward`
    may depend on both.
    """
    layers = chain_layers(model)
    if layers is not None:
        return Chain(layers)
    inputs, _ = examples[slice(0, 3)]
    try:
        with seeded(0, examples.device):
            layers = traced_layers(model)
        if layers is None:
            return None
        chain = Chain(layers)
        weights = [parameter.unsqueeze(0) for parameter in model.parameters()]
        for bfloat16 in (False, True):
            with torch.no_grad(), autocast(examples.device, bfloat16=bfloat16):
                expected = outputs_of(model, inputs, task.output)
                (found,) = chain(weights, map_inputs(inputs, lambda each: each.unsqueeze(0)))
            if found.dtype != expected.dtype or not torch.allclose(found, expected, rtol=0.1):
                return None
        _check_same(chain, model, task, examples)
    except Exception:  # of a user's code, or of a chain that is another model
        return None
    return chain


@torch.no_grad()
def _find_drops(model: nn.Module, task: Task, inputs: Inputs) -> list[Drop]:
    """Return the calls of dropout in training.

    Raise UnstackableError if one does not drop example by example.
    """
    drops: list[Drop] = []
    with seeded(0, device_of(inputs)), record_drops(drops):
        outputs_of(model.train(), inputs, task.output)
    if any(drop.shape[0] != len(tensors_of(inputs)[0]) for drop in drops):
        raise UnstackableError("its dropout is not of one example after the other")
    return drops


@torch.no_grad()
def _draws_alike(program: Program, model: nn.Module, task: Task, examples: Examples) -> bool:
    """Return whether two clients draw the masks that each draws by itself, from equal seeds.

    Raise UnstackableError if masks have another effect on several clients than on each.
    """
    inputs, _ = examples[slice(0, min(3, len(examples)))]
    size = len(tensors_of(inputs)[0])
    device = device_of(inputs)
    draws = make_draws(2, device)
    draws.begin([1, 2])
    masks = draws.masks(program.drops, [size, size])
    weights = [torch.stack([parameter, parameter]) for parameter in _trainable(model).values()]
    together = program(weights, combine_inputs([inputs, inputs], torch.stack), masks)
    model.train()
    alike = True
    for row, seed in enumerate((1, 2)):
        with with_masks(iter([mask[row] for mask in masks])):
            masked = outputs_of(model, inputs, task.output)
        if not torch.allclose(masked, together[row], rtol=1e-3, atol=1e-5):
            raise UnstackableError("its dropout differs for several clients at once")
        draws.begin([seed])
        with seeded(seed, device), draws.for_one(), torch.enable_grad():
            single = outputs_of(model, inputs, task.output)
        alike &= torch.allclose(single, together[row], rtol=1e-3, atol=1e-5)
    return alike


def in_tensors(parts: Sequence[AnyExamples]) -> list[Examples]:
    """Return examples with tensors that can be stacked over clients.

    Raise UnstackableError for others.
    """
    if CollatedExamples in {*map(type, parts)}:
        raise UnstackableError("its examples are of a Dataset, and made batch by batch")
    return cast(list[Examples], [*parts])


def _check_parameters(model: nn.Module) -> None:
    """Raise UnstackableError if a model has parts that cannot be stacked over clients."""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UnstackableError("its BatchNorm keeps statistics of each client")
    if any(isinstance(module, nn.LSTM) for module in model.modules()):
        raise UnstackableError("its LSTM is 20 times as slow over several clients at once")
    parameters = _trainable(model)
    if len(set(parameters.values())) < len(parameters):
        raise UnstackableError("several of its names are one parameter")
    if len({parameter.dtype for parameter in parameters.values()}) > 1:
        raise UnstackableError("its parameters have several dtypes")
    if torch.bfloat16 in {tensor.dtype for tensor in model.state_dict().values()}:
        raise UnstackableError(
            "its weights are in bfloat16, and those that clients receive in float32"
        )


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters; frozen ones are constants, equal for all clients."""
    return {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }


def _check_same(program: Program, model: nn.Module, task: Task, examples: Examples) -> None:
    """Raise UnstackableError if stacking changes two clients' losses or gradients."""
    count = min(3, len(examples))
    inputs, targets = examples[slice(0, count)]
    _check_same_in_evaluation(model, task, inputs)
    _check_each_by_itself(model, task, inputs, targets)
    losses = task.loss(outputs_of(model, inputs, task.output), targets)
    gradients = torch.autograd.grad(
        losses.mean(), tuple(_trainable(model).values()), allow_unused=True
    )
    expected = losses.detach()
    if losses.shape != (count,):
        raise UnstackableError(
            f"the task's loss has shape {tuple(losses.shape)} for {count} examples"
        )
    if None in gradients:
        raise UnstackableError("the loss does not touch some of its parameters")
    weights = [
        torch.stack([p.detach(), p.detach()]).requires_grad_() for p in _trainable(model).values()
    ]
    # Two clients with equal weights and the same examples, the second one's in another order.
    rolled = map_inputs(inputs, lambda tensor: tensor.roll(1, 0))
    outputs = program(weights, combine_inputs([inputs, rolled], torch.stack))
    stacked = task.loss(outputs.flatten(0, 1), torch.cat([targets, targets.roll(1, 0)]))
    stacked_gradients = torch.autograd.grad(stacked[count:].mean(), weights)
    same = torch.allclose(stacked[:count], expected, rtol=1e-3, atol=1e-5)
    same &= torch.allclose(stacked[count:], expected.roll(1, 0), rtol=1e-3, atol=1e-5)
    for gradient, both in zip(gradients, stacked_gradients, strict=True):
        # The second client's loss must not touch the first client's weights.
        same &= torch.allclose(both[1], gradient, rtol=1e-2, atol=1e-5) and not bool(both[0].any())
    if not same:
        raise UnstackableError(
            "its loss or gradient is another for several clients at once than for each by itself"
        )


@torch.no_grad()
def _check_each_by_itself(model: nn.Module, task: Task, inputs: Inputs, targets: Tensor) -> None:
    """Raise UnstackableError if an output or loss depends on the rest of the batch."""
    outputs = []
    losses = []
    for count in (len(targets), max(1, len(targets) - 1)):  # an odd and an even number
        some = map_inputs(inputs, partial(torch.narrow, dim=0, start=0, length=count))
        outputs.append(outputs_of(model, some, task.output))
        losses.append(task.loss(outputs[-1], targets[:count]))
    few = len(outputs[1])
    same = torch.allclose(outputs[0][:few], outputs[1], rtol=1e-3, atol=1e-5)
    if not (same and torch.allclose(losses[0][:few], losses[1], rtol=1e-3, atol=1e-5)):
        raise UnstackableError("its output for an example depends on the others of its batch")


@torch.no_grad()
def _check_same_in_evaluation(model: nn.Module, task: Task, inputs: Inputs) -> None:
    """Raise UnstackableError if a model draws or differs between training and evaluation.

    Only dropout may do so in training. The model is left in evaluation.
    """
    outputs = []
    for training, seed in ((False, 0), (False, 1), (True, 0)):
        model.train(training)
        with seeded(seed, device_of(inputs)), record_drops([]) if training else nullcontext():
            outputs.append(outputs_of(model, inputs, task.output))
    model.eval()
    if not all(torch.equal(outputs[0], other) for other in outputs[1:]):
        raise UnstackableError(
            "it draws, other than by dropout, or computes otherwise in training than in evaluation"
        )
