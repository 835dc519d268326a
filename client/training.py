"""Local work of one client: stochastic gradient descent from the received model, and its measures."""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Task
from fairbloom.tasks.collated import BATCH, CollatedExamples
from fairbloom.tasks.inputs import (
    Inputs,
    arguments_of,
    count_bytes,
    device_of,
    map_inputs,
    split_inputs,
)
from fairbloom.tasks.models import choose_output
from fairbloom.tasks.task import AnyExamples, is_of_model

from .device import in_double
from .group_metrics import measure_groups
from .linear import linear_step
from .rules.base import Copy, StepsTaken
from .work import LocalWork, descend

StateDict = dict[str, Tensor]

EVALUATION_BATCH = 4096
"""Examples that are measured at once; bounds memory, not the result."""


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let PyTorch's global generators, from which dropout draws, begin with `seed`.

    Restore their state at the end.
    """
    # Generator by generator: torch.manual_seed takes 100 times as long, and seeds every CUDA
    # device.
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    states = [each.get_state() for each in generators]
    try:
        for each in generators:
            each.manual_seed(seed)
        yield
    finally:
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


CorrectStep = Callable[[Sequence[Tensor], int], Sequence[Tensor]]
"""(gradients, number of the step, from 1) → those that it goes down, both in the model's order."""

AfterStep = Callable[[int, Copy, bool], None]
"""(number of the step, from 1, returns a copy of the model after it, whether it was the last):
looks at the model."""


def train(
    model: nn.Module,
    task: Task,
    examples: AnyExamples,
    work: LocalWork,
    anchor: Sequence[Tensor] | None = None,
    *,
    correct: CorrectStep | None = None,
    after_step: AfterStep | None = None,
) -> StepsTaken:
    """Run the local steps on `model` in place; return which they were.

    Each step is that of an optimizer of torch.optim. Frozen parameters stay as they are, and so do
    those that the loss does not touch, unless gradients are corrected. The pull goes to `anchor`,
    the trainable parameters in the model's order, or to where training starts.
    """
    if work.idle:
        return StepsTaken()
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ReportableError(
            f"the model, {type(model).__name__}, has no parameter to train: all are frozen"
            " (requires_grad)"
        )
    pulled_to = (parameters if anchor is None else anchor) if work.pull > 0.0 else []
    received = [tensor.detach().clone() for tensor in pulled_to]
    optimizer = work.make_optimizer(parameters)
    has_velocity = optimizer is None and work.momentum > 0.0
    velocity = [torch.zeros_like(parameter) for parameter in parameters] if has_velocity else []
    ends = time.monotonic() + work.time_budget
    # BatchNorm takes the variance of a batch, which one example has not.
    fewest = 1 + any(
        isinstance(module, _BatchNorm) and module.training for module in model.modules()
    )
    steps = count_steps(len(examples), work, fewest)
    taken = 0

    def by_autograd(inputs: Inputs, targets: Tensor) -> None:
        loss = work.transform(losses_of(model, task, inputs, targets).mean())
        if not loss.requires_grad:
            raise ReportableError(
                f"the loss of the model, {type(model).__name__}, depends on none of its parameters,"
                " so there is nothing to learn: leave out what cuts it off from them: .detach(),"
                " torch.no_grad(), or .numpy()"
            )
        gradients = gradients_of(loss, parameters)
        with torch.no_grad():
            corrected = None if correct is None else lambda each: correct(each, taken + 1)
            descend(
                parameters,
                gradients,
                received,
                velocity,
                work,
                optimizer=optimizer,
                correct=corrected,
            )

    step_at_once = None
    if (
        not isinstance(examples, CollatedExamples)
        and isinstance(examples.inputs, Tensor)
        and correct is None
    ):
        step_at_once = linear_step(model, task, work, received, velocity, examples.all_targets)
    take = step_at_once or by_autograd
    order = batches(len(examples), work, fewest)
    with seeded(work.draws, parameters[0].device):
        for inputs, targets in fetch_batches(examples, order):
            take(inputs, targets)
            taken += 1
            over = time.monotonic() > ends
            if after_step is not None:
                after_step(taken, lambda: copy.deepcopy(model.state_dict()), over or taken == steps)
            if over:
                break
    return StepsTaken((work.learning_rate,) * taken)


def fetch_batches(
    examples: AnyExamples, order: Iterator[Tensor]
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield inputs and targets of each batch of indices.

    Small ones in tensors are gathered several at once.
    """
    if isinstance(examples, CollatedExamples):
        yield from (examples[batch] for batch in order)
        return
    size = (
        count_bytes(map_inputs(examples.inputs, lambda tensor: tensor[:1]))
        + examples.targets[:1].nbytes
    )
    for first in order:
        many = 2**19 // (size * len(first))  # bytes that are gathered at once
        several = [first, *itertools.islice(order, max(0, many - 1))]
        inputs, targets = examples[torch.cat(several).to(examples.targets.device)]
        lengths = [len(batch) for batch in several]
        yield from zip(split_inputs(inputs, lengths), torch.split(targets, lengths), strict=True)


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient by each parameter, None where the loss does not touch it.

    The caller may change them.

    By `backward`, since torch.autograd.grad may return one tensor for several parameters.
    """
    for parameter in parameters:  # an earlier step may have failed
        parameter.grad = None
    torch.autograd.backward(loss)
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def batches(count: int, work: LocalWork, fewest: int = 1) -> Iterator[Tensor]:
    """Yield the indices of each step's examples: a new random order in every epoch, none where a step takes all.

    A last batch of fewer than `fewest` is left out; other examples are in it in the next epoch.
    """
    size = batch_of(count, work)
    if size < fewest:
        raise ReportableError(
            f"a batch has {size} example here, of {count} to train on, and the model's BatchNorm"
            f" needs {fewest}: raise batch-size, leave out clients with a single example, or put"
            " GroupNorm or LayerNorm in its place"
        )
    random = work.random
    if random is None and size < count:
        raise ValueError(
            f"batches of {size} of {count} examples need an order: give the work a random generator"
        )
    epochs = range(work.epochs) if work.steps is None else itertools.count()
    orders = (
        (
            torch.arange(count)
            if random is None or size == count
            else torch.from_numpy(random.permutation(count))
        )
        for _ in epochs
    )
    steps = (
        batch for order in orders for batch in torch.split(order, size) if len(batch) >= fewest
    )
    return itertools.islice(steps, work.steps)


def count_steps(count: int, work: LocalWork, fewest: int = 1) -> int:
    """Return how many steps `batches` has."""
    if work.steps is not None:
        return work.steps
    whole, rest = divmod(count, batch_of(count, work))
    return work.epochs * (whole + (rest >= fewest))


def batch_of(count: int, work: LocalWork) -> int:
    """Return how many of `count` examples a step takes, but for the last of an epoch."""
    if not count:
        raise ReportableError(
            "there is no training example here, so nothing can be trained: leave this client out"
        )
    return min(work.batch_size or count, count)


def outputs_of(model: nn.Module, inputs: Inputs, output: str = "") -> Tensor:
    """Return a model's outputs, called as model(x), model(**inputs) or model(*inputs).

    Of several outputs by name, that of the name `output` is taken; "": `logits`, or the only
    tensor.
    """
    return choose_output(model, _answer(model, inputs), output)


def losses_of(model: nn.Module, task: Task, inputs: Inputs, targets: Tensor) -> Tensor:
    """Return the loss of each example, shape (n,): the task's of the model's outputs, or the model's own."""
    answer = _answer(model, inputs)
    if is_of_model(task.loss):
        return _own_losses(model, answer, len(targets))
    return task.loss(choose_output(model, answer, task.output), targets)


def _answer(model: nn.Module, inputs: Inputs) -> object:
    """Return whatever a model returns, called as its inputs ask for."""
    if (
        isinstance(inputs, Tensor)
        and inputs.dim() == 4
        and any(each.dim() == 4 and not each.is_contiguous() for each in model.parameters())
    ):  # its channels lie side by side
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    positional, named = arguments_of(inputs)
    return model(*positional, **named)


def _own_losses(model: nn.Module, answer: object, count: int) -> Tensor:
    """Return the loss of each of `count` examples that a model returns with its outputs."""
    losses = answer.get(LOSS) if isinstance(answer, Mapping) else None
    if not isinstance(losses, Tensor):
        raise ReportableError(
            f"the task takes the loss of the model, {type(model).__name__}, and there is none among"
            " what it returns: it must return tensors by name, loss among them, and may need the"
            " targets among its inputs"
        )
    if losses.shape != (count,):
        raise ReportableError(
            f"the loss of the model, {type(model).__name__}, must be one number for each of {count}"
            f" examples, shape ({count},), got shape {tuple(losses.shape)}: let the model take it"
            " with reduction='none', or leave the targets out of its inputs and give the task a"
            " loss of its outputs in place of model_loss"
        )
    return losses


def with_channels_last(model: nn.Module, examples: AnyExamples) -> nn.Module:
    """Let the channels of a pixel lie side by side in a model's convolutions: the processor is faster with that.

    A model stays as it is if it cannot take such images (it calls `view` on them, for example), has
    GroupNorm, which is slower with that, or is on another device.
    """
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    slower = any(isinstance(module, nn.GroupNorm) for module in model.modules())
    if not weights or slower or weights[0].device.type != "cpu" or not len(examples):
        return model
    try:
        inputs, _ = examples[slice(0, 2)]
        with torch.no_grad(), seeded(0, device_of(inputs)):
            tried = _turn(copy.deepcopy(model))
            _answer(tried.eval(), inputs)
    except Exception:  # whatever a model raises: training by itself tells
        return model
    return _turn(model)


def _turn(model: nn.Module) -> nn.Module:
    move: Callable[..., nn.Module] = model.to  # not every PyTorch declares this argument of it
    return move(memory_format=torch.channels_last)


@torch.no_grad()
def measure(
    model: nn.Module, task: Task, examples: AnyExamples, smallest_group: int = 0
) -> dict[str, float]:
    """Return the mean loss and the task's scores of `model`, in eval mode, over all `examples`, by their names.

    A score that is not finite is left out: an AUC of a single class has no meaning. With
    `smallest_group`, what `measure_groups` returns is there too, where the examples have groups.
    """
    answers = answer(model, task, examples)
    found = {LOSS: answers.losses} | {
        score.name: answers.measured(score.name, of) for score, of in task.scores.items()
    }
    means = {name: in_double(torch.as_tensor(value)).mean().item() for name, value in found.items()}
    scores = {name: value for name, value in means.items() if name == LOSS or math.isfinite(value)}
    groups = examples.group_places() if smallest_group else None
    if groups is None:
        return scores
    return scores | measure_groups(
        task,
        {score: answers.measured(score.name, of) for score, of in task.group_scores.items()},
        groups,
        smallest_group,
    )


@torch.no_grad()
def answer(model: nn.Module, task: Task, examples: AnyExamples) -> "Answers":
    """Return what `model`, in eval mode, makes of all `examples`."""
    model.eval()
    size = BATCH if isinstance(examples, CollatedExamples) else EVALUATION_BATCH
    batches = (examples[start : start + size] for start in range(0, len(examples), size))
    # a model may draw in evaluation too, and then always the same
    with seeded(0, examples.device):
        return Answers.of(model, task, batches)


class Answers(NamedTuple):
    """What a model makes of examples: each one's loss, and outputs with targets, by batch where shapes differ."""

    batches: Sequence[tuple[Tensor, Tensor]]
    losses: Tensor

    @classmethod
    def of(
        cls, model: nn.Module, task: Task, batches: Iterable[tuple[Inputs, Tensor]]
    ) -> "Answers":
        """Return what a model makes of some batches."""
        of_model = is_of_model(task.loss)
        outputs = list[Tensor]()
        targets = list[Tensor]()
        losses = list[Tensor]()
        for inputs, wanted in batches:
            answer = _answer(model, inputs)
            outputs.append(choose_output(model, answer, task.output))
            targets.append(wanted)
            losses += [_own_losses(model, answer, len(wanted))] if of_model else []
        alike = all(len({each.shape[1:] for each in parts}) == 1 for parts in (outputs, targets))
        answered = (
            [(_joined(outputs), _joined(targets))]
            if alike
            else list(zip(outputs, targets, strict=True))
        )
        return cls(answered, _joined(losses or [task.loss(*batch) for batch in answered]))

    def measured(self, name: str, of: Callable[[Tensor, Tensor], Tensor | float]) -> Tensor | float:
        """Return a score of all examples: one number, or one of each."""
        if len(self.batches) == 1:
            return of(*self.batches[0])
        found = [torch.as_tensor(of(*batch)) for batch in self.batches]
        for values, (_, targets) in zip(found, self.batches, strict=True):
            if values.shape != targets.shape[:1]:
                raise ReportableError(
                    f"the score {name} cannot be measured: batches of {len(targets)} examples have"
                    f" outputs of several shapes, and it gives shape {tuple(values.shape)} for one:"
                    " let it give a number of each example, or fill up all batches to one length"
                    " in collate_fn"
                )
        return torch.cat(found)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
