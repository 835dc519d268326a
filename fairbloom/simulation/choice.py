"""The choice of a run's engine: a rule over the model and the device.

No clock decides, so that equal settings give equal numbers on equal machines. On a GPU, the number
of clients that are stacked at once also depends on its free memory. The choice is recorded in the
run folder, and a continued run keeps it.
"""

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fairbloom.client.capture import Capture, CudaRecorder
from fairbloom.client.device import FLOAT32, check_device, choose_device
from fairbloom.client.local import load_task_and_model
from fairbloom.client.plan import global_work
from fairbloom.client.rules.registry import rules_of
from fairbloom.client.training import measure, outputs_of, train
from fairbloom.client.work import batch_of, batch_order
from fairbloom.errors import FairbloomError, failure_reason
from fairbloom.logs import log
from fairbloom.protocol.private import SIMULATED
from fairbloom.protocol.settings import RunSettings, split_names
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Method
from fairbloom.rounds.sampling import share
from fairbloom.tasks import Task
from fairbloom.tasks.models import MODELS
from fairbloom.tasks.probabilities import are_probabilities, ignores_shift
from fairbloom.tasks.task import AnyExamples, is_of_model
from fairbloom.text import text_if

from .clients import LocalClients
from .stacked.clients import StackedClients, find_unsupported
from .stacked.programs import UnstackableError, make_program

# Memory that stacked clients may take on the CPU, without the round's updates.
BLOCK_BYTES = 2**26

# Local steps are recorded as CUDA graphs.
RECORDED = "steps"

FIRST_ROUND = Terms(server_round=1)


@dataclass(frozen=True)
class Choice:
    """How a run's clients are computed, with the reason as text.

    Attributes
    ----------
    engine
        loop or stacked.
    block
        Most clients that are stacked at once; 0 without stacking.
    recorded
        On a CUDA device, "steps" if the local steps of loop and stacked are recorded as CUDA
        graphs, or the reason why they are not, or not any more.
    """

    engine: str
    reason: str
    block: int = 0
    recorded: str = ""

    def clients(self, method: Method, settings: RunSettings) -> LocalClients:
        """Return the clients of a run, computed this way.

        Raise FairbloomError for an unknown engine, as a damaged engine.json may name.
        """
        match self.engine:
            case "loop":
                clients = LocalClients(method, settings)
            case "stacked":
                clients = StackedClients(method, settings, block=self.block)
            case _:
                raise FairbloomError(
                    f"engine = {self.engine!r}: there are loop and stacked: name one of them"
                )
        if self.recorded == RECORDED:
            clients.capture = Capture(CudaRecorder(clients.device))
        return clients


def choose(settings: RunSettings) -> Choice:
    """Return how a run's clients are computed on this machine.

    Raise FairbloomError if the data cannot be used, or no client can take a step.
    """
    task, model = load_task_and_model(settings)
    device = choose_device(settings.device)
    training = len(split_names(settings.training_clients)) or len(task.clients)
    cohort = 1 if settings.pooled else share(settings.fraction, training, 1)
    examples = try_first_step(settings, task, model)
    note_full_precision(settings.precision, device, model)
    if settings.privacy__mode == SIMULATED:
        return Choice("loop", "each client adds its own noise")
    recorded = text_if(device.type == "cuda", RECORDED)

    def loop(reason: str) -> Choice:
        return Choice("loop", reason, recorded=recorded)

    def stacked(reason: str) -> Choice:
        return Choice(
            "stacked",
            reason,
            block=min(cohort, fitting_clients(settings, task, model, examples, device)),
            recorded=recorded,
        )

    if settings.engine == "loop":
        return loop("it was asked for")
    slow = device.type == "cpu" and any(
        isinstance(module, _ConvNd | nn.RNNBase) for module in model.modules()
    )
    if slow and settings.engine == "auto":
        why_not = "stacked convolutions and recurrent layers are slow on the processor"
    else:
        why_not = why_unstackable(settings, task, model, examples)
    if settings.engine == "stacked":
        if why_not:
            return loop(f"stacked was asked for, but {why_not}")
        return stacked("it was asked for")
    if cohort == 1:
        return loop("a round has one client")
    if why_not:
        return loop(why_not)
    return stacked("the model can be computed for many clients at once")


def why_unstackable(
    settings: RunSettings, task: Task, model: nn.Module, examples: AnyExamples
) -> str:
    """Return why clients cannot be stacked, or ""; `examples` are any client's."""
    rules = rules_of(settings, FIRST_ROUND)
    work = global_work(settings, FIRST_ROUND, rules)
    unsupported = find_unsupported(FIRST_ROUND, rules, work)
    if unsupported:
        return f"stacking does not support {unsupported}"
    try:
        program = make_program(model, task, examples)
    except UnstackableError as reason:
        return f"the model {type(model).__name__} cannot be stacked: {reason}"
    if not program.draws_alike and settings.engine != "stacked":
        return "stacked clients draw other numbers for dropout than the loop does on this device"
    return ""


def fitting_clients(
    settings: RunSettings,
    task: Task,
    model: nn.Module,
    examples: AnyExamples,
    device: torch.device,
) -> int:
    """Return how many clients, at least 1, fit into BLOCK_BYTES or half of a GPU's free memory."""
    output_bytes = 0

    def add_bytes(layer: nn.Module, _inputs: object, output: object) -> None:
        nonlocal output_bytes
        if isinstance(output, torch.Tensor):
            output_bytes += output.nbytes
            # A convolution over several clients also stores the patches of its inputs.
            if isinstance(layer, _ConvNd):
                output_bytes += output.nbytes // layer.out_channels * layer.weight[0].numel()

    hooks = [
        layer.register_forward_hook(add_bytes)
        for layer in model.modules()
        if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            outputs_of(model.eval(), examples[slice(0, 1)][0], task.output)
    finally:
        for hook in hooks:
            hook.remove()
    parameter_bytes = sum(
        parameter.nbytes for parameter in model.parameters() if parameter.requires_grad
    )
    batch = batch_of(len(examples), global_work(settings, FIRST_ROUND))
    bytes_per_client = 3 * (parameter_bytes + output_bytes * batch)
    free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else BLOCK_BYTES
    return max(1, math.floor(free / bytes_per_client))


def note_full_precision(precision: str, device: torch.device, model: nn.Module) -> None:
    """Log that PyTorch itself would take TF32 for the model's convolutions on a CUDA device."""
    is_full = precision == FLOAT32 and device.type == "cuda"
    if is_full and any(isinstance(module, _ConvNd) for module in model.modules()):
        log.info(
            "precision = float32: convolutions have full precision; PyTorch's default on a card is"
            " TF32, which is faster: --set precision=tf32"
        )


# The trial step -----------------------------------------------------------------------------------


def try_first_step(settings: RunSettings, task: Task, model: nn.Module) -> AnyExamples:
    """Take two local steps at the first client that can do so; return its training examples.

    So an error in a user's code is reported once, before the first round: if no client can, raise
    FairbloomError with the error of the first one. The model is unchanged.
    """
    work = replace(global_work(settings, FIRST_ROUND), steps=2)  # raises without the client rule
    try:
        tried = copy.deepcopy(model)
    except Exception:  # some models cannot be copied; each round loads the received weights anyway
        tried = model
    reasons: dict[str, str] = {}
    for name in task.clients:
        try:
            splits = task.splits(name)
            train(
                tried, task, splits.train, replace(work, random=batch_order(settings.seed, 1, name))
            )
            if len(splits.test):
                measure(tried, task, splits.test)
            if settings.model not in MODELS:  # ours with a softmax repeat published numbers
                warn_of_softmax(task, tried, splits.train)
            return splits.train
        except Exception as error:
            check_device(error)
            reasons[name] = failure_reason(error)
    (name, reason), *others = reasons.items()
    too = text_if(others, f", as did {len(others)} others")
    raise FairbloomError(
        f"{reason} (a trial step of client {name} failed before the first round{too}; fairbloom run"
        " --debug shows the whole traceback)"
    )


def warn_of_softmax(task: Task, model: nn.Module, examples: AnyExamples) -> None:
    """Log that a model ends in a softmax or a sigmoid, and that the loss has one of its own."""
    if is_of_model(task.loss):
        return
    inputs, targets = examples[slice(0, 2)]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        outputs = outputs_of(model.eval(), inputs, task.output)
    if are_probabilities(outputs) and ignores_shift(task.loss, outputs, targets):
        log.warning(
            "the model, %s, ends in a softmax or a sigmoid, and the loss takes the softmax of its"
            " outputs again: leave the model's out, as outputs are logits (docs/your-model.md)",
            type(model).__name__,
        )
