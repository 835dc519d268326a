"""Whether a model is the same each time it is made: in one process, and in all of a run's.

A module may draw from a generator of its own when it is made, or follow the order of a set or the
time. What it then holds outside its state_dict is nowhere stored, so that another process has
another model with the same weights.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.system.values import decode_as
from fairbloom.tables.preprocessing import TABLE
from fairbloom.text import join_first

from ..generators import all_seeded
from ..inputs import Inputs, arguments_of, names_of, tensors_of
from ..task import Task
from .held import HeldTensors, has_values
from .registry import choose_output

# The shape and the type of an example's inputs, by name: {"": ((8,), "float32")}.
Form = Mapping[str, tuple[tuple[int, ...], str]]

# A tensor as it is stored: Σ|x|, Σx and Σ x·cos k over its numbers x, to seven digits. In another
# order, they have another last sum.
Sums = tuple[float, float, float]

# How far sums may be apart, as a share of Σ|x|. In one process a model computes the same numbers.
# Other processors round otherwise: with and without AVX, sums of float32 outputs differ by 1e-6 for
# a ResNet, and by 9e-6 after a GroupNorm of single pixels. A model with other random numbers is
# further away by orders of magnitude.
HERE = 1e-6
ELSEWHERE = 1e-4

# How far made-up weights move for the second outputs, in units of their type's precision: outputs
# that this changes by more than ELSEWHERE depend on how a processor rounds.
ROUNDED = 4.0

# The examples of the batch that is computed.
EXAMPLES = 2

# A prime, so that rows of a matrix do not repeat.
PERIOD = 4093

# So many of them are summed up at a time, in float64: a buffer may be large.
PERIODS = 256

REMEDY = (
    "make it only from its arguments and from random numbers of PyTorch, NumPy and Python, of which"
    " the global generators are seeded with the run's seed, not from the time or the order of a set"
)


@dataclass(frozen=True)
class Made:
    """What a model computes and keeps apart from its state_dict.

    Attributes
    ----------
    buffers
        The buffers that are not persistent, by name.
    form
        The form of the examples of which there are outputs.
    outputs
        The outputs in evaluation of made-up examples, with made-up parameters: initial ones depend
        on PyTorch's version, and trained ones on the run. None if they cannot be computed.
    """

    buffers: Mapping[str, Sums]
    form: Form
    outputs: Sums | None

    @classmethod
    def of(cls, model: nn.Module, form: Form, output: str = "") -> Self:
        """Return how a model is made; it is not changed. `output` is the task's."""
        stored = model.state_dict()
        buffers = {
            name: _sum_up(buffer)
            for name, buffer in model.named_buffers()
            if name not in stored and has_values(buffer)
        }
        outputs = compute_outputs(model, form, output, made_up=True)
        return cls(buffers, form, None if outputs is None else _sum_up(outputs))

    def find_differences(self, other: "Made") -> list[str]:
        """Return in words what differs; outputs of other examples are not compared."""
        names = sorted({*self.buffers, *other.buffers})
        found = [
            name for name in names if not _is_near(self.buffers.get(name), other.buffers.get(name))
        ]
        if (
            self.form == other.form
            and self.outputs is not None
            and other.outputs is not None
            and not _is_near(self.outputs, other.outputs)
        ):
            found.append("outputs")
        return found

    def explain_difference(self, there: "Made", source: str) -> str:
        """Return in a sentence what differs from a model that was made in `source`, or ""."""
        found = self.find_differences(there)
        if not found:
            return ""
        return (
            f"the model that is made here is not that of {source}: its {join_first(found)} differ,"
            f" which no stored array has: {REMEDY}"
        )

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=2).encode()

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        """Return what `encode` wrote; raise ValueError or KeyError for another text."""
        return decode_as(cls, json.loads(text))


# The form of examples -----------------------------------------------------------------------------


def form_of(inputs: Inputs) -> Form:
    """Return the form of examples."""
    return {
        name: (tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in zip(names_of(inputs), tensors_of(inputs), strict=True)
    }


def form_of_task(task: Task) -> Form:
    """Return the form of a task's examples if it is known without them, else {}."""
    if task.preprocessing is None:
        return {}
    made = task.preprocessing("")
    return {"": ((made.width,) if made.form == TABLE else made.shape, "float32")}


def make_up_examples(form: Form) -> Inputs:
    """Return made-up examples of a form: waves, and zeros where whole numbers may be indices."""
    tensors = {}
    for name, (shape, kind) in form.items():
        dtype = getattr(torch, kind)
        tensor = torch.zeros(EXAMPLES, *shape, dtype=dtype)
        if dtype.is_floating_point:
            wave = _wave(tensor.numel())
            tensor = wave.reshape(tensor.shape).to(dtype)
        tensors[name] = tensor
    if [*tensors] == [""]:
        return tensors[""]
    if all(name.isdecimal() for name in tensors):
        return tuple(tensors.values())
    return tensors


def _wave(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return as many numbers from −1 to 1; equal ones come only after PERIOD."""
    period = torch.arange(1, PERIOD + 1, dtype=torch.float64).cos().to(dtype)
    return period.repeat(count // PERIOD + 1)[:count]


def _make_up_state(model: nn.Module) -> dict[str, Tensor]:
    """Return made-up numbers for all that a state_dict has, as a received model brings its own.

    Parameters keep a network's numbers at their size. Buffers are ones; whole numbers, which may be
    indices, are zeros.
    """
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state[name] = _make_up_weights(parameter)
    stored = model.state_dict()
    for name, buffer in model.named_buffers():
        if name in stored and has_values(buffer):
            is_whole = not buffer.is_floating_point() and buffer.dtype != torch.bool
            state[name] = torch.zeros_like(buffer) if is_whole else torch.ones_like(buffer)
    return state


def _make_up_weights(parameter: Tensor) -> Tensor:
    """Return waves of the size 1/√inputs, or around 1 for a vector; of whole numbers, zeros."""
    if not parameter.is_floating_point():
        return torch.zeros_like(parameter)
    wave = _wave(parameter.numel(), parameter.dtype).reshape(parameter.shape)
    if parameter.dim() < 2:
        return wave.div_(10.0).add_(1.0)
    inputs = parameter.numel() / max(1, parameter.shape[0])
    return wave.div_(max(1.0, inputs) ** 0.5)


def _round_otherwise(state: Mapping[str, Tensor]) -> None:
    """Change made-up numbers, in place, by a few units of their type's precision."""
    for array in state.values():
        if array.is_floating_point():
            step = _wave(array.numel(), array.dtype).mul_(ROUNDED * torch.finfo(array.dtype).eps)
            array.mul_(step.add_(1.0).reshape(array.shape))


# What a model computes ----------------------------------------------------------------------------


@torch.no_grad()
def compute_outputs(
    model: nn.Module, form: Form, output: str, *, made_up: bool = False
) -> Tensor | None:
    """Return a model's outputs in evaluation, with its own arrays or with made-up ones.

    None if the form is unknown, the model cannot be called so, an output is not finite, or a second
    call returns others, by a generator of its own or, of made-up arrays, by how they are rounded.
    The model's tensors and modes are then as before.
    """
    if not form or any(map(is_lazy, model.parameters())):  # a call would give these their values
        return None
    modes = [(module, module.training) for module in model.modules()]
    held = HeldTensors(model)
    state = _make_up_state(model) if made_up else {}

    def call() -> Tensor:
        positional, named = arguments_of(make_up_examples(form))
        with all_seeded(0):
            answer = functional_call(model, state, positional, named)
        held.restore()
        return choose_output(model, answer, output).double().cpu()

    try:
        model.eval()
        outputs = call()
        _round_otherwise(state)
        is_repeated = _equals(call(), outputs, ELSEWHERE if made_up else HERE)
    except Exception:  # training reports any error of a user's model
        return None
    finally:
        held.restore()
        for module, was_training in modes:
            module.training = was_training
    return outputs if is_repeated and bool(outputs.isfinite().all()) else None


def _equals(one: Tensor, other: Tensor, share: float) -> bool:
    """Return whether outputs have one shape, and differ by at most this share of their norm."""
    return one.shape == other.shape and bool((one - other).norm() <= share * other.norm())


def _sum_up(tensor: Tensor) -> Sums:
    totals = torch.zeros(3, dtype=torch.float64)
    for numbers in torch.split(_as_real(tensor), PERIODS * PERIOD):
        values = torch.nan_to_num(numbers.double(), nan=0.0, posinf=1.0, neginf=-1.0)
        totals += torch.stack([values.abs().sum(), values.sum(), values @ _wave(len(values))])
    size, plain, waved = (float(f"{total:.7g}") for total in totals.tolist())
    return size, plain, waved


def _as_real(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers on the processor, shape (n,); two for a complex one."""
    detached = tensor.detach().cpu()
    if detached.is_complex():
        detached = torch.view_as_real(detached.resolve_conj())
    return detached.reshape(-1)


def _is_near(one: Sums | None, other: Sums | None) -> bool:
    if one is None or other is None:
        return False
    limit = ELSEWHERE * max(one[0], other[0])
    return all(abs(a - b) <= limit for a, b in zip(one, other, strict=True))


# Made twice ---------------------------------------------------------------------------------------


def make_checked(task: Task, form: Form) -> nn.Module:
    """Return a task's model; raise FairbloomError, with names, if another one would differ.

    The first model is dropped before the second one is made: it may be large.
    """
    first = task.model()
    name = type(first).__name__
    arrays, others = _digest_arrays(first)
    outputs = compute_outputs(first, form, task.output)
    del first
    model = task.model()
    arrays_now, others_now = _digest_arrays(model)
    found = _list_changed(arrays, arrays_now)
    outputs_now = compute_outputs(model, form, task.output)
    if outputs is not None and outputs_now is not None and not _equals(outputs_now, outputs, HERE):
        found += [*_list_changed(others, others_now), "outputs"]
    if found:
        raise FairbloomError(
            f"the model, {name}, is another one each time it is made: its {join_first(found)}"
            f" differ: {REMEDY}"
        )
    return model


@lru_cache(maxsize=1)  # a device stores it with the model of each evaluation
def describe_made(task: Task) -> Made:
    """Return how a task's model is made here; a batch has the form that needs no examples."""
    return Made.of(task.model(), form_of_task(task), task.output)


def check_made(here: Made, there: Made, source: str) -> None:
    """Raise ReportableError unless a model is made here as it was there, in `source`."""
    explained = here.explain_difference(there, source)
    if explained:
        raise ReportableError(explained)


def _digest_arrays(model: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Return digests of parameters and buffers, and of tensors and arrays in attributes, by name.

    Those without plain values, such as lazy or sparse ones, are left out.
    """
    arrays = {
        name: _digest(each)
        for name, each in [*model.named_parameters(), *model.named_buffers()]
        if has_values(each)
    }
    others: dict[str, str] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            is_tensor = isinstance(value, Tensor) and has_values(value)
            is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
            if is_tensor or is_array:
                others[f"{path}.{name}".lstrip(".")] = _digest(value)
    return arrays, others


def _digest(array: Tensor | NDArray[Any]) -> str:
    if isinstance(array, Tensor):
        whole = _as_real(array).contiguous()
        array = whole.view(torch.uint8).numpy()
    flat = np.ascontiguousarray(array).reshape(-1)
    return blake3(flat.view(np.uint8).data).hexdigest()


def _list_changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]
