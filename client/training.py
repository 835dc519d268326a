"""Local training of one client, and the measurement of models."""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import LOSS
from fairbloom.tasks import Task
from fairbloom.tasks.collated import BATCH, CollatedExamples
from fairbloom.tasks.generators import all_seeded, generators_of, restore_states, seed_all
from fairbloom.tasks.inputs import (
    Inputs,
    arguments_of,
    count_bytes,
    device_of,
    map_inputs,
    split_inputs,
    tensors_of,
)
from fairbloom.tasks.joint_scores import fit_outputs
from fairbloom.tasks.models import choose_output
from fairbloom.tasks.task import AnyExamples, is_of_model

from .augmentation import Augment, make_augmentation
from .capture import NO_CAPTURE, Capture, find_step
from .device import autocast, in_double, read_scalars
from .group_metrics import group_examples, measure_groups
from .work import Copy, LocalWork, StepsTaken, batches, count_steps, descend, min_batch_of

# Examples per forward pass in evaluation. It bounds memory; the result does not depend on it.
EVALUATION_BATCH = 4096


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generators, from which dropout draws; restore them at the end."""
    # One by one: torch.manual_seed takes 100 times as long, and seeds every CUDA device.
    generators = generators_of(device)
    states = [generator.get_state() for generator in generators]
    try:
        for each in generators:
            each.manual_seed(seed)
        yield
    finally:
        restore_states(generators, states)


# Maps the gradients of a step, and its number from 1, to the corrected gradients, in the model's
# order.
CorrectStep = Callable[[Sequence[Tensor], int], Sequence[Tensor]]

# Called after each step with its number from 1, a function that copies the model, and whether it
# was the last step.
AfterStep = Callable[[int, Copy, bool], None]


def train(
    model: nn.Module,
    task: Task,
    examples: AnyExamples,
    work: LocalWork,
    anchor: Sequence[Tensor] | None = None,
    *,
    correct: CorrectStep | None = None,
    after_step: AfterStep | None = None,
    capture: Capture = NO_CAPTURE,
) -> StepsTaken:
    """Run the local steps on `model` in place, and return them.

    Each step is the one of an optimizer of torch.optim. Frozen parameters are left unchanged, and
    so are parameters that the loss does not touch, unless gradients are corrected. The pull goes to
    `anchor`, the trainable parameters in the model's order; None: to the parameters at the start.
    `capture` records the steps.
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
    tensors = find_step(capture, model, parameters, work, corrected=correct is not None)
    tensors.begin(parameters if anchor is None else anchor, work.learning_rate, work.draws)
    ends = time.monotonic() + work.time_budget
    min_batch = min_batch_of(model)
    steps = count_steps(len(examples), work, min_batch)
    taken = 0

    def by_autograd(inputs: Inputs, targets: Tensor) -> None:
        with tensors.draws.for_one(), autocast(parameters[0].device, bfloat16=work.bfloat16):
            loss = work.transform(losses_of(model, task, inputs, targets).mean())
        if not loss.requires_grad:
            raise ReportableError(
                f"the loss of the model, {type(model).__name__}, does not depend on any parameter,"
                " so there is nothing to learn: remove .detach(), torch.no_grad() or .numpy()"
            )
        gradients = gradients_of(loss, parameters)
        with torch.no_grad():
            descend(
                parameters,
                gradients,
                tensors.received,
                tensors.velocity,
                work,
                optimizer=tensors.optimizer,
                correct=None if correct is None else lambda each: correct(each, taken + 1),
                rate=tensors.rate,
            )

    take_step = capture.wrap(tensors, by_autograd)
    fetched = fetch_batches(
        examples, batches(len(examples), work, min_batch), make_augmentation(work)
    )
    if not isinstance(examples, CollatedExamples) and examples.streamed_to is not None:
        fetched = fetch_ahead(fetched, examples.streamed_to)
    with seeded(work.draws, parameters[0].device):
        for inputs, targets in fetched:
            take_step(inputs, targets)
            taken += 1
            is_late = time.monotonic() > ends
            if after_step is not None:
                after_step(
                    taken, lambda: copy.deepcopy(model.state_dict()), is_late or taken == steps
                )
            if is_late:
                break
    return StepsTaken((work.learning_rate,) * taken)


def fetch_batches(
    examples: AnyExamples, order: Iterator[Tensor], augment: Augment | None = None
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield inputs and targets of each batch of indices; small batches are gathered together.

    `augment` changes the inputs.
    """
    if isinstance(examples, CollatedExamples):
        for batch in order:
            inputs, targets = examples[batch]
            yield inputs if augment is None else augment(inputs), targets
        return
    size = (
        count_bytes(map_inputs(examples.inputs, lambda tensor: tensor[:1]))
        + examples.targets[:1].nbytes
    )
    for first in order:
        many = 2**19 // (size * len(first))  # about 0.5 MB are gathered at once
        several = [first, *itertools.islice(order, max(0, many - 1))]
        inputs, targets = examples[torch.cat(several)]
        if augment is not None:
            inputs = augment(inputs)
        lengths = [len(batch) for batch in several]
        yield from zip(split_inputs(inputs, lengths), torch.split(targets, lengths), strict=True)


def fetch_ahead(
    fetched: Iterator[tuple[Inputs, Tensor]], device: torch.device
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield batches; the next one comes to the card on a stream of its own while one is used."""
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream(device)

    def fetch() -> tuple[Inputs, Tensor] | None:
        with torch.cuda.stream(stream):
            return next(fetched, None)

    upcoming = fetch()
    while upcoming is not None:
        current.wait_stream(stream)
        inputs, targets = upcoming
        for tensor in (*tensors_of(inputs), targets):
            tensor.record_stream(current)  # so that its memory is not used again too early
        upcoming = fetch()
        yield inputs, targets


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient by each parameter, None if the loss does not touch it.

    The caller may change the gradients in place.
    """
    for parameter in parameters:  # an earlier step may have failed
        parameter.grad = None
    # Not torch.autograd.grad, which may return one tensor for several parameters.
    torch.autograd.backward(loss)
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def outputs_of(model: nn.Module, inputs: Inputs, output: str = "") -> Tensor:
    """Return a model's outputs; the call is model(x), model(**inputs) or model(*inputs).

    Of several outputs by name, return the one called `output`; "": `logits`, or the only tensor.
    """
    return choose_output(model, _forward(model, inputs), output)


def losses_of(model: nn.Module, task: Task, inputs: Inputs, targets: Tensor) -> Tensor:
    """Return the loss of each example, shape (n,): the task's, or the model's own."""
    returned = _forward(model, inputs)
    if is_of_model(task.loss):
        return _own_losses(model, returned, len(targets))
    return task.loss(choose_output(model, returned, task.output), targets)


def _forward(model: nn.Module, inputs: Inputs) -> object:
    """Call a model with inputs; return its result."""
    # Some array of a model in this form is not contiguous.
    if (
        isinstance(inputs, Tensor)
        and inputs.dim() == 4
        and any(
            parameter.dim() == 4 and not parameter.is_contiguous()
            for parameter in model.parameters()
        )
    ):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    positional, named = arguments_of(inputs)
    return model(*positional, **named)


def _own_losses(model: nn.Module, returned: object, count: int) -> Tensor:
    """Return the loss of each of `count` examples that a model returned with its outputs."""
    losses = returned.get(LOSS) if isinstance(returned, Mapping) else None
    if not isinstance(losses, Tensor):
        raise ReportableError(
            f"the task takes the loss of the model, {type(model).__name__}, but the model returns"
            " none: it must return tensors by name, with one called loss, and may need the targets"
            " among its inputs"
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
    """Store a model's convolutions in PyTorch's channels_last format, which is faster on the CPU.

    A model is left unchanged if it cannot take such images (because it calls `view` on them, for
    example), has GroupNorm, which is slower in that format, or is on another device.
    """
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    slower = any(isinstance(module, nn.GroupNorm) for module in model.modules())
    if not weights or slower or weights[0].device.type != "cpu" or not len(examples):
        return model
    try:
        inputs, _ = examples[slice(0, 2)]
        with torch.no_grad(), seeded(0, device_of(inputs)):
            trial = _in_channels_last(copy.deepcopy(model))
            _forward(trial.eval(), inputs)
    except Exception:  # any error of the user's model: training reports it if it is a real one
        return model
    return _in_channels_last(model)


# A model that is checked for hidden state sees so many batches before; where that changes its
# results, so many new models must repeat them without: others draw by themselves.
BATCHES = 4
REPEATS = 8


def check_hidden_state(model: nn.Module, task: Task, examples: AnyExamples) -> None:
    """Raise ReportableError if a model's results depend on a batch that it has seen before.

    Two new models with the arrays of `model` compute the loss and the gradient of the same batch,
    and its loss in evaluation; one has seen other batches. What it keeps of them would differ
    from engine to engine and after a resumption, because only the state_dict is loaded. `model` is
    unchanged. Errors of the task or the model are left to training.
    """
    first = slice(0, 4)
    before = [slice(max(0, len(examples) - first.stop), len(examples))] * BATCHES

    def make() -> nn.Module:
        with all_seeded(0):
            return task.model().to(examples.device)

    def compute(made: nn.Module, *places: slice) -> Tensor:
        made.train()
        trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
        with all_seeded(0):
            for place in places:
                seed_all(0)
                made.load_state_dict(model.state_dict())
                loss = losses_of(made, task, *examples[place]).mean()
                gradients = gradients_of(loss, trained)
            results = (loss, losses_of(made.eval(), task, *examples[first]).mean(), *gradients)
        parts = []
        for each, array in zip(results, (loss, loss, *trained), strict=True):
            own = torch.zeros_like(array) if each is None else each.detach()
            parts.append(own.flatten())
        return torch.cat(parts)

    def differs(*places: slice) -> bool:
        # one new model at a time: it may be large
        change = compute(make(), *places) - expected
        return bool(change.norm() > 1e-6 * expected.norm())

    try:
        fresh = make()
        if fresh is model:
            return
        expected = compute(fresh, first)
        if not differs(*before, first) or any(differs(first) for _ in range(REPEATS)):
            return
        used = make()
        compute(used, *before, first)
    except Exception:  # training reports any error of a user's model
        return
    changed = sorted(_read_hidden(used).items() - _read_hidden(fresh).items())
    kept = ", ".join(repr(name) for name, _ in changed) or "a value"
    raise ReportableError(
        f"the model, {type(model).__name__}, computes another loss or update after it has seen"
        f" other batches, because it keeps {kept} outside its"
        " state_dict: make that a tensor of the state_dict (register_buffer), and draw random"
        " numbers from torch's own generator"
    )


def _read_hidden(model: nn.Module) -> dict[str, str]:
    """Return numbers, texts and generators in attributes that are not in a model's state_dict."""
    of_any = vars(nn.Module()).keys()
    hidden: dict[str, str] = {}
    for path, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            is_stored = name in of_any or name in module._buffers
            if not is_stored or name in module._non_persistent_buffers_set:
                hidden[f"{path}.{name}".lstrip(".")] = str(_read_plain(value))
    return hidden


def _read_plain(value: object) -> list[object]:
    """Return the numbers and texts in a value, which may be nested, or a generator's state."""
    if isinstance(value, torch.Generator):
        value = value.get_state()
    plain = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor | float | int | str)]
    return [leaf.tolist() if isinstance(leaf, Tensor) else leaf for leaf in plain]


def _in_channels_last(model: nn.Module) -> nn.Module:
    move: Callable[..., nn.Module] = (
        model.to
    )  # some versions of PyTorch do not declare the argument
    return move(memory_format=torch.channels_last)


@torch.no_grad()
def measure(
    model: nn.Module, task: Task, examples: AnyExamples, smallest_group: int = 0
) -> dict[str, float]:
    """Return the mean loss and the task's scores of `model` in eval mode, by their names.

    A score that is not finite is left out, such as the AUC of a single class. If `smallest_group`
    is above 0 and clients report groups, the results of `measure_groups` are included.
    """
    outputs = predict(model, task, examples)
    values: dict[str, Tensor | float] = {
        LOSS: outputs.losses,
        **{
            score.name: outputs.compute_score(score.name, fit_outputs(task, compute))
            for score, compute in task.scores.items()
        },
    }
    means = read_scalars([in_double(torch.as_tensor(value)).mean() for value in values.values()])
    scores = {
        name: mean
        for name, mean in zip(values, means, strict=True)
        if name == LOSS or math.isfinite(mean)
    }
    if not smallest_group or not task.reported_groupings:
        return scores
    measured = {
        score: outputs.compute_score(score.name, fit_outputs(task, compute))
        for score, compute in task.group_scores.items()
    }
    (by_group,) = measure_groups(
        task,
        measured,
        group_examples(task, examples),
        counts=[len(examples)],
        smallest=smallest_group,
        units=examples.units,
    )
    return scores | by_group


@torch.no_grad()
def predict(model: nn.Module, task: Task, examples: AnyExamples) -> "Outputs":
    """Return the outputs and losses of `model`, in eval mode, on all `examples`."""
    # Seeded, because a model may draw random numbers in evaluation, too.
    with seeded(0, examples.device):
        return Outputs.of(model, task, (batch for _, batch in evaluation_batches(model, examples)))


def evaluation_batches(
    model: nn.Module, examples: AnyExamples
) -> Iterator[tuple[slice, tuple[Inputs, Tensor]]]:
    """Yield the slices of `examples` and their batches, and set `model` to eval mode."""
    model.eval()
    size = BATCH if isinstance(examples, CollatedExamples) else EVALUATION_BATCH
    for start in range(0, len(examples), size):
        place = slice(start, start + size)
        yield place, examples[place]


class Outputs(NamedTuple):
    """A model's losses and outputs on a set of examples.

    `batches` has pairs of outputs and targets: one pair, or several if their shapes differ.
    `losses` has the loss of each example.
    """

    batches: Sequence[tuple[Tensor, Tensor]]
    losses: Tensor

    @classmethod
    def of(
        cls, model: nn.Module, task: Task, batches: Iterable[tuple[Inputs, Tensor]]
    ) -> "Outputs":
        """Return the losses and outputs of a model on batches of inputs and targets."""
        of_model = is_of_model(task.loss)
        outputs = list[Tensor]()
        targets = list[Tensor]()
        losses = list[Tensor]()
        for inputs, wanted in batches:
            returned = _forward(model, inputs)
            outputs.append(choose_output(model, returned, task.output))
            targets.append(wanted)
            if of_model:
                losses.append(_own_losses(model, returned, len(wanted)))
        pairs = list(zip(outputs, targets, strict=True))
        if all(len({part.shape[1:] for part in parts}) == 1 for parts in (outputs, targets)):
            pairs = [(_join(outputs), _join(targets))]
        return cls(pairs, _join(losses or [task.loss(*pair) for pair in pairs]))

    def compute_score(
        self, name: str, compute: Callable[[Tensor, Tensor], Tensor | float]
    ) -> Tensor | float:
        """Return a score of all examples: one number, or one for each example."""
        if len(self.batches) == 1:
            return compute(*self.batches[0])
        parts = [torch.as_tensor(compute(*batch)) for batch in self.batches]
        for values, (_, targets) in zip(parts, self.batches, strict=True):
            if values.shape != targets.shape[:1]:
                raise ReportableError(
                    f"the score {name} cannot be measured: batches of {len(targets)} examples have"
                    f" outputs of several shapes, and it gives shape {tuple(values.shape)} for one:"
                    " let it give a number of each example, or fill up all batches to one length"
                    " in collate_fn"
                )
        return torch.cat(parts)


def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
