"""The arrays of a model: updates, buffers and frozen ones, and their places in the flat vector."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.bfloat16 import BITS
from fairbloom.protocol.patterns import without_wrappers

from .arrays import Model, norm

# The kinds of arrays that a model may have.
DTYPES = "float, integer and bool"

# How the names of BatchNorm's statistics end in PyTorch.
STATISTICS = ("running_mean", "running_var")

# The remedy when a client replies other values of a frozen array.
UNFROZEN = "let its client leave it untrained (requires_grad = False), or out of the reply"


class Layout:
    """Which arrays of a model are averaged as updates, and which as buffers.

    It also has the place of each trainable array in the flat vector.

    Parameters
    ----------
    buffers
        Float arrays (BatchNorm statistics) that are averaged and are not part of the update; None:
        found by their names. A buffer that is not finite, such as a mask, is frozen.
    shared
        Arrays that are the same parameter as another one, by name: the update has that one, and
        they get its values.
    frozen
        Arrays that no client trains: they stay unchanged, and are not part of the update.
    """

    def __init__(
        self,
        arrays: Model,
        buffers: Sequence[str] | None = None,
        shared: Mapping[str, str] | None = None,
        frozen: Collection[str] = (),
    ) -> None:
        shared = shared or {}
        named = frozenset(frozen)
        self.arrays = arrays
        self.frozen = named | {name for name, first in shared.items() if first in named}
        self.shared = {name: first for name, first in shared.items() if name not in self.frozen}
        if buffers is None:
            floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]
            own = [name for name in floats if name not in self.shared and name not in self.frozen]
            buffers = [name for name in own if name.endswith(STATISTICS)]
        self._check_names(buffers)
        # A mask with entries of −inf is such a buffer.
        self.frozen |= {name for name in buffers if not np.isfinite(arrays[name]).all()}
        self.buffers = tuple(name for name in arrays if name in buffers and name not in self.frozen)
        changing = {name: array for name, array in arrays.items() if name not in self.frozen}
        self.integers = tuple(name for name, array in changing.items() if array.dtype.kind != "f")
        self.trainable = tuple(
            name
            for name, array in changing.items()
            if array.dtype.kind == "f" and name not in buffers and name not in self.shared
        )
        wrong = [name for name in self.trainable if not np.isfinite(arrays[name]).all()]
        if wrong:
            raise ValueError(f"array {wrong[0]!r} of the global model is not finite")
        self._check_shared()
        self.dtype = np.result_type(np.float32, *(arrays[name].dtype for name in self.trainable))
        self.size = sum(arrays[name].size for name in self.trainable)

    def _check_names(self, buffers: Sequence[str]) -> None:
        arrays = self.arrays
        floats = {name for name, array in arrays.items() if array.dtype.kind == "f"}
        wrong = [name for name in buffers if name not in floats]
        if wrong:
            raise ValueError(
                f"buffers names {wrong[0]!r}, which is no float array of the model"
                f" ({', '.join(arrays)})"
            )
        wrong = [name for name in self.frozen if name not in arrays or name in buffers]
        if wrong:
            raise ValueError(
                f"frozen names {wrong[0]!r}, which is no parameter of the model"
                f" ({', '.join(arrays)})"
            )
        wrong = [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]
        if wrong:
            raise ValueError(
                f"array {wrong[0]!r} has dtype {arrays[wrong[0]].dtype}; only {DTYPES} are"
                " supported"
            )

    def _check_shared(self) -> None:
        for name, first in self.shared.items():
            pair = f"shared = {{{name!r}: {first!r}}}"
            wrong = None
            if first not in self.trainable:
                wrong = first
            elif name not in self.arrays or name in self.buffers:
                wrong = name
            if wrong is not None:
                raise ValueError(f"{pair}: {wrong!r} is no parameter of the model to train")
            array = self.arrays[name]
            other = self.arrays[first]
            if array.dtype != other.dtype or not np.array_equal(array, other):
                raise ValueError(f"{pair}: the two arrays of the model differ")

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The end of each trainable array in the flat vector."""
        return tuple(accumulate(self.arrays[name].size for name in self.trainable))

    @property
    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each trainable array's name and its slice of the flat vector."""
        return zip(self.trainable, map(slice, (0, *self.ends), self.ends), strict=True)

    @cached_property
    def flat(self) -> NDArray[Any]:
        """The trainable part of w as one vector of `size` entries."""
        if not self.trainable:
            return np.empty(0, self.dtype)
        parts = [self.arrays[name].ravel() for name in self.trainable]
        return np.concatenate(parts).astype(self.dtype, copy=False)

    @cached_property
    def rounded(self) -> frozenset[str]:
        """The names of the arrays that messages may have in bfloat16: trainable and shared ones."""
        return frozenset({*self.trainable, *self.shared})

    @cached_property
    def norm(self) -> float:
        """‖w‖, over the trainable part."""
        return self.distance(None, self.trainable)

    def distance(self, other: Model | None, names: Sequence[str]) -> float:
        """Return the distance of these arrays, as one vector, to another model's, or to zero."""
        if other is None:
            return math.hypot(*(norm(self.arrays[name].ravel()) for name in names))
        return math.hypot(*(norm(self.arrays[name].ravel(), other[name].ravel()) for name in names))

    def arrays_of(self, flat: NDArray[Any]) -> Model:
        """Return a flat vector as the trainable arrays, in their shapes and dtypes."""
        return {
            name: flat[place].reshape(self.arrays[name].shape).astype(self.arrays[name].dtype)
            for name, place in self.slices
        }

    def mismatch(self, arrays: Model, *, has_bits: bool = False) -> str | None:
        """Return how `arrays` differs from the model in names, shapes or kinds of dtype, or None.

        With `has_bits`, arrays are the bits of updates in bfloat16 where messages may have them.
        Frozen arrays may be missing; if one is there, it must have the model's values.
        """
        for name, array in self.arrays.items():
            if name in self.frozen:
                # NaN counts as equal to NaN
                if name in arrays and not np.array_equal(
                    arrays[name],
                    array,
                    equal_nan=arrays[name].dtype.kind == array.dtype.kind == "f",
                ):
                    return (
                        f"array {name!r} is frozen, and the reply holds other values of it:"
                        f" {UNFROZEN}"
                    )
                continue
            if name not in arrays:
                return f"array {name!r} is missing{_renamed(name, arrays, self.arrays)}"
            if arrays[name].shape != array.shape:
                return f"array {name!r} has shape {arrays[name].shape}, the model has {array.shape}"
            due = BITS if has_bits and name in self.rounded else array.dtype
            if arrays[name].dtype.kind != due.kind:
                return f"array {name!r} has dtype {arrays[name].dtype}, the model has {array.dtype}"
        for name in arrays:
            if name not in self.arrays:
                return f"array {name!r} is not in the model"
        return None


def _renamed(name: str, arrays: Model, model: Model) -> str:
    """Return that a wrapper gives the array another name in a reply, with the remedy, or ""."""
    plain = without_wrappers(name)
    there = next(
        (each for each in arrays if each not in model and without_wrappers(each) == plain), ""
    )
    if not there:
        return ""
    return (
        f": the reply has {there!r}, because DataParallel, torch.compile and Opacus wrap models"
        " (module., _orig_mod., _module.): server and clients send the state_dict of the model"
        " inside, such as model.module.state_dict()"
    )
