"""TorchJD's scalarizations of losses as methods: the weights are the gradient of one number by the losses."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

import numpy as np

from fairbloom.logs import log
from fairbloom.protocol.streams import generator
from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, FloatArray
from fairbloom.rounds.options import OptionsWithoutPrior

from .strategy import FairStrategy


class FromScalarizer(FairStrategy):
    r"""A scalarization of TorchJD as a strategy, such as STCH, COSMOS, PBI and the geometric mean.

    .. math:: c_k = \frac{\partial S(F)}{\partial F_k}

    S makes one number of the clients' losses. By the chain rule, the step w − Σ c_k u_k is to S what FedAvg's is to
    the mean loss. It is not normalised: S decides its length too, and c may sum to anything, also to 0 or less, where
    dividing by the sum would turn the step round. Where losses are equal, c sums to 1 for the mean, the geometric mean,
    STCH and COSMOS as their names choose them, to m for the sum and to √m for PBI.

    Source: Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, 2024, doi:10.48550/arXiv.2406.16232;
    TorchJD's documentation names the source of each scalarization.

    Parameters
    ----------
    scalarizer : Scalarizer of torchjd.scalarization, or a function that makes one
        S, which maps m losses, a float64 tensor of shape (m,), to one number. A function gets m, and is called in every
        round.

    Reductions: the mean is FedAvg with uniform weights; STCH with μ and weights of 1 is TERM with `tilt=1/μ,
    weighting="uniform"`.

    Departures: a scalarization that learns from step to step (DWA, FAMO, IMTL-L, UW) is refused: what it learns belongs
    to a fixed set of losses, and begun afresh in every round it would weigh by nothing that was learned. Random weights
    are drawn from (seed, round). The uniform weights 1/m take its place where every loss is 0, where it has no finite
    gradient, as the geometric mean where one is 0, or where it is not defined for so many.

    Objective: that of the scalarization
    Good for: the smooth maximum, the preference vectors and the penalties of multi-task learning among clients.
    Hurts when: losses get small: COSMOS then takes longer and longer steps, and the geometric mean follows the client
    whose loss is the lowest. Weights below 0, which COSMOS and PBI may have, raise a loss.
    Memory: none
    Cost: a weighted sum
    """

    needs = frozenset({"loss-before"})
    default_weighting = None
    beyond_sums = ("each client's loss", "")
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(self, scalarizer: Callable[[Any], Any], **options: Unpack[OptionsWithoutPrior]) -> None:
        if why := why_refused(scalarizer):
            raise ValueError(f"scalarizer must be one of TorchJD's, or a function of m that makes one: {why}")
        super().__init__(**options)
        self.scalarizer = scalarizer

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the gradient of S by the losses."""
        import torch  # imported late: the other methods do without

        losses = torch.tensor(cohort.losses, requires_grad=True)
        with seeded(self.seed, "scalarizer", cohort.round), torch.enable_grad():
            try:
                made = self.scalarizer if is_scalarizer(self.scalarizer) else self.scalarizer(cohort.size)
                (gradient,) = torch.autograd.grad(made(losses), losses)
                why = "" if gradient.isfinite().all() else "it has no finite gradient there"
                why = why if cohort.losses.any() else "every loss is 0"
            except ValueError as error:
                why = str(error)
        if why:
            log.warning("uniform weights take the place of the scalarization in round %d: %s", cohort.round, why)
            return np.full(cohort.size, 1.0 / cohort.size)
        return np.asarray(gradient.numpy(), np.float64)


@contextmanager
def seeded(seed: int, purpose: str, server_round: int) -> Iterator[None]:
    """Let PyTorch draw from (seed, purpose, round) for a while; its own generator is then as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, purpose, server_round).integers(2**63)))
        yield


def is_scalarizer(value: object) -> bool:
    """Return whether this is one of TorchJD's scalarizers, and no class or function that makes one."""
    from torchjd.scalarization import Scalarizer

    return isinstance(value, Scalarizer)


def why_refused(scalarizer: Any) -> str:
    """Return why the gradient of this cannot weigh clients, "" where it can."""
    if inspect.isclass(scalarizer) or not callable(scalarizer):
        return f"got {scalarizer!r}"
    with seeded(0, "scalarizer", 0):
        made = scalarizer if is_scalarizer(scalarizer) else scalarizer(1)
    if not is_scalarizer(made):
        return f"got {scalarizer!r}, which returns {made!r}"
    return f"{LEARNS}, got {made!r}" if hasattr(made, "reset") else ""


LEARNS = "it learns from step to step what each of a fixed set of losses counts, and clients of rounds change"
"""Why a scalarizer with a state is refused."""


def starting_points(name: str, m: int) -> Mapping[str, Any]:
    """Return arguments of scalarizers without defaults, where one is chosen by name, for m losses.

    With these weights the gradient at equal losses sums to 1, but for PBI, which takes their direction alone.
    """
    import torch

    ones = torch.ones(m, dtype=torch.float64)
    given: Mapping[str, Mapping[str, Any]] = {
        "cosmos": {"lambda_": 1.0, "weights": ones / m},
        "pbi": {"theta": 1.0, "weights": ones},
        "stch": {"mu": 1.0, "weights": ones},
    }
    return given.get(name, {})


def scalarizer_classes() -> dict[str, type]:
    """Return the scalarizers of the installed TorchJD by their names: "stch" is STCH."""
    from torchjd import scalarization

    classes = {key.lower(): kind for key, kind in vars(scalarization).items() if inspect.isclass(kind)}
    return {name: kind for name, kind in classes.items() if not inspect.isabstract(kind)}


def why_nameless(name: str, kind: type) -> str:
    """Return why a class of scalarizers cannot be chosen by its name, "" where it can."""
    if hasattr(kind, "reset"):
        return LEARNS
    try:
        inspect.signature(kind).bind(**starting_points(name, 1))
    except TypeError as error:
        return f"{error}: give it as an object, FromScalarizer({kind.__name__}(...))"
    return ""


def of_scalarizer(name: str, kind: type, **options: Unpack[OptionsWithoutPrior]) -> FromScalarizer:
    """Return the strategy of a class of scalarizers with its starting points.

    Raises
    ------
    ValueError
        When it learns from step to step, or needs other arguments.
    """
    if why := why_nameless(name, kind):
        raise ValueError(f"torchjd:{name} is no method: {why}")
    return FromScalarizer(lambda m: kind(**starting_points(name, m)), **options)
