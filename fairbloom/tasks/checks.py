"""Check a user-defined task, and each client's examples when they are first loaded."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from itertools import pairwise

import torch
from torch import Tensor, nn

from fairbloom.errors import FairbloomError, ReportableError, place_of_function
from fairbloom.logs import log
from fairbloom.protocol.names import LONGEST_NAME, SEEDS, is_usable_name
from fairbloom.tables.preprocessing import Preprocessing
from fairbloom.text import quote, text_if

from .collated import CollatedExamples
from .generators import all_seeded
from .inputs import arguments_of, names_of, tensors_of
from .models import choose_output
from .probabilities import are_probabilities, takes_probabilities
from .task import AnyExamples, Examples, Splits, Task, contents, is_of_model

Loss = Callable[[Tensor, Tensor], Tensor]


def guard_task(
    name: str, task: Task, validation_share: float = 0.0, test_share: float = 0.2, seed: int = 0
) -> Task:
    """Return the task with checks: faulty splits, preprocessing or losses raise FairbloomError.

    The global generators are seeded whenever its model is made.
    """
    _check_names(name, task)
    on_training: list[str] = []
    probabilities: list[bool] = []  # known with the first examples

    def splits(client: str) -> Splits:
        made: object = task.splits(client)
        if isinstance(made, tuple) and len(made) == 2:
            made = Splits(*made)
        if not isinstance(made, Splits) or not all(
            isinstance(each, Examples | CollatedExamples) for each in made
        ):
            got = type(made).__name__
            if isinstance(made, Splits):
                got = f"Splits of {type(made.train).__name__}"
            raise FairbloomError(
                f"task = {name!r}: splits({client!r}) must return Splits of two Examples, got {got}"
            )
        if validation_share and made.validation is None:
            raise FairbloomError(
                f"validation-share = {validation_share:g}: task {name} sets no validation examples"
                " apart: let it return Splits(train, test, validation), with setup.validation_share"
                " of the examples"
            )
        if not test_share and len(made.test) > 0:
            raise FairbloomError(
                f"test-share = 0: task {name} sets {len(made.test)} test examples of {client}"
                " apart: let it train on all, by setup.test_share, or leave test-share out"
            )
        parts = {
            "training": made.train,
            "test": made.test if test_share else None,
            "validation": made.validation,
        }
        for part, examples in parts.items():
            if examples is None:
                continue
            for fault in _find_faults(examples, task):
                raise FairbloomError(
                    f"task = {name!r}: the {part} examples of client {client}: {fault}"
                )
        if not probabilities:
            probabilities.append(_has_probabilities(task, made.train))
            if probabilities == [True]:
                log.warning(
                    "task = %r: the model's outputs are probabilities, so one above 0.5 stands for"
                    " the second class: logits train better (binary_cross_entropy_with_logits)",
                    name,
                )
        tests_on_training = len(made.train) == len(made.test) and (
            contents(made.train) == contents(made.test)
        )
        if tests_on_training and client not in on_training:
            if not on_training:
                log.warning(
                    "task = %r: client %s tests on its training examples, so its scores say nothing"
                    " of others: let splits set some apart",
                    name,
                    client,
                )
            on_training.append(client)
        return made

    def model() -> nn.Module:
        with all_seeded(seed):
            return task.model()

    def preprocessing(client: str) -> Preprocessing:
        made: object = task.preprocessing(client) if task.preprocessing else None
        if not isinstance(made, Preprocessing):
            raise FairbloomError(
                f"task = {name!r}: preprocessing({client!r}) must return a Preprocessing, got"
                f" {type(made).__name__}; preprocessing('') is the one that all clients share"
            )
        return made

    return replace(
        task,
        model=model,
        splits=splits,
        loss=guard_loss(name, task.loss),
        preprocessing=preprocessing if task.preprocessing else None,
        has_probabilities=lambda: probabilities == [True],
        tested_on_training=lambda: on_training,
    )


def _check_names(name: str, task: Task) -> None:
    """Raise FairbloomError if clients, classes, groups or `seeds` are not named as they must be.

    No message shows what stands in place of a name: it may be a table.
    """
    of_names = {
        "clients": task.clients,
        "class_names": task.class_names,
        **{f"groupings[{by!r}]": groups for by, groups in task.groupings.items()},
    }
    for attribute, names in of_names.items():
        if isinstance(names, str):  # each letter would be a name
            raise FairbloomError(
                f"task = {name!r}: {attribute} = {names!r} must be a tuple of names: write"
                f" ({names!r},) if it is one name"
            )
    if not task.clients:
        raise FairbloomError(f"task = {name!r}: it has no clients: name one at least")
    for by, groups in task.groupings.items():
        different = {*groups}
        if "" in different or len(different) < len(groups):
            raise FairbloomError(
                f"task = {name!r}: groupings[{by!r}] has {len(groups)} names, {len(different)} of"
                " them different: each group needs a name of its own that is not empty, or None"
                " for examples without a value"
            )
    wrong: list[object] = [
        each for each in task.clients if not isinstance(each, str) or not is_usable_name(each)
    ]
    twice = [] if wrong else [one for one, other in pairwise(task.ascending) if one == other]
    faulty = wrong or twice
    if faulty:
        raise FairbloomError(
            f"task = {name!r}: its client {quote(faulty[0])} needs a name that no other client has:"
            f" a text of at most {LONGEST_NAME} printable characters"
        )
    if task.seeds not in ("", *SEEDS):
        raise FairbloomError(
            f"task = {name!r}: seeds = {quote(task.seeds)}: it is {' or '.join(map(repr, SEEDS))},"
            " by what the seed does to the data"
        )


def _has_probabilities(task: Task, examples: AnyExamples) -> bool:
    """Return whether the model's only output of an example is a probability, not a logit."""
    if is_of_model(task.loss):
        return False
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            inputs, targets = examples[slice(0, 3)]
            positional, named = arguments_of(inputs)
            model = task.model().eval()
            outputs = choose_output(model, model(*positional, **named), task.output)
    except Exception:  # the trial step reports any error of a user's model
        return False
    return outputs.shape[1:] in ((), (1,)) and (
        are_probabilities(outputs) or takes_probabilities(task.loss, outputs, targets)
    )


def guard_loss(name: str, loss: Loss) -> Loss:
    """Return the loss with a check that it returns one number for each example."""
    if is_of_model(loss):
        return loss

    @wraps(loss)  # others look through it, for example to see a cross-entropy
    def of_each(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = loss(outputs, targets)
        if losses.shape != targets.shape[:1]:
            file_and_line = place_of_function(loss)
            place = text_if(file_and_line, f" ({file_and_line})")
            raise FairbloomError(
                f"task = {name!r}: its loss{place} must return one number"
                f" for each of {len(targets)} examples, got shape {tuple(losses.shape)}: outputs"
                f" have shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}; a loss of"
                " PyTorch takes reduction='none'"
            )
        return losses

    return of_each


def _find_faults(examples: AnyExamples, task: Task) -> Iterator[str]:
    """Yield the faults of examples; only the first two examples of a Dataset are loaded."""
    if isinstance(examples, Examples):
        yield from _find_wrong_tensors(examples, task)
        return
    dataset = examples.dataset
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        yield (
            f"{type(dataset).__name__} must have a length and an example at each place, as a"
            " map-style Dataset has; what can only be iterated over cannot be drawn from"
        )
    yield from _find_wrong_rows(examples, len(dataset), task)
    try:
        few = Examples(*examples[slice(0, 2)])
    except ReportableError as error:
        yield str(error)
    else:
        yield from _find_faults(few, replace(task, groupings={}))


def _find_wrong_tensors(examples: Examples, task: Task) -> Iterator[str]:
    """Yield faults of the form of inputs and targets, of row indices, then of numbers."""
    inputs = examples.inputs
    if isinstance(inputs, list):
        yield (
            "inputs must be a torch.Tensor, got list; several tensors are a tuple, or a dict by the"
            " names of the model's arguments"
        )
    if not tensors_of(inputs):
        yield f"inputs are an empty {type(inputs).__name__}: name one tensor at least"
    yield from (
        f"inputs has the key {name!r}: tensors in a dict have the names of the model's arguments"
        for name in names_of(inputs)
        if not isinstance(name, str)
    )
    names = (f"inputs[{name}]" if name else "inputs" for name in names_of(inputs))
    tensors = {**dict(zip(names, tensors_of(inputs), strict=True)), "targets": examples.targets}
    for attribute, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            yield f"{attribute} must be a torch.Tensor, got {type(tensor).__name__}"
        if not tensor.dim():
            yield f"{attribute} must have examples as their first dimension, got a single number"
        if len(tensor) != len(examples.targets):
            yield (
                f"each input needs one target, got {len(tensor)} {attribute} and"
                f" {len(examples.targets)} targets"
            )
    yield from _find_wrong_rows(examples, len(examples.targets), task)
    # PyTorch's losses accept no other integers as classes.
    if examples.targets.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        yield f"targets are {examples.targets.dtype}: make them torch.int64, by targets.long()"
    for attribute, tensor in tensors.items():
        is_double = tensor.dtype == torch.float64 and attribute != "targets"
        if is_double and any(
            parameter.dtype != torch.float64 for parameter in task.model().parameters()
        ):
            yield (
                f"{attribute} are torch.float64, but the model is not: make them float32 by"
                " .float()"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            by_row = tensor.reshape(len(tensor), -1)
            is_finite = torch.isfinite(by_row).all(dim=1)
            yield (
                f"{attribute} hold NaN or infinite numbers, first in row"
                f" {int((~is_finite).nonzero()[0])}: fill them in, or leave such examples out"
            )


def _find_wrong_rows(examples: AnyExamples, count: int, task: Task) -> Iterator[str]:
    """Yield faults of a split's row indices among `count` examples, and of its group indices."""
    rows = examples.rows
    groups = examples.groups
    names = task.groupings
    if not len(examples):
        yield "there are none: give the client some, or leave it out"
    if rows is not None:
        fault = _find_wrong_places(rows, count)
        if fault:
            yield f"rows must be torch.int64 from 0 to {count - 1}, got {fault}"
    if not names:
        return
    if (
        not isinstance(groups, Tensor)
        or groups.dtype != torch.int64
        or groups.shape != (count, len(names))
    ):
        got = type(groups).__name__
        if isinstance(groups, Tensor):
            got = f"{groups.dtype} of shape {tuple(groups.shape)}"
        yield (
            f"the task has groupings, so groups must be a torch.int64 tensor of shape ({count},"
            f" {len(names)}), the place of each example's group, got {got}"
        )
        return
    for column, (name, members) in zip(groups.unbind(1), names.items(), strict=True):
        fault = _find_wrong_places(column, len(members))
        if fault:
            yield (
                f"groups by {name} must be places from 0 to {len(members) - 1}, got {fault}: give"
                " examples without a group one of their own"
            )


def _find_wrong_places(places: Tensor, count: int) -> str:
    """Return why a tensor, shape (n,), does not hold indices of `count` things; "" if it does.

    Its numbers are not shown: it may be a column of the data, given by mistake.
    """
    if places.dtype != torch.int64:
        return str(places.dtype)
    outside = int(((places < 0) | (places >= count)).sum())
    return text_if(outside, f"{outside} of {len(places)} outside")
