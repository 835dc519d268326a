"""Local steps recorded as CUDA graphs: a step is launched at once, not operation by operation.

The first steps of each shape are ordinary ones. The next is taken twice, by itself and by the
recorded graph, and a graph that gives other numbers is not used. Whatever cannot be recorded runs
as without this module.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairbloom.errors import failure_reason
from fairbloom.tasks.generators import generators_of, restore_states
from fairbloom.tasks.inputs import Inputs, map_inputs, names_of, tensors_of
from fairbloom.tasks.optimizers import OF_PYTORCH, SGD

from .dropout import make_draws
from .work import STEP_FIELDS, LocalWork, unchanged

T = TypeVar("T")

# Ordinary steps of a shape before it is recorded; in these, obstacles are looked for.
WARM_UPS = 2

# Takes a step in place, on the mean loss of a batch of inputs and targets.
TakeStep = Callable[[Inputs, Tensor], None]

# Kinds of steps that are kept: that of the round's model, and that of a personal one. Work of
# another momentum is another kind.
MAX_KINDS = 8

# Graphs that are kept for a kind of step, each for a shape of batches.
MAX_GRAPHS = 32

# Marks operations with a result that the processor must know.
WAITS = torch.Tag.data_dependent_output


@cache  # PyTorch keeps 32 MiB or more for the products of each stream until the process ends
def capture_stream(device: torch.device) -> Any:
    """Return the stream on which all runs of this process record their steps on a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaRecorder:
    """Records steps as CUDA graphs, which share the memory of what they compute in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    @property
    def _stream(self) -> Any:
        return capture_stream(self.device)

    def warm_up(self, step: Callable[[], T]) -> T:
        """Take an ordinary step on the stream of the captures, as PyTorch asks before them."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = step()
        current.wait_stream(self._stream)
        return result

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        """Return a function that takes the step again; the step is not taken now.

        The function returns the tensors of `step`, which the next recorded step may overwrite.
        """
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            # Other threads, which write checkpoints, may call CUDA at the same time.
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(
                    graph,
                    pool=self._pool,
                    stream=self._stream,
                    capture_error_mode="thread_local",
                ),
            ):
                result = step()
        except Exception as error:
            # PyTorch leaves its stream, its memory, and a generator that refuses to draw.
            torch.cuda.set_stream(current)
            try:
                torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
            except RuntimeError:  # its use has ended in some versions: the next graph gets another
                self._pool = None
            for generator in generators_of(self.device)[1:]:
                usable = torch.Generator(self.device)
                usable.set_state(generator.get_state())
                generator.graphsafe_set_state(usable.graphsafe_get_state())
            raise error.__context__ or error from None  # the end of a capture repeats its failure

        def replay() -> T:
            graph.replay()
            return result

        return replay

    def release(self) -> None:
        """Free the memory of graphs that are not used any more."""
        self._pool = None
        torch.cuda.empty_cache()


class StepKind:
    """Steps that differ only in their batches and in the numbers of the tensors that they use.

    `graphs` has, by shape, the tensors from which a recorded step reads its batch, and the step.
    `rate` has the learning rate if it may change from one recorded step to the next.
    """

    def __init__(self, model: nn.Module, rate: Tensor | None = None) -> None:
        self.model = model
        self.rate = rate
        self._proved_at = 0.0
        self.graphs: dict[Hashable, tuple[list[Tensor], Callable[[], Any]]] = {}
        self.steps = Counter[Hashable]()

    def set_rate(self, rate: float) -> None:
        """Set the learning rate; steps of ten times the rate at which they were proved begin anew.

        The change of a step at a small rate is hidden by rounding.
        """
        if self.rate is not None:
            self.rate.fill_(rate)
        if rate > 10.0 * self._proved_at:
            self._proved_at = rate
            self.graphs.clear()
            self.steps.clear()

    def changing(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        raise NotImplementedError


K = TypeVar("K", bound=StepKind)


class FixedStep(StepKind):
    """One kind of step of a model, with the tensors that it uses besides its own and the batch."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tensor],
        work: LocalWork,
        rate: Tensor | None = None,
    ) -> None:
        super().__init__(model, rate)
        self.draws = make_draws(1, parameters[0].device)
        self._parameters = parameters
        self.optimizer = work.make_optimizer(parameters)
        self.velocity: list[Tensor] = []
        if self.optimizer is None and work.momentum > 0.0:
            self.velocity = [torch.zeros_like(parameter) for parameter in parameters]
        self.received: list[Tensor] = []
        if work.pull > 0.0:
            self.received = [torch.empty_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def begin(self, pulled_to: Sequence[Tensor], rate: float, seed: int) -> None:
        """Prepare the first step of a client, whose dropout draws by the seed."""
        self.draws.begin([seed])
        for kept, array in zip(self.received, pulled_to, strict=False):
            kept.copy_(array)
        for tensor in (*self.velocity, *states_of(self.optimizer)):
            tensor.zero_()
        self.set_rate(rate)

    def changing(self) -> list[Tensor]:
        """Return parameters, buffers, velocity, the optimizer's tensors and dropout's."""
        return [
            *self.draws.states,
            *self._parameters,
            *self.model.buffers(),
            *self.velocity,
            *states_of(self.optimizer),
        ]


class Capture:
    """The recorded steps of one model, which all clients of a process replay.

    A failure ends recording; a kind of step that is not supported does not end that of others.
    """

    def __init__(self, recorder: CudaRecorder) -> None:
        self._failure = ""
        self._unsupported = ""
        self._recorder = recorder
        self._kinds: dict[Hashable, Any] = {}

    @property
    def why_not(self) -> str:
        """Why steps are not recorded, or some of them, or ""."""
        return self._failure or self._unsupported

    def find_kind(
        self, key_of: Callable[[], Hashable], make: Callable[[], K], why_not: Callable[[], str]
    ) -> K | None:
        """Return the kind of step with this key; None if none of its steps can be recorded."""
        unsupported = why_not()
        self._unsupported = self._unsupported or unsupported
        if self._failure:
            self.release()
        if self._failure or unsupported:
            return None
        key = key_of()
        if key not in self._kinds:
            if len(self._kinds) == MAX_KINDS:
                self.release()
            try:
                self._kinds[key] = make()
            except Exception as error:  # there may be too little memory
                self._failure = failure_reason(error)
                return None
        kind: K = self._kinds[key]
        return kind

    def release(self) -> None:
        """Drop all recorded steps, and free their memory."""
        if self._kinds:
            self._kinds.clear()
            self._recorder.release()

    def wrap(self, fixed: FixedStep, step: TakeStep) -> TakeStep:
        """Return a function that takes a step of a client, by its graph if it has one."""
        if fixed not in self._kinds.values():
            return step

        def take(inputs: Inputs, targets: Tensor) -> None:
            def of_batch(batch: Sequence[Tensor]) -> None:
                left = iter(batch)
                step(map_inputs(inputs, lambda _: next(left)), batch[-1])

            self.take(fixed, names_of(inputs), [*tensors_of(inputs), targets], of_batch)

        return take

    def take(
        self,
        kind: StepKind,
        names: Hashable,
        batch: list[Tensor],
        step: Callable[[Sequence[Tensor]], T],
        times: int = 1,
    ) -> T:
        """Take a step with a batch of tensors of these names, by its graph if it has one.

        That may be the graph of another client, for which `step` computed the same. `step` may
        take several steps, `times`.
        """
        shape = (names, *((each.shape, each.dtype) for each in batch))
        if shape in kind.graphs:
            buffers, replay = kind.graphs[shape]
            torch._foreach_copy_(buffers, batch)
            result: T = replay()
            return result
        taken = kind.steps[shape]
        kind.steps[shape] += times
        if self._failure or len(kind.graphs) == MAX_GRAPHS:
            return step(batch)
        # Several steps need no more of them than one step, which has a graph.
        if taken < WARM_UPS and not (times > 1 and kind.graphs):
            return self._watch(kind, lambda: step(batch))
        return self._record(kind, shape, batch, step)

    def _watch(self, kind: StepKind, step: Callable[[], T]) -> T:
        """Take a step, and find what a graph cannot do again."""
        before = _attributes(kind.model)
        with FindObstacle(self._recorder.device) as obstacle:
            result = self._recorder.warm_up(step)
        if obstacle.found:
            self._failure = f"{obstacle.found} draws by itself, or the processor waits for it"
        elif [*map(id, before)] != [*map(id, _attributes(kind.model))]:
            self._failure = "the model keeps values from one step to the next"
        return result

    def _record(
        self,
        kind: StepKind,
        shape: Hashable,
        batch: Sequence[Tensor],
        step: Callable[[Sequence[Tensor]], T],
    ) -> T:
        """Take a step, and record it for the next ones of its shape."""
        changing = [tensor.detach() for tensor in kind.changing()]
        generators = generators_of(self._recorder.device)
        drawn = [generator.get_state() for generator in generators]
        try:
            buffers = [each.clone() for each in batch]
            before = [tensor.clone() for tensor in changing]
            after = [tensor.clone() for tensor in changing]
        except torch.OutOfMemoryError as error:
            self._failure = failure_reason(error)
            return step(batch)
        result = step(buffers)  # not of the batch: algorithms are chosen for these addresses
        drawn_after = [generator.get_state() for generator in generators]
        torch._foreach_copy_(after, changing)
        torch._foreach_copy_(changing, before)
        restore_states(generators, drawn)
        try:
            replay = self._recorder.record(lambda: step(buffers))
            replay()
            if not all(map(is_same_step, changing, after, before)):
                raise ValueError("a recorded step gives other numbers")
            kind.graphs[shape] = (buffers, replay)
        except Exception as error:  # PyTorch may raise anything; training goes on without a graph
            self._failure = failure_reason(error)
            kind.graphs.clear()  # they would draw from the generator's former state
            torch._foreach_copy_(changing, after)
            restore_states(generators, drawn_after)
        return result


class NoCapture(Capture):
    """Records no step: the processor launches each operation by operation."""

    def find_kind(
        self, key_of: Callable[[], Hashable], make: Callable[[], K], why_not: Callable[[], str]
    ) -> K | None:
        """Return None, at no cost."""
        return None


NO_CAPTURE = NoCapture(CudaRecorder(torch.device("cpu")))


def is_same_step(recorded: Tensor, ordinary: Tensor, before: Tensor) -> bool:
    """Return whether two steps changed a tensor alike: to 1e-3 of the change, and to rounding."""
    if not ordinary.is_floating_point():
        return torch.equal(recorded, ordinary)
    difference = recorded.double() - ordinary.double()
    change = ordinary.double() - before.double()
    rounding = torch.finfo(ordinary.dtype).eps * ordinary.double().norm()
    return bool(difference.norm() <= 1e-3 * change.norm() + rounding)


def find_step(
    capture: Capture,
    model: nn.Module,
    parameters: Sequence[Tensor],
    work: LocalWork,
    *,
    corrected: bool,
) -> FixedStep:
    """Return the kind of step that this work takes, a recorded one if it can be recorded.

    `corrected`: whether a rule corrects the gradients.
    """
    rate = make_rate(work, parameters[0])
    return capture.find_kind(
        lambda: (*map(id, parameters), work.learning_rate if rate is None else None, *key_of(work)),
        lambda: FixedStep(model, parameters, work, rate),
        lambda: find_unsupported(model, work, corrected=corrected),
    ) or FixedStep(model, parameters, work)


def make_rate(work: LocalWork, like: Tensor) -> Tensor | None:
    """Return a tensor for learning rates; None if the optimizer needs a number, as on the CPU."""
    if work.optimizer != SGD and like.device.type != "cuda":
        return None
    return torch.zeros((), dtype=like.dtype, device=like.device)


def states_of(optimizer: Optimizer | None) -> list[Tensor]:
    """Return the tensors of an optimizer's state."""
    states = () if optimizer is None else optimizer.state.values()
    return [each for each in tree_leaves([*map(dict, states)]) if isinstance(each, Tensor)]


class FindObstacle(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's own
    """Finds the first operation that a graph cannot do again.

    It moves data to or from the device, its result is one that the processor must know, or it does
    not draw from the generator that graphs draw from.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # PyTorch's own
        self.found = ""
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation of PyTorch."""
        made = func(*args, **kwargs or {})
        given = tree_leaves((args, kwargs, made))
        tensors = [each for each in given if isinstance(each, Tensor)]
        obstacle = len({tensor.device for tensor in tensors if tensor.dim()}) > 1
        obstacle |= WAITS in func.tags
        names = [argument.name for argument in func._schema.arguments]
        # Attention draws only with dropout, 0 where it is not given; its seed is on the processor.
        draws = "dropout_p" not in names or dict(zip(names, args, strict=False)).get("dropout_p")
        if draws and torch.Tag.nondeterministic_seeded in func.tags:
            obstacle |= any(isinstance(each, torch.Generator) for each in given)
            obstacle |= any(tensor.device != self._device for tensor in tensors)
        if obstacle and not self.found:
            self.found = str(func)
        return made


def key_of(work: LocalWork) -> tuple[object, ...]:
    """Return what changes the steps of some work, without its learning rate."""
    return tuple(getattr(work, name) for name in STEP_FIELDS if name != "learning_rate")


def find_unsupported(model: nn.Module, work: LocalWork, *, corrected: bool = False) -> str:
    """Return why this work cannot be recorded, or ""."""
    if corrected:
        return "a rule corrects the gradients"
    if work.time_budget < math.inf:
        return "time-budget stops between steps"
    if work.transform is not unchanged:
        return "a rule changes the loss"
    if work.optimizer not in OF_PYTORCH:
        return f"optimizer = {work.optimizer} is not one of PyTorch's"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "the model has hooks"
    return ""


def _attributes(model: nn.Module) -> list[object]:
    """Return the attributes of all modules, which are other objects once they were assigned.

    Measuring switches `training`, and the next step switches it back.
    """
    return [
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if name != "training" and not isinstance(value, dict)
    ]
