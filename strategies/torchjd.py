"""All Gram-based weightings of TorchJD as methods."""

import inspect
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from fairbloom.errors import install_command
from fairbloom.logs import log
from fairbloom.protocol.streams import generator
from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.rounds.options import OptionsWithoutPrior

from .strategy import FairStrategy

# The prefix of a method's name for a weighting of TorchJD: torchjd:upgrad.
TORCHJD = "torchjd:"

# Values for arguments without a default, if a weighting is chosen by name.
STARTING_POINTS: dict[str, dict[str, float]] = {
    "cagrad": {"c": 0.4},
    "fairgrad": {"alpha": 1.0},
    "krum": {"n_byzantine": 1},
}


class FromTorchJD(FairStrategy):
    r"""A weighting of TorchJD as a strategy, such as UPGrad, Aligned-MTL, CAGrad and PCGrad.

    .. math:: c = \text{weighting}(G)

    Source: Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, 2024,
    doi:10.48550/arXiv.2406.16232; TorchJD's documentation names the source of each weighting.

    Parameters
    ----------
    weighting : Gram-based weighting of torchjd.aggregation
        Maps a Gram matrix, a float64 tensor of shape (m, m), to weights of shape (m,).

    Departures: a weighting with a state is reset in every round, because its rows are then other
    clients; random weightings draw from (seed, round); the mean replaces a weighting that is
    undefined for the round's number of clients (Krum).

    Objective: that of the weighting
    Good for: the rules of multi-task learning (UPGrad, Aligned-MTL, …) among clients, as
    implemented in their library.
    Hurts when: a weighting was made for a few tasks and solves a program that becomes slow with
    many clients. PCD favours the first client by name, as its primary objective.
    Memory: none
    Cost: a Gram matrix and the weighting
    """

    default_weighting = None
    requires = frozenset({"gram"})
    lost_to_server_optimizers = (
        "its step conflicts with no update, under weightings such as UPGrad that see to that"
    )

    def __init__(
        self, weighting: Callable[[Any], Any], **options: Unpack[OptionsWithoutPrior]
    ) -> None:
        if not takes_gram(type(weighting)):
            raise ValueError(
                f"weighting must be a Gram-based weighting of TorchJD, got {weighting!r}"
            )
        super().__init__(**options)
        self.weigh_gram = weighting

    @property
    def recorded_name(self) -> str:
        """Its name in the run folder of an app: that of the weighting, as in torchjd:upgrad."""
        return TORCHJD + weighting_name(type(self.weigh_gram))

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return TorchJD's weights."""
        import torch  # imported late, because no other method needs it

        self._reset()
        with torch.random.fork_rng(devices=[]):
            random = generator(self.seed, "weighting", cohort.round)
            torch.manual_seed(int(random.integers(2**63)))
            try:
                weights = self.weigh_gram(torch.from_numpy(cohort.gram))
            except ValueError as error:
                log.warning(
                    "the mean takes the place of the weighting in round %d: %s", cohort.round, error
                )
                return np.full(cohort.size, 1.0 / cohort.size)
            finally:
                self._reset()  # so that a resumed run has the same state
        return np.asarray(weights.detach().numpy(), np.float64)

    def _reset(self) -> None:
        if hasattr(self.weigh_gram, "reset"):
            self.weigh_gram.reset()


def weighting_name(weighting: type) -> str:
    """Return the name of a weighting: upgrad for UPGradWeighting."""
    return weighting.__name__.removesuffix("Weighting").lower()


def takes_gram(weighting: type) -> bool:
    """Return whether a class is one of TorchJD's weightings of a Gram matrix."""
    # By name, because TorchJD keeps their base private.
    bases = [base.__name__ for base in weighting.__mro__]
    return "_GramianWeighting" in bases and not inspect.isabstract(weighting)


def by_name(name: str, **options: Unpack[OptionsWithoutPrior]) -> FromTorchJD:
    """Return the strategy of one of TorchJD's weightings: "upgrad" is UPGradWeighting().

    Raises
    ------
    ValueError
        If TorchJD is not installed, or has no weighting of that name.
    """
    try:
        from torchjd import aggregation
    except ImportError as error:
        raise ValueError(f"torchjd:{name} needs TorchJD: {install_command('torchjd')}") from error
    classes: dict[str, Callable[..., Any]] = {
        weighting_name(value): value
        for key, value in vars(aggregation).items()
        if inspect.isclass(value) and not key.startswith("_") and takes_gram(value)
    }
    if name not in classes:
        known = ", ".join(f"{TORCHJD}{key}" for key in sorted(classes))
        raise ValueError(f"torchjd:{name} is unknown; there are {known}")
    try:
        return FromTorchJD(classes[name](**STARTING_POINTS.get(name, {})), **options)
    except ImportError as error:
        raise ValueError(
            f"torchjd:{name} needs more: {install_command('torchjd')} ({error})"
        ) from error
