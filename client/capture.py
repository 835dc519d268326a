"""Local steps recorded as CUDA graphs: a step is launched at once, not operation by operation.

The first steps of each shape are ordinary ones. The next is taken twice, by itself and by the
recorded graph, and a graph that gives other numbers is not used. Whatever cannot be recorded runs
as without this module.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairbloom.errors import failure_reason
from fairbloom.tasks.inputs import Inputs, map_inputs, names_of, tensors_of
from fairbloom.tasks.optimizers import OF_PYTORCH

from .linear import Step
from .work import NON_STEP_FIELDS, LocalWork, unchanged

# Ordinary steps of a shape before it is recorded; in these, obstacles are looked for.
WARM_UPS = 2

# The fields of local work that change a step.
STEP_FIELDS = sorted({each.name for each in fields(LocalWork)} - NON_STEP_FIELDS)

# Graphs that are kept for one kind of step, each for a shape of batches; and kinds of steps: that
# of the round's model, and that of a personal one. Another learning rate is another kind.
MAX_KEPT = 8

# Operations that draw random numbers, or whose result the processor must know.
OBSTACLES = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output}


class CudaRecorder:
    """Records steps as CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, step: Callable[[], None]) -> None:
        """Take an ordinary step on a stream of its own, as PyTorch asks before a capture."""
        stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def record(self, step: Callable[[], None]) -> Callable[[], object]:
        """Return a function that takes the step again; the step is not taken now."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, which write checkpoints, may call CUDA at the same time.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            step()
        return graph.replay


class FixedStep:
    """One kind of step, with the tensors that it uses besides the model's and the batch.

    `graphs` has the tensors from which a recorded step reads its batch, and the recorded step.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], work: LocalWork) -> None:
        self.model = model
        self.arrays = [*parameters, *model.buffers()]
        self.optimizer = work.make_optimizer(parameters)
        self.velocity = [
            torch.zeros_like(each)
            for each in parameters
            if self.optimizer is None and work.momentum > 0.0
        ]
        self.received = [torch.empty_like(each) for each in parameters if work.pull > 0.0]
        self.graphs: dict[Hashable, tuple[list[Tensor], Callable[[], object]]] = {}
        self.steps = Counter[Hashable]()

    @torch.no_grad()
    def begin(self, pulled_to: Sequence[Tensor]) -> None:
        """Prepare the first step of a client."""
        for kept, array in zip(self.received, pulled_to, strict=False):
            kept.copy_(array)
        for tensor in self.states():
            tensor.zero_()

    def states(self) -> list[Tensor]:
        """Return the velocity and the optimizer's tensors."""
        states = () if self.optimizer is None else self.optimizer.state.values()
        return [
            each
            for each in tree_leaves([self.velocity, *map(dict, states)])
            if isinstance(each, Tensor)
        ]


class Capture:
    """The recorded steps of one model, which all clients of a process replay.

    `why_not` says why nothing is recorded any more; "" if nothing was in the way so far.
    """

    def __init__(self, recorder: CudaRecorder) -> None:
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
        kind = (*map(id, parameters), *(getattr(work, name) for name in STEP_FIELDS))
        if kind not in self._kinds:
            if len(self._kinds) == MAX_KEPT:
                self._kinds.clear()
            self._kinds[kind] = made = FixedStep(model, parameters, work)
            if made.optimizer is not None and parameters[0].device.type == "cuda":
                made.optimizer.param_groups[0]["capturable"] = True
        return self._kinds[kind]

    def wrap(self, fixed: FixedStep, step: Step) -> Step:
        """Return a function that takes a step, by its graph if it has one.

        That may be the graph of another client, for which `step` computed the same.
        """

        def take(inputs: Inputs, targets: Tensor) -> None:
            batch = [*tensors_of(inputs), targets]
            shape = (names_of(inputs), *((each.shape, each.dtype) for each in batch))
            if shape in fixed.graphs:
                buffers, replay = fixed.graphs[shape]
                torch._foreach_copy_(buffers, batch)
                replay()
                return
            fixed.steps[shape] += 1
            if self.why_not or len(fixed.graphs) == MAX_KEPT:
                step(inputs, targets)
            elif fixed.steps[shape] <= WARM_UPS:
                self._watch(fixed, lambda: step(inputs, targets))
            else:
                self._record(fixed, shape, step, inputs, targets)

        return take

    def _watch(self, fixed: FixedStep, step: Callable[[], None]) -> None:
        """Take a step, and find what a graph cannot do again."""
        before = _attributes(fixed.model)
        with FindObstacle() as obstacle:  # type: ignore[no-untyped-call]
            self._recorder.warm_up(step)
        if obstacle.found:
            self.why_not = f"{obstacle.found} draws random numbers, or the processor waits for it"
        elif [*map(id, before)] != [*map(id, _attributes(fixed.model))]:
            self.why_not = "the model keeps values from one step to the next"

    def _record(
        self, fixed: FixedStep, shape: Hashable, step: Step, inputs: Inputs, targets: Tensor
    ) -> None:
        """Take a step, and record it for the next ones of its shape."""
        own_inputs = map_inputs(inputs, torch.clone)
        batch = [*tensors_of(own_inputs), targets.clone()]
        changing = [each.detach() for each in (*fixed.arrays, *fixed.states())]
        before = [each.clone() for each in changing]
        step(inputs, targets)
        after = [each.clone() for each in changing]
        torch._foreach_copy_(changing, before)
        try:
            replay = self._recorder.record(lambda: step(own_inputs, batch[-1]))
            replay()
            for pair in zip(changing, after, strict=True):
                if not torch.allclose(*pair, rtol=1e-3, atol=1e-5, equal_nan=True):
                    raise ValueError("a recorded step gives other numbers")
            fixed.graphs[shape] = (batch, replay)
        except Exception as error:  # PyTorch may raise anything; training goes on without a graph
            self.why_not = failure_reason(error)
            torch._foreach_copy_(changing, after)


class FindObstacle(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's own
    """Finds the first of the obstacles, or operation that moves data to or from the device."""

    found = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation of PyTorch."""
        made = func(*args, **kwargs or {})
        devices = {
            each.device
            for each in tree_leaves((args, kwargs, made))
            if isinstance(each, Tensor) and each.dim()
        }
        if not self.found and (len(devices) > 1 or OBSTACLES.intersection(func.tags)):
            self.found = str(func)
        return made


def _find_unsupported(model: nn.Module, work: LocalWork) -> str:
    """Return why this work cannot be recorded, or ""."""
    reasons = {
        "time-budget stops between steps": work.time_budget < math.inf,
        "a rule changes the loss": work.transform is not unchanged,
        f"optimizer = {work.optimizer} is not one of PyTorch's": work.optimizer not in OF_PYTORCH,
        "the model has hooks": any(
            each._forward_hooks or each._forward_pre_hooks for each in model.modules()
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _attributes(model: nn.Module) -> list[object]:
    """Return the attributes of all modules, which are other objects once they were assigned."""
    return [
        value
        for module in model.modules()
        for value in vars(module).values()
        if not isinstance(value, dict)
    ]
