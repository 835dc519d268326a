"""Server optimizers: a method's step d serves as the gradient of momentum or adaptive steps.

d = Σ c_k u_k, with the kept rows, is the step that a method subtracts from the model. FedAvgM keeps
v ← β₁ v + d and subtracts lr · v. FedAdagrad, FedAdam and FedYogi keep, coordinate by coordinate, a
← β₁ a + (1 − β₁) d and a mean or sum v of d², and subtract lr · a / (√v + τ). They start at a = 0
and v = τ², without bias correction.

Sources: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, doi:10.48550/arXiv.1909.06335 (FedAvgM); Reddi et al., Adaptive Federated
Optimization, ICLR 2021, Algorithm 2, doi:10.48550/arXiv.2003.00295.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.conditions import Fault
from fairbloom.protocol.options import RunOptions
from fairbloom.protocol.parameters import OptionError

from .arrays import FloatArray, column_chunks
from .ranges import within

# With "none" the server takes the method's step unchanged.
NONE = "none"
AVGM = "avgm"
ADAGRAD = "adagrad"
ADAM = "adam"
YOGI = "yogi"

LR = "server_optimizer_lr"
BETA1 = "server_optimizer_beta1"
BETA2 = "server_optimizer_beta2"
TAU = "server_optimizer_tau"

DEFAULTS = {name: getattr(RunOptions, name) for name in (BETA1, BETA2, TAU)}

# The options that each optimizer does not read.
WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    NONE: frozenset({LR, BETA1, BETA2, TAU}),
    AVGM: frozenset({BETA2, TAU}),
    ADAGRAD: frozenset({BETA2}),
    ADAM: frozenset(),
    YOGI: frozenset(),
}


@dataclass(frozen=True)
class Moments:
    """The moments of a server optimizer, in the dtype of the model and at least float32.

    `first` is the momentum: avgm's v, or the a of the others. `second` is their v, the sum or mean
    of squared steps. The arrays are never changed in place.
    """

    first: NDArray[Any]
    second: NDArray[Any] | None


@dataclass(frozen=True)
class ServerOptimizer:
    """A server optimizer with its numbers; the module's docstring explains them."""

    name: str
    lr: float
    beta1: float
    beta2: float
    tau: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self | None:
        """Return the optimizer that a method's options describe, or None.

        Raises
        ------
        OptionError
            If an option has no effect, or the step size is missing (None) or not above 0.
        """
        name = options["server_optimizer"]
        lr = options["server_optimizer_lr"]
        given = {
            option: options[option]
            for option, default in DEFAULTS.items()
            if options[option] != default
        }
        if lr is not None:
            given[LR] = within("(0.0, inf)", server_optimizer_lr=lr)
        for option in sorted(WITHOUT_EFFECT[name] & given.keys()):
            reading = ", ".join(
                optimizer for optimizer, without in WITHOUT_EFFECT.items() if option not in without
            )
            text = (
                f"{{setting}} = {{value!r}} has no effect with {{server_optimizer}} = {name!r}:"
                f" leave it out, or choose an optimizer that reads it ({reading})"
            )
            raise OptionError(Fault(option, given[option], text))
        if name == NONE:
            return None
        if lr is None and name != AVGM:
            text = (
                f"{{setting}} = {{value!r}} needs {{{LR}}}, its step size, which has no default:"
                " give one, such as 0.01, which is about how far a parameter then moves in a round"
            )
            raise OptionError(Fault("server_optimizer", name, text))
        return cls(
            name,
            lr=given.get(LR, 1.0),
            beta1=float(options[BETA1]),
            beta2=float(options[BETA2]),
            tau=float(options[TAU]),
        )

    def options(self) -> dict[str, str | float]:
        """Return the numbers that the optimizer reads, by the names of a method's options."""
        numbers = {LR: self.lr, BETA1: self.beta1, BETA2: self.beta2, TAU: self.tau}
        without = WITHOUT_EFFECT[self.name]
        read = {option: value for option, value in numbers.items() if option not in without}
        return {"server_optimizer": self.name, **read}

    def step(
        self, model: NDArray[Any], down: FloatArray, moments: Moments | None
    ) -> tuple[NDArray[Any], Moments | None]:
        """Return the model and the moments after the step d = `down`.

        Both stay unchanged if d is zero.

        Raises
        ------
        ValueError
            If a moment is beyond the range of its dtype.
        """
        if not down.any():
            return model, moments
        before = self._start(model) if moments is None else moments
        after = np.empty_like(model)
        first = np.empty_like(before.first)
        second = None if before.second is None else np.empty_like(before.second)
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk in column_chunks(down.size):  # in float64, a chunk at a time
                d = down[chunk]
                a = before.first[chunk].astype(np.float64)
                if second is None or before.second is None:
                    step = self.beta1 * a + d
                    first[chunk] = step
                else:
                    a = self.beta1 * a + (1.0 - self.beta1) * d
                    v = self._next_v(before.second[chunk].astype(np.float64), np.square(d))
                    first[chunk] = a
                    second[chunk] = v
                    step = a / (np.sqrt(v) + self.tau)
                after[chunk] = model[chunk] - self.lr * step
        if not np.isfinite(first).all() or (second is not None and not np.isfinite(second).all()):
            raise ValueError(
                f"the server optimizer {self.name} keeps a moment beyond the range of {first.dtype}"
            )
        return after, Moments(first, second)

    def _start(self, model: NDArray[Any]) -> Moments:
        zeros = np.zeros(model.shape, np.promote_types(model.dtype, np.float32))
        return Moments(zeros, None if self.name == AVGM else np.full_like(zeros, self.tau**2))

    def _next_v(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        if self.name == ADAGRAD:
            return v + squares
        if self.name == ADAM:
            return self.beta2 * v + (1.0 - self.beta2) * squares
        return v - (1.0 - self.beta2) * squares * np.sign(v - squares)


def name_of(optimizer: ServerOptimizer | None) -> str:
    """Return the name of an optimizer, NONE without one."""
    return NONE if optimizer is None else optimizer.name
