"""The choice of a run's engine: a rule over model and machine, and one timed step.

The clock decides between loop and workers alone, which give the same bits: equal settings give
equal numbers on equal machines. On a graphics card, how many clients are stacked at once also
follows from the memory that is free there. What was chosen is recorded in the run folder, and a run
that continues keeps it.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fairbloom.client.device import choose_device
from fairbloom.client.local import load_task_and_model
from fairbloom.client.plan import global_work
from fairbloom.client.rules.registry import rules_of
from fairbloom.client.training import batch_of, count_steps, outputs_of
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings, split_names
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Method
from fairbloom.rounds.sampling import share
from fairbloom.tasks import Task
from fairbloom.tasks.task import AnyExamples

from .clients import LocalClients
from .processes import can_fork
from .stacked.clients import StackedClients, find_unsupported
from .stacked.programs import UnstackableError, make_program
from .trial import TrialStep, try_first_step
from .workers import WorkerClients

# From this length of a round on, several processes are faster than one by more than they take to be
# started.
WORKERS_SECONDS = 0.5

# Memory that stacked clients may take on the processor, without the round's updates.
BLOCK_BYTES = 2**26

FIRST_ROUND = Terms(server_round=1)


@dataclass(frozen=True)
class Choice:
    """How a run's clients are computed, and why, in words.

    Attributes
    ----------
    engine
        loop, stacked or workers.
    workers
        How many processes compute.
    block
        The most clients that are stacked at once; 0 where none are.
    """

    engine: str
    reason: str
    workers: int = 1
    block: int = 0

    def within(self, processors: int) -> "Choice":
        """Return the choice for a run that has this many processor cores to itself.

        The numbers stay the same.
        """
        if self.engine != "workers" or self.workers <= processors:
            return self
        if processors > 1:
            return replace(self, workers=processors)
        return Choice("loop", f"{self.reason}; but this run has one processor core to itself")

    def clients(self, method: Method, settings: RunSettings) -> LocalClients:
        """Return the clients of a run, computed this way.

        Raise FairbloomError where there is no such engine.
        """
        match self.engine:
            case "stacked":
                return StackedClients(method, settings, block=self.block)
            case "workers":
                return WorkerClients(method, settings, workers=self.workers)
            case "loop":
                return LocalClients(method, settings)
        raise FairbloomError(
            f"engine = {self.engine!r}: there are loop, stacked and workers: name one of them"
        )


def choose(settings: RunSettings, processors: int) -> Choice:
    """Return how a run's clients are computed, on a machine with this many `processors` for runs.

    It raises FairbloomError when the data cannot be used, no client can take a step, or the wanted
    engine cannot be had.
    """
    task, model = load_task_and_model(settings)
    device = choose_device(settings.device)
    training = len(split_names(settings.training_clients)) or len(task.clients)
    cohort = 1 if settings.pooled else share(settings.fraction, training, 1)
    global_work(settings, FIRST_ROUND)  # whose rule may be missing
    # After CUDA is initialised, forked processes cannot train.
    may_fork = can_fork() and not torch.cuda.is_available()
    if settings.engine == "workers":
        if may_fork:
            try_first_step(settings, task, model)
        return Choice("workers", "it was asked for", workers=max(1, min(processors, cohort)))
    tried = try_first_step(settings, task, model)
    if settings.engine == "loop":
        return Choice("loop", "it was asked for")
    slow = device.type == "cpu" and any(
        isinstance(module, _ConvNd | nn.RNNBase) for module in model.modules()
    )
    if slow and settings.engine == "auto":
        why_not = "stacked convolutions and recurrent layers are slow on the processor"
    else:
        why_not = why_unstackable(settings, task, model, tried.examples)
    if settings.engine == "stacked":
        if why_not:
            return Choice("loop", f"stacked was asked for, but {why_not}")
        return Choice(
            "stacked",
            "it was asked for",
            block=block_of(settings, task, model, tried, cohort, device),
        )
    if cohort == 1:
        return Choice("loop", "a round has one client")
    if not why_not:
        reason = "the model can be computed for many clients at once"
        return Choice(
            "stacked", reason, block=block_of(settings, task, model, tried, cohort, device)
        )
    seconds = (
        cohort
        * count_steps(len(tried.examples), global_work(settings, FIRST_ROUND))
        * tried.seconds
    )
    because = f"{why_not}, and a round takes about {seconds:.2g} s"
    if (
        device.type == "cpu"
        and may_fork
        and min(processors, cohort) > 1
        and seconds > WORKERS_SECONDS
    ):
        workers = min(processors, cohort)
        return Choice("workers", f"{because}; {workers} processes share it", workers=workers)
    return Choice("loop", f"{because}; one process computes it")


def why_unstackable(
    settings: RunSettings, task: Task, model: nn.Module, examples: AnyExamples
) -> str:
    """Return why clients cannot be stacked, "" where they can.

    `examples` are those of any client.
    """
    rules = rules_of(settings, FIRST_ROUND)
    if unsupported := find_unsupported(
        FIRST_ROUND, rules, global_work(settings, FIRST_ROUND, rules)
    ):
        return f"stacked clients do not honour {unsupported}"
    try:
        make_program(model, task, examples)
    except UnstackableError as reason:
        return f"the model {type(model).__name__} cannot be stacked: {reason}"
    return ""


def block_of(
    settings: RunSettings,
    task: Task,
    model: nn.Module,
    tried: TrialStep,
    cohort: int,
    device: torch.device,
) -> int:
    """Return the most clients that fit into BLOCK_BYTES, or into half of a GPU's free memory."""
    outputs = 0

    def note(layer: nn.Module, _inputs: object, found: object) -> None:
        nonlocal outputs
        if isinstance(found, torch.Tensor):
            outputs += found.nbytes
            # several clients' patches are laid out side by side
            if isinstance(layer, _ConvNd):
                outputs += found.nbytes // layer.out_channels * layer.weight[0].numel()

    hooks = [
        layer.register_forward_hook(note) for layer in model.modules() if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            outputs_of(model.eval(), tried.examples[slice(0, 1)][0], task.output)
    finally:
        for hook in hooks:
            hook.remove()
    parameters = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    of_one = 3 * (
        parameters + outputs * batch_of(len(tried.examples), global_work(settings, FIRST_ROUND))
    )
    free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else BLOCK_BYTES
    return max(1, min(cohort, math.floor(free / of_one)))
