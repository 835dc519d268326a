"""The choice of the engine that computes a run's clients: a rule over model, batch, client sizes and machine.

The clock has no part in it, so that equal settings choose the same engine on equal machines, and on a processor give
equal numbers. On a graphics card, how many clients are stacked at once also follows from the memory that is free there.
What was chosen is recorded in the run folder, and a run that continues keeps it.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fairbloom.client.device import choose_device
from fairbloom.client.linear import linear_step
from fairbloom.client.local import load_task_and_model
from fairbloom.client.plan import global_work
from fairbloom.client.rules.registry import rules_of
from fairbloom.client.training import batch_of, outputs_of
from fairbloom.errors import FairbloomError, failure_reason
from fairbloom.protocol.settings import RunSettings, split_names
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Method
from fairbloom.rounds.roster import share
from fairbloom.tasks import Task
from fairbloom.tasks.task import AnyExamples

from .clients import LocalClients
from .dispatch.processes import can_fork
from .dispatch.workers import WorkerClients
from .loop import LoopClients
from .stacked.clients import StackedClients, find_unsupported
from .stacked.programs import UnstackableError, make_program
from .trial import check_first_step, evenly_spaced

FLOPS_PER_SECOND = 1.5e11
"""Floating-point operations that one processor core makes in a second; an estimate is enough."""

BYTES_PER_SECOND = 1e10
"""Bytes that one processor core reads or writes in a second where models are larger than its nearest memory."""

PASSES = 3
"""How often a step reads or writes each of a model's gradients and weights to take itself; stacked, a third of that."""

CALL_SECONDS = 1e-5
"""Seconds that PyTorch takes to call one layer forwards and backwards, whatever the size."""

STEP_SECONDS = 6e-5
"""Seconds that a step takes outside its layers: the batch, the loss and the update."""

LINEAR_STEP_SECONDS = 3e-5
"""Seconds of all calls of a step of one client with a written-out gradient."""

CLIENT_SECONDS = 2e-4
"""Seconds that a client takes outside its steps: to load the model, draw its order and check its reply."""

HAND_OVER_SECONDS = 2e-4
"""Seconds that it takes to hand a client to another process and its model back."""

BLOCK_BYTES = 2**26
"""Memory that stacked clients may take on the processor, without the round's updates."""


@dataclass(frozen=True)
class Choice:
    """How a run's clients are computed, and why, in words.

    Attributes
    ----------
    engine
        loop, stacked or workers.
    workers
        How many processes compute.
    threads
        With how many threads each.
    block
        The most clients that are stacked at once; 0 where none are.
    """

    engine: str
    reason: str
    workers: int = 1
    threads: int = 1
    block: int = 0

    def within(self, processors: int) -> "Choice":
        """Return the choice for a run that has this many processor cores to itself; the numbers stay the same."""
        if self.engine != "workers" or self.workers <= processors:
            return self
        if processors > 1:
            return replace(self, workers=processors)
        return Choice("loop", f"{self.reason}; but this run has one processor core to itself")

    def clients(self, method: Method, settings: Mapping[str, Any]) -> LocalClients:
        """Return the clients of a run, computed this way; raise FairbloomError where there is no such engine."""
        match self.engine:
            case "stacked":
                return StackedClients(method, settings, block=self.block)
            case "workers":
                return WorkerClients(method, settings, workers=self.workers)
            case "loop":
                return LoopClients(method, settings)
        raise FairbloomError(f"engine = {self.engine!r}: there are loop, stacked and workers: name one of them")


@dataclass(frozen=True)
class Effort:
    """What a round takes: clients, local steps, the bytes of a stacked client, and for a step the seconds of its parts.

    The parts are floating-point operations, reading and writing weights and gradients, and calling PyTorch for one
    client or for many at once.
    """

    cohort: int
    steps: int
    most_steps: int
    arithmetic: float
    update: float
    calls: float
    stacked_calls: float
    bytes: int

    @classmethod
    def of(cls, settings: RunSettings, task: Task, model: nn.Module, cohort: int) -> "Effort":
        """Return the effort of a round."""
        examples = sample_examples(task)
        work = global_work(settings, Terms(server_round=1))
        counts = [len(each) for each in examples]
        batch = batch_of(round(mean(counts)), work)
        steps = [work.steps or work.epochs * math.ceil(count / batch) for count in counts]
        flops, outputs = count_forward(model, task, examples[0])
        parameters = sum(each.nbytes for each in model.parameters() if each.requires_grad)
        calls = STEP_SECONDS + CALL_SECONDS * sum(1 for module in model.modules() if not list(module.children()))
        return cls(
            cohort=cohort,
            steps=math.ceil(mean(steps)),
            most_steps=max(steps),
            arithmetic=3 * flops * batch / FLOPS_PER_SECOND,
            update=PASSES * parameters / BYTES_PER_SECOND,
            calls=calls if linear_step(model, task, work, [], []) is None else LINEAR_STEP_SECONDS,
            stacked_calls=calls,
            bytes=3 * (parameters + outputs * batch),
        )

    @property
    def block(self) -> int:
        """The most clients that are stacked at once on the processor."""
        return max(1, min(self.cohort, BLOCK_BYTES // self.bytes))

    def loop(self) -> float:
        """Seconds of a round, one client after the other."""
        return self.cohort * (self.steps * (self.arithmetic + self.update + self.calls) + CLIENT_SECONDS)

    def workers(self, processes: int) -> float:
        """Seconds of a round in several processes."""
        return self.loop() * math.ceil(self.cohort / processes) / self.cohort + self.cohort * HAND_OVER_SECONDS

    def stacked(self) -> float:
        """Seconds of a round with stacked clients."""
        of_each = self.arithmetic + self.update / PASSES
        blocks = math.ceil(self.cohort / self.block)
        return self.steps * self.cohort * of_each + self.most_steps * blocks * self.stacked_calls


def choose(settings: RunSettings | Mapping[str, Any], processors: int) -> Choice:
    """Return how a run's clients are computed, on a machine with this many `processors` for runs.

    It raises FairbloomError when the data cannot be used, no client can take a step, or the wanted engine cannot be
    had.
    """
    settings = RunSettings.of(settings)
    task, model = load_task_and_model(settings)
    device = choose_device(settings.device)
    training = len(split_names(settings.training_clients)) or len(task.clients)
    cohort = 1 if settings.pooled else share(settings.fraction, training, 1)
    check_first_step(settings, task, model)
    global_work(settings, Terms(server_round=1))  # whose rule may be missing
    match settings.engine:
        case "loop":
            return Choice("loop", "it was asked for")
        case "workers":
            return Choice("workers", "it was asked for", workers=max(1, min(processors, cohort)))
    try:
        effort = Effort.of(settings, task, model, cohort)
    except FairbloomError:
        raise
    except Exception as error:  # whatever a user's model raises on a single example; a batch of them it can take
        return Choice("loop", f"the model {type(model).__name__} cannot take one example ({failure_reason(error)})")
    if settings.engine == "stacked":
        if why_not := why_unstackable(settings, task, model):
            return Choice("loop", f"stacked was asked for, but {why_not}")
        return Choice("stacked", "it was asked for", block=effort.block)
    if device.type != "cpu":
        if (why_not := why_unstackable(settings, task, model)) or cohort == 1:
            return Choice("loop", f"clients on {device} cannot be stacked: {why_not or 'a round has one'}")
        return Choice("stacked", f"clients on {device} are fastest side by side", block=block_on_device(device, effort))
    why_not = why_slow_side_by_side(model) or why_unstackable(settings, task, model)
    return choose_fastest(effort, why_not, min(processors, cohort) if can_fork() else 1)


def choose_fastest(effort: Effort, why_not_stacked: str, processes: int) -> Choice:
    """Return the engine that the estimate says is the fastest on the processor."""
    parts = (
        f"a step takes about {1e3 * effort.arithmetic:.2g} ms of arithmetic, {1e3 * effort.update:.2g} ms for the "
        f"update and {1e3 * effort.calls:.2g} ms for calls"
    )
    if not why_not_stacked and effort.stacked() <= min(effort.loop(), effort.workers(processes)):
        return Choice("stacked", f"{parts}; stacked clients share the calls and most of the update", block=effort.block)
    because = f"{why_not_stacked}, and {parts}" if why_not_stacked else parts
    if processes > 1 and effort.workers(processes) < effort.loop():
        return Choice("workers", f"{because}; {processes} processes share all of it", workers=processes)
    return Choice("loop", f"{because}; one process is enough for that")


def why_unstackable(settings: RunSettings, task: Task, model: nn.Module) -> str:
    """Return why clients cannot be stacked, "" where they can."""
    terms = Terms(server_round=1)
    rules = rules_of(settings, terms)
    if unsupported := find_unsupported(terms, rules, global_work(settings, terms, rules)):
        return f"stacked clients do not honour {unsupported}"
    try:
        make_program(model, task, sample_examples(task)[0])
    except UnstackableError as reason:
        return f"the model {type(model).__name__} cannot be stacked: {reason}"
    return ""


def why_slow_side_by_side(model: nn.Module) -> str:
    """Return why stacking a model that can be stacked is slow on the processor, "" where it is not."""
    if any(isinstance(module, _ConvNd | nn.RNNBase) for module in model.modules()):
        return "stacked convolutions and recurrent layers are slow on the processor"
    return ""


def sample_examples(task: Task) -> list[AnyExamples]:
    """Return the training examples of a few clients; unusable ones are left out."""
    found = []
    for name in evenly_spaced(task):
        with suppress(Exception):  # whatever a user's task raises: the client's reply says it
            examples = task.splits(name).train
            found += [examples] if len(examples) else []
    if not found:
        raise FairbloomError("no client has an example to train on, so no engine can be chosen: look at the data")
    return found


def count_forward(model: nn.Module, task: Task, examples: AnyExamples) -> tuple[float, int]:
    """Return the floating-point operations of an example's way through a model, and the bytes of the layers' outputs.

    Counted are linear and convolutional layers, or else two operations a parameter.
    """
    operations, kept = 0, 0

    def note(layer: nn.Module, _inputs: object, outputs: object) -> None:
        nonlocal operations, kept
        if isinstance(outputs, torch.Tensor):
            kept += outputs.nbytes
            if isinstance(layer, nn.Linear | _ConvNd):
                operations += 2 * outputs.numel() * layer.weight[0].numel()
            if isinstance(layer, _ConvNd):  # whose patches are laid out side by side for several clients at once
                kept += outputs.nbytes // layer.out_channels * layer.weight[0].numel()

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if not list(layer.children())]
    try:
        with torch.no_grad():
            outputs_of(model.eval(), examples[slice(0, 1)][0], task.output)
    finally:
        for hook in hooks:
            hook.remove()
    return float(max(operations, 2 * sum(parameter.numel() for parameter in model.parameters()))), kept


def block_on_device(device: torch.device, effort: Effort) -> int:
    """Return how many clients fit at once into half of what a graphics card has free, else as on the processor."""
    if device.type != "cuda":
        return effort.block
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(effort.cohort, free // 2 // effort.bytes))
