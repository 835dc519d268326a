"""Server optimizers: the server takes a method's step d as a gradient, and steps by momentum or adaptively.

d = Σ c_k u_k, with the kept rows, is what a method subtracts from the model. FedAvgM keeps v ← β₁ v
+ d and subtracts lr · v. FedAdagrad, FedAdam and FedYogi keep, coordinate by coordinate, a ← β₁ a +
(1 − β₁) d and a mean or sum v of d², and subtract lr · a / (√v + τ); at first a = 0 and v = τ², and
no bias is corrected.

Sources: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, doi:10.48550/arXiv.1909.06335 (FedAvgM); Reddi et al., Adaptive Federated
Optimization, ICLR 2021, Algorithm 2, doi:10.48550/arXiv.2003.00295.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.options import Beta1, Beta2, Tau, default_of

from .arrays import FloatArray, column_chunks
from .ranges import within

NONE = "none"
AVGM = "avgm"
ADAGRAD = "adagrad"
ADAM = "adam"
YOGI = "yogi"
"""With "none" the server takes the method's step as it is."""

LR, BETA1, BETA2, TAU = (f"server_optimizer_{name}" for name in ("lr", "beta1", "beta2", "tau"))

DEFAULTS = {BETA1: default_of(Beta1), BETA2: default_of(Beta2), TAU: default_of(Tau)}

WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    NONE: frozenset({LR, BETA1, BETA2, TAU}),
    AVGM: frozenset({BETA2, TAU}),
    ADAGRAD: frozenset({BETA2}),
    ADAM: frozenset(),
    YOGI: frozenset(),
}
"""The options that each optimizer does not read."""

COMMON_DESCENT = "to first order, its step raises no participant's loss"
"""What methods that seek a common descent direction say of their step, and no longer holds where it
is turned."""


@dataclass(frozen=True)
class Moments:
    """What a server optimizer keeps between rounds, in the dtype of the model and at least float32.

    Never changed in place.

    `first` is the momentum: avgm's v, the a of the others. `second` is their v, the sum or mean of
    squared steps.
    """

    first: NDArray[Any]
    second: NDArray[Any] | None


@dataclass(frozen=True)
class ServerOptimizer:
    """A server optimizer with its numbers; see the module for what each means."""

    name: str
    lr: float
    beta1: float
    beta2: float
    tau: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self | None:
        """Return the optimizer that a method's options describe, None where there is none.

        An option without effect, and a step size that is missing or impossible, raise ValueError. A
        `server_optimizer_lr` of None is a missing one.
        """
        name = options["server_optimizer"]
        lr = options["server_optimizer_lr"]
        given = {
            option: options[option]
            for option, default in DEFAULTS.items()
            if options[option] != default
        }
        given |= {} if lr is None else {LR: within("(0.0, inf)", server_optimizer_lr=lr)}
        for option in sorted(WITHOUT_EFFECT[name] & given.keys()):
            reading = ", ".join(
                each for each, without in WITHOUT_EFFECT.items() if option not in without
            )
            raise ValueError(
                f"{option} = {given[option]!r} has no effect with server_optimizer = {name!r}:"
                f" leave it out, or choose an optimizer that reads it ({reading})"
            )
        if name == NONE:
            return None
        if lr is None and name != AVGM:
            raise ValueError(
                f"server_optimizer = {name!r} needs {LR}, its step size, which has no default: give"
                " one, such as 0.01, which is about how far a parameter then moves in a round"
            )
        return cls(name, given.get(LR, 1.0), *(float(options[option]) for option in DEFAULTS))

    def options(self) -> dict[str, str | float]:
        """Return the optimizer's numbers by the names of a method's options.

        Those that it does not read are left out.
        """
        named = {
            f"server_optimizer_{field}": value
            for field, value in asdict(self).items()
            if field != "name"
        }
        read = {
            option: value
            for option, value in named.items()
            if option not in WITHOUT_EFFECT[self.name]
        }
        return {"server_optimizer": self.name, **read}

    def step(
        self, model: NDArray[Any], down: FloatArray, moments: Moments | None
    ) -> tuple[NDArray[Any], Moments | None]:
        """Return the model after the step d = `down`, and the moments after it.

        Both stay as they are where d is zero.

        A moment beyond the range of the dtype raises ValueError.
        """
        if not down.any():
            return model, moments
        if (before := moments) is None:
            zeros = np.zeros(model.shape, np.promote_types(model.dtype, np.float32))
            before = Moments(zeros, None if self.name == AVGM else np.full_like(zeros, self.tau**2))
        after = np.empty_like(model)
        first = np.empty_like(before.first)
        second = None if before.second is None else np.empty_like(before.second)
        with np.errstate(over="ignore", invalid="ignore"):
            for place in column_chunks(down.size):  # in float64, a chunk at a time
                d = down[place]
                a = before.first[place].astype(np.float64)
                if second is None or before.second is None:
                    step = first[place] = self.beta1 * a + d
                else:
                    a = first[place] = self.beta1 * a + (1.0 - self.beta1) * d
                    v = second[place] = self._second(
                        before.second[place].astype(np.float64), np.square(d)
                    )
                    step = a / (np.sqrt(v) + self.tau)
                after[place] = model[place] - self.lr * step
        for moment in (first, second):
            if moment is not None and not np.isfinite(moment).all():
                raise ValueError(
                    f"what the server optimizer {self.name} keeps of the steps is beyond the range"
                    f" of {moment.dtype}"
                )
        return after, Moments(first, second)

    def _second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        if self.name == ADAGRAD:
            return v + squares
        if self.name == ADAM:
            return self.beta2 * v + (1.0 - self.beta2) * squares
        return v - (1.0 - self.beta2) * squares * np.sign(v - squares)


def state_of(optimizer: ServerOptimizer, moments: Moments | None) -> dict[str, Any]:
    """Return the optimizer's name and what it keeps, as str, None, arrays and dicts."""
    return {"name": optimizer.name, "moments": None if moments is None else dict(vars(moments))}


def moments_of(
    state: Mapping[str, Any] | None, optimizer: ServerOptimizer | None
) -> Moments | None:
    """Return the moments in what `state_of` returned.

    Raise ValueError where that is another optimizer's state.
    """
    there = NONE if state is None else state["name"]
    here = NONE if optimizer is None else optimizer.name
    if there != here:
        raise ValueError(
            f"the state is of a run with server_optimizer = {there!r}, got {here!r}: continue with"
            " that, or begin again"
        )
    return (
        Moments(**state["moments"]) if state is not None and state["moments"] is not None else None
    )
