"""What a user-defined task must give, checked when a client's examples are first asked for."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import pairwise

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError, ReportableError, place_of_function
from fairbloom.protocol.names import LONGEST_NAME, is_usable_name

from .collated import CollatedExamples
from .inputs import names_of, tensors_of
from .model_loss import is_of_model
from .preprocessing import Preprocessing
from .task import AnyExamples, Examples, Splits, Task

Loss = Callable[[Tensor, Tensor], Tensor]


def guard_task(name: str, task: Task) -> Task:
    """Return the same task, which says in words what is wrong with its examples and losses."""
    _check_names(name, task)
    if not task.clients:
        raise FairbloomError(f"task = {name!r} has no clients: name one at least")
    wrong: list[object] = [
        client for client in task.clients if not isinstance(client, str) or not is_usable_name(client)
    ]
    if not wrong:
        wrong += [client for client, following in pairwise(task.ascending) if client == following]
    if wrong:
        raise FairbloomError(
            f"task = {name!r}: its client {wrong[0]!r} needs a name that no other client has: a text of "
            f"at most {LONGEST_NAME} printable characters"
        )

    def splits(client: str) -> Splits:
        made: object = task.splits(client)
        if isinstance(made, tuple) and len(made) == 2:
            made = Splits(*made)
        if not isinstance(made, Splits) or not all(isinstance(each, Examples | CollatedExamples) for each in made):
            raise FairbloomError(
                f"task = {name!r}: splits({client!r}) must return Splits of two Examples, got {_kind(made)}"
            )
        for which, examples in (("training", made.train), ("test", made.test), ("validation", made.validation)):
            if examples is not None:
                check_examples(f"task = {name!r}: the {which} examples of client {client}", examples, task)
        return made

    def preprocessing(client: str) -> Preprocessing:
        assert task.preprocessing is not None  # noqa: S101 (it is asked for below alone)
        made: object = task.preprocessing(client)
        if not isinstance(made, Preprocessing):
            raise FairbloomError(
                f"task = {name!r}: preprocessing({client!r}) must return a Preprocessing, got {type(made).__name__}; "
                "of no client, '', it is what is common to all"
            )
        return made

    guarded = preprocessing if task.preprocessing else None
    return replace(task, splits=splits, loss=guard_loss(name, task.loss), preprocessing=guarded)


def _check_names(name: str, task: Task) -> None:
    """Raise FairbloomError when a text stands where several names are wanted: its letters would be the names."""
    wanted = {"clients": task.clients, "class_names": task.class_names}
    wanted |= {f"groupings[{grouping!r}]": groups for grouping, groups in task.groupings.items()}
    for what, names in wanted.items():
        if isinstance(names, str):
            raise FairbloomError(
                f"task = {name!r}: {what} = {names!r} must be a tuple of names: write ({names!r},) if it is one name"
            )


def guard_loss(name: str, loss: Loss) -> Loss:
    """Return the same loss, which says when it does not give one number for each example."""
    if is_of_model(loss):
        return loss

    @wraps(loss)  # what it is a check of can be seen
    def of_each(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = loss(outputs, targets)
        if losses.shape != targets.shape[:1]:
            raise FairbloomError(
                f"task = {name!r}: its loss{_at(loss)} must return one number for each of {len(targets)} examples, "
                f"shape ({len(targets)},), got shape {tuple(losses.shape)}: outputs have shape "
                f"{tuple(outputs.shape)} and targets {tuple(targets.shape)}; a loss of PyTorch takes reduction='none'"
            )
        return losses

    return of_each


def _at(function: Callable[..., object]) -> str:
    place = place_of_function(function)
    return f" ({place})" if place else ""


def check_examples(source: str, examples: AnyExamples, task: Task) -> None:
    """Raise FairbloomError when examples cannot be learned from, or tested on; of a Dataset a few are looked at."""
    if isinstance(examples, CollatedExamples):
        _check_collated(source, examples, task)
    else:
        _check_tensors(source, examples, task)


def _check_collated(source: str, examples: CollatedExamples, task: Task) -> None:
    dataset = examples.dataset
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise FairbloomError(
            f"{source}: {type(dataset).__name__} must have a length and an example at each place, as a map-style "
            "Dataset has; what can only be iterated over cannot be drawn from"
        )
    _check_rows(source, examples, len(dataset))
    _check_groups(source, examples.groups, len(dataset), task)
    try:
        few = Examples(*examples[slice(0, 2)])
    except ReportableError as error:
        raise FairbloomError(f"{source}: {error}") from error
    _check_tensors(source, few, replace(task, groupings={}))


def _check_rows(source: str, examples: AnyExamples, count: int) -> None:
    rows = examples.rows
    if not len(examples):
        raise FairbloomError(f"{source}: there is none: give the client some, or leave it out")
    if rows is not None and (rows.dtype != torch.int64 or not 0 <= int(rows.min()) <= int(rows.max()) < count):
        raise FairbloomError(
            f"{source}: rows must be torch.int64 from 0 to {count - 1}, got {rows.dtype} from {rows.min().item()} to "
            f"{rows.max().item()}"
        )


def _check_tensors(source: str, examples: Examples, task: Task) -> None:
    targets = examples.targets
    inputs = _check_inputs(source, examples)
    for what, tensor in (*inputs.items(), ("targets", targets)):
        if not isinstance(tensor, Tensor):
            raise FairbloomError(f"{source}: {what} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.dim():
            raise FairbloomError(f"{source}: {what} must have examples as their first dimension, got a single number")
    for what, tensor in inputs.items():
        if len(tensor) != len(targets):
            raise FairbloomError(
                f"{source}: each input needs one target, got {len(tensor)} {what} and {len(targets)} targets"
            )
    _check_rows(source, examples, len(targets))
    _check_groups(source, examples.groups, len(targets), task)
    whole = {torch.int8, torch.int16, torch.int32, torch.uint8}
    if targets.dtype in whole:
        raise FairbloomError(f"{source}: targets are {targets.dtype}: make them torch.int64, by targets.long()")
    for what, tensor in inputs.items():
        if tensor.dtype == torch.float64 and any(each.dtype != torch.float64 for each in task.model().parameters()):
            raise FairbloomError(
                f"{source}: {what} are torch.float64, but the model is not: make them float32 by .float()"
            )
    for what, tensor in (*inputs.items(), ("targets", targets)):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            strange = int((~torch.isfinite(tensor.reshape(len(tensor), -1))).any(dim=1).nonzero()[0])
            raise FairbloomError(
                f"{source}: {what} hold NaN or infinite numbers, first in row {strange}: fill them in, or leave such "
                "examples out"
            )


def _check_inputs(source: str, examples: Examples) -> dict[str, Tensor]:
    """Return the tensors of the inputs by what an error calls them."""
    inputs = examples.inputs
    if isinstance(inputs, list):
        raise FairbloomError(
            f"{source}: inputs must be a torch.Tensor, got list; several tensors are a tuple, or a dict by the names "
            "of the model's arguments"
        )
    if not tensors_of(inputs):
        raise FairbloomError(f"{source}: inputs are an empty {type(inputs).__name__}: name one tensor at least")
    if strange := [name for name in names_of(inputs) if not isinstance(name, str)]:
        raise FairbloomError(
            f"{source}: inputs has the key {strange[0]!r}: tensors in a dict have the names of the model's arguments"
        )
    if names_of(inputs) == ("",):
        return {"inputs": inputs}  # type: ignore[dict-item] # one tensor
    return {f"inputs[{name}]": each for name, each in zip(names_of(inputs), tensors_of(inputs), strict=True)}


def _check_groups(source: str, groups: Tensor | None, count: int, task: Task) -> None:
    names = task.groupings
    if not names:
        return
    wanted = f"a torch.int64 tensor of shape ({count}, {len(names)}), the place of each example's group"
    if not isinstance(groups, Tensor) or groups.dtype != torch.int64:
        kind = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise FairbloomError(f"{source}: the task has groupings, so groups must be {wanted}, got {kind}")
    if groups.shape != (count, len(names)):
        raise FairbloomError(f"{source}: groups must be {wanted}, got shape {tuple(groups.shape)}")
    for column, (name, there) in zip(groups.unbind(1), names.items(), strict=True):
        if not 0 <= int(column.min()) <= int(column.max()) < len(there):
            raise FairbloomError(
                f"{source}: groups by {name} must be places from 0 to {len(there) - 1}, got {column.min().item()} to "
                f"{column.max().item()}: give examples without a group one of their own"
            )


def _kind(made: object) -> str:
    if isinstance(made, Splits):
        return f"Splits of {type(made.train).__name__.lower()}s"
    return f"{len(made)} things" if isinstance(made, tuple) else type(made).__name__
