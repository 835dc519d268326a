"""The average of normalised updates, and the decaying step size that it shares with FedMGDA."""

from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.options import split_options
from fairbloom.rounds.ranges import Choices, Default, Meaning, Range
from fairbloom.text import text_if

from .strategy import FairStrategy, Tries

STAIRCASE, EXPONENTIAL, INVERSE = SCHEDULES = ("staircase", "exponential", "inverse")

DECAY_EVERY = 100

# The server steps and decays of Hu et al. (FedMGDA+), Table 5.
STEPS = (0.5, 1.0, 1.5, 2.0)
DECAYS = (0.0, 0.025, 0.0333, 0.05, 0.1, 0.333, 0.5)


class StepOptions(Options, total=False):
    """The common options, and a server step size that may fall over the run."""

    server_lr: Annotated[
        float,
        Range("(0, inf)"),
        Default(1.0),
        Meaning("Step size η, a factor of the step."),
    ]
    decay: Annotated[
        float,
        Range("[0, 1]"),
        Default(0.0),
        Meaning("Share of the step size that is left at the end of the run; 0: no decay."),
    ]
    decay_every: Annotated[
        int,
        Range("[1, inf)"),
        Default(DECAY_EVERY),
        Meaning(
            "Number of rounds after which a decaying step size falls, with the schedule staircase."
        ),
    ]
    server_schedule: Annotated[
        str,
        Choices(*SCHEDULES),
        Default(STAIRCASE),
        Meaning(
            "How the step size falls: staircase, exponential (in every round), or inverse, which is"
            " 2 server_lr / (t + 1) in round t, from 1, and needs no decay."
        ),
    ]


class Stepped(FairStrategy):
    """A method with a server step size that may fall over the run."""

    default_weighting: ClassVar[str | None] = "uniform"

    def __init__(self, **options: Unpack[StepOptions]) -> None:
        own, common = split_options(StepOptions, options)
        super().__init__(**common)
        self.server_lr: float = own["server_lr"]
        self.decay: float = own["decay"]
        self.decay_every: int = own["decay_every"]
        self.server_schedule: str = own["server_schedule"]

    @property
    def paced(self) -> bool:
        """Whether the step size depends on the number of rounds."""
        return self.decay > 0.0 and self.server_schedule != INVERSE

    def find_idle(self, num_rounds: int) -> str:
        """Return the decay or schedule that leaves the step size as it would be without it."""
        schedule = f"server-schedule = {self.server_schedule!r}"
        every = text_if(self.decay_every != DECAY_EVERY, f"decay-every = {self.decay_every}")
        if every and self.server_schedule != STAIRCASE:
            return f"{every} changes nothing with {schedule}: leave it out"
        if self.decay == 0.0:
            idle = schedule if self.server_schedule == EXPONENTIAL else every
            return text_if(idle, f"{idle} changes nothing without decay: set it, as in 0.1")
        if self.server_schedule == INVERSE:
            return f"decay = {self.decay} changes nothing with {schedule}: leave it out"
        if self.decay == 1.0:
            return f"decay = {self.decay} changes nothing: leave it out, or lower it"
        if self.server_schedule == STAIRCASE and num_rounds < self.decay_every:
            return (
                f"decay = {self.decay} changes nothing in {num_rounds} rounds, as the step size"
                f" falls every {self.decay_every}: lower decay-every, as in"
                f" {max(1, num_rounds // 10)}, or leave decay out"
            )
        return ""

    def step_size(self, server_round: int, num_rounds: int | None) -> float:
        """Return η_t, with η = server_lr, T rounds, β = decay and E = decay_every.

        staircase: η β^(E/T · ⌊t/E⌋), exponential: η β^(t/T); β = 0 means no decay. inverse:
        2η / (t + 1), which is 2 / (c (t + 2)) of Theorem 2, with rounds from 0, for η = 1/c
        and c-strongly convex losses.
        """
        if self.server_schedule == INVERSE:
            return 2.0 * self.server_lr / (server_round + 1)
        if self.decay == 0.0:
            return self.server_lr
        if num_rounds is None:
            raise ValueError("decay needs the number of rounds: run the strategy by its start()")
        done = server_round / num_rounds
        if self.server_schedule == STAIRCASE:
            done = self.decay_every / num_rounds * (server_round // self.decay_every)
        return float(self.server_lr * self.decay**done)


def moving(cohort: Cohort) -> tuple[FloatArray, FloatArray]:
    """Return 1/‖u_k‖, 0 for zero updates, and the prior over the clients with other updates."""
    norms = np.sqrt(cohort.squared_norms)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0.0)
    prior = np.where(norms > 0.0, cohort.prior, 0.0)
    return inverse, prior / (prior.sum() or 1.0)


class FedAvgN(Stepped):
    r"""FedAvg of normalised updates.

    .. math:: c_k = \eta_t \frac{p_k}{\lVert u_k \rVert}

    The norm of the step is at most η_t.

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022,
    section 6, doi:10.48550/arXiv.2006.11489.

    Objective: none; each client has the same influence on the direction
    Good for: updates of very different norms; a client with a long one does not dominate the
    others.
    Hurts when: updates become small towards the end, or are mostly noise: they are stretched to the
    same norm, so `server_lr` must be small or decay.
    Memory: none
    Cost: norms and a weighted sum
    """

    tries: ClassVar[Tries] = {"server_lr": STEPS, "decay": DECAYS}

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior, divided by the norms."""
        inverse, prior = moving(cohort)
        return self.step_size(cohort.round, cohort.num_rounds) * prior * inverse
