"""Local steps recorded as CUDA graphs: a step is launched at once, not operation by operation.

The first steps of each shape are ordinary ones. The next is taken twice, by itself and by the
recorded graph, and a graph that gives other numbers is not used. Whatever cannot be recorded runs
as without this module.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairbloom.errors import failure_reason
from fairbloom.logs import log
from fairbloom.tasks.inputs import Inputs, map_inputs, names_of, tensors_of
from fairbloom.tasks.models import HeldTensors
from fairbloom.tasks.optimizers import OF_PYTORCH

from .device import generators_of
from .linear import Step
from .work import LocalWork, set_fields, step_fields, unchanged

# Ordinary steps of a shape before it is recorded: PyTorch asks for some, and the first one is
# watched for obstacles.
WARM_UPS = 2

# Shapes of which graphs are kept for one kind of step; steps of further shapes are ordinary ones.
MAX_SHAPES = 8

# Kinds of steps whose graphs are kept: one for the round's model, one for a personal model. A
# learning rate that changes makes a new kind in each round.
MAX_KINDS = 4

# Operations with a result that the processor must know, or whose size it must know.
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Recorder(Protocol):
    """Records steps. Tests have one without a CUDA device."""

    def warm_up(self, step: Callable[[], None]) -> None:
        """Take an ordinary step."""

    def record(self, step: Callable[[], None]) -> Callable[[], object]:
        """Return a function that takes the step again; the step is not taken now."""


class CudaRecorder:
    """Records steps as CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, step: Callable[[], None]) -> None:
        """Take an ordinary step on a stream of its own, as PyTorch asks before a capture."""
        stream = torch.cuda.Stream(self._device)
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            step()
        current.wait_stream(stream)

    def record(self, step: Callable[[], None]) -> Callable[[], object]:
        """Return the replay of a step's graph."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, which write checkpoints, may call CUDA at the same time.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            step()
        return graph.replay


class Graph(NamedTuple):
    """A recorded step: the tensors that it reads a batch from, and a function that takes it."""

    batch: Sequence[Tensor]
    replay: Callable[[], object]


class FixedStep:
    """One kind of step, with the tensors that it uses besides the model's and the batch."""

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], work: LocalWork) -> None:
        self.model = model
        self.parameters = parameters
        self.received: list[Tensor] = []
        if work.pull > 0.0:
            self.received = [torch.zeros_like(each) for each in parameters]
        self.optimizer = work.make_optimizer(parameters)
        self.velocity: list[Tensor] = []
        if self.optimizer is None and work.momentum > 0.0:
            self.velocity = [torch.zeros_like(each) for each in parameters]
        self.graphs: dict[Hashable, Graph] = {}
        self.steps = Counter[Hashable]()

    def make_capturable(self) -> None:
        """Let the optimizer count its steps on the device, as graphs need it."""
        if self.optimizer is not None and self.parameters[0].device.type == "cuda":
            for group in self.optimizer.param_groups:
                group["capturable"] = True

    @torch.no_grad()
    def begin(self, pulled_to: Sequence[Tensor]) -> None:
        """Prepare the first step of a client."""
        for kept, array in zip(self.received, pulled_to, strict=False):
            kept.copy_(array)
        for tensor in (*self.velocity, *_states_of(self.optimizer)):
            tensor.zero_()

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that a step may change."""
        states = _states_of(self.optimizer)
        return [*self.parameters, *self.model.buffers(), *self.velocity, *states]


class Capture:
    """The recorded steps of one model, which all clients of a process replay.

    `why_not` says why nothing is recorded any more; "" if nothing was in the way so far.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.why_not = ""
        self._recorder = recorder
        self._kinds: dict[Hashable, FixedStep] = {}

    def find_kind(
        self, model: nn.Module, parameters: Sequence[Tensor], work: LocalWork
    ) -> FixedStep | None:
        """Return the kind of step that this work takes; None if none of them can be recorded."""
        self.why_not = self.why_not or _find_unsupported(model, work)
        if self.why_not:
            return None
        set_here = set_fields(work)
        about = tuple((name, set_here[name]) for name in sorted(step_fields(work)))
        kind = (model, *map(id, parameters), work.learning_rate, *about)
        if kind not in self._kinds:
            if len(self._kinds) == MAX_KINDS:
                self._kinds.pop(next(iter(self._kinds)))
            self._kinds[kind] = FixedStep(model, parameters, work)
            self._kinds[kind].make_capturable()
        return self._kinds[kind]

    def wrap(self, fixed: FixedStep, step: Step, form: str) -> Step:
        """Return a function that takes a step, by its graph if it has one.

        Equal forms compute equal numbers: the step of another client may be replayed.
        """

        def take(inputs: Inputs, targets: Tensor) -> None:
            batch = (*tensors_of(inputs), targets)
            shape = (form, names_of(inputs), *((each.shape, each.dtype) for each in batch))
            graph = fixed.graphs.get(shape)
            if graph is not None:
                for buffer, tensor in zip(graph.batch, batch, strict=True):
                    buffer.copy_(tensor)
                graph.replay()
                return
            fixed.steps[shape] += 1
            if self.why_not or len(fixed.graphs) == MAX_SHAPES:
                step(inputs, targets)
            elif fixed.steps[shape] == 1:
                self._watch(fixed, lambda: step(inputs, targets))
            elif fixed.steps[shape] <= WARM_UPS:
                self._recorder.warm_up(lambda: step(inputs, targets))
            else:
                self._record(fixed, shape, step, inputs, targets)

        return take

    def _watch(self, fixed: FixedStep, step: Callable[[], None]) -> None:
        """Take a step, and find what a graph cannot do again."""
        model = fixed.model
        generators = generators_of(fixed.parameters[0].device)
        held = HeldTensors(model)
        before = _values_of_python(model)
        states = [each.get_state() for each in generators]
        with FindWaiting() as waiting:
            self._recorder.warm_up(step)
        drawn = [each.get_state() for each in generators]
        if waiting.found:
            self._refuse(f"a step calls {waiting.found}, whose result the processor waits for")
        elif not all(map(torch.equal, states, drawn)):
            self._refuse("a step draws random numbers")
        elif _values_of_python(model) != before or held.has_other_attributes():
            self._refuse("a step changes values that the model keeps outside its buffers")

    def _record(
        self, fixed: FixedStep, shape: Hashable, step: Step, inputs: Inputs, targets: Tensor
    ) -> None:
        """Take a step, and record it for the next ones of its shape."""
        batch = [each.clone() for each in (*tensors_of(inputs), targets)]
        own = iter(batch)
        own_inputs = map_inputs(inputs, lambda _: next(own))
        before = _copies(fixed.changing)
        step(inputs, targets)
        after = _copies(fixed.changing)
        _restore(fixed.changing, before)
        try:
            replay = self._recorder.record(lambda: step(own_inputs, batch[-1]))
            replay()
            pairs = zip(fixed.changing, after, strict=True)
            if all(torch.allclose(*pair, rtol=1e-3, atol=1e-5, equal_nan=True) for pair in pairs):
                fixed.graphs[shape] = Graph(batch, replay)
                return
            self._refuse("a recorded step gives other numbers")
        except Exception as error:  # PyTorch may raise anything; without a graph, training goes on
            self._refuse(failure_reason(error))
        _restore(fixed.changing, after)

    def _refuse(self, reason: str) -> None:
        self.why_not = reason
        log.warning("local steps are not recorded as CUDA graphs: %s", reason)


class FindWaiting(TorchDispatchMode):
    """Finds the first operation that waits for the device, or moves data to or from it."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation of PyTorch."""
        made = func(*args, **kwargs or {})
        tensors = [each for each in tree_leaves((args, kwargs, made)) if isinstance(each, Tensor)]
        waits = bool(WAITING.intersection(func.tags))
        if func is torch.ops.aten.index.Tensor:  # its size is known without masks
            waits = any(each.dtype in (torch.bool, torch.uint8) for each in tensors[1:-1])
        if not self.found and (waits or len({each.device for each in tensors if each.dim()}) > 1):
            self.found = str(func)
        return made


def _find_unsupported(model: nn.Module, work: LocalWork) -> str:
    """Return why this work cannot be recorded, or ""."""
    if work.time_budget < math.inf:
        return "time-budget stops between steps"
    if work.transform is not unchanged:
        return "a rule changes the loss"
    if work.optimizer not in OF_PYTORCH:
        return f"optimizer = {work.optimizer} is your own"
    if any(each._forward_hooks or each._forward_pre_hooks for each in model.modules()):
        return "the model has hooks"
    return ""


def _values_of_python(model: nn.Module) -> object:
    """Return what a step may change in Python, unseen by a graph."""
    numbers = [
        (name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float)
    ]
    numpy_state = np.random.get_state()  # a user's model may draw from it
    return numbers, random.getstate(), repr(numpy_state)


def _states_of(optimizer: Optimizer | None) -> list[Tensor]:
    states = [] if optimizer is None else [*optimizer.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


@torch.no_grad()
def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
