"""Rounds of clients that share their noise: the server sees one sum, and no client's update.

A round has two questions. Methods that weigh by losses first ask for these, each with noise of its
own; the weights follow, and go out with the model. Then each client adds its gradient at the
received model, in whole numbers with noise, and the step is that of their sum.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.accounts import CLIP, LOSS_UNITS, STEP_UNITS, AccountStatus
from fairbloom.protocol.lattice import Integers, Lattice
from fairbloom.protocol.names import LOSS_BEFORE, NUM_EXAMPLES
from fairbloom.protocol.sums import SharedNoise
from fairbloom.protocol.terms import Terms

from .aggregation import NoStepError, Step, decide, learn, smooth_losses
from .arrays import FloatArray, Model, norm
from .clients import ClientPool, Replies
from .cohort import Cohort, MethodError, Needed
from .in_progress import RoundInProgress
from .method import Method
from .refusals import Refusals
from .server_optimizer import Moments


@dataclass(frozen=True, kw_only=True)
class Summing:
    """How a run's clients share their noise.

    Attributes
    ----------
    honest
        h, the clients that follow the protocol.
    weight_cap
        A client's weight is at most this many times its share of the rows, 1 or more.
    num_rounds
        The rounds of the whole run.
    spend
        The most units that the run spends of each account; 0: the lowest price of each round.
    learning_rate
        Returns η of a round by its number.
    accounts
        The clients' accounts, of which a run changes neither rows nor σ.
    """

    honest: int
    weight_cap: float
    num_rounds: int
    spend: float
    learning_rate: Callable[[int], float]
    accounts: Mapping[str, AccountStatus]


@dataclass(frozen=True, kw_only=True)
class SumReplies(Replies):
    """The replies of clients that add to a sum: `total` is Σ q, shape (d,), of all or of none."""

    total: Integers


class SummingClients(ClientPool, Protocol):
    """Clients that share their noise."""

    def report_losses(
        self, names: Sequence[str], model: Model, terms: Terms, asked: SharedNoise
    ) -> Replies:
        """Return these clients' mean training losses at a model, with noise."""

    def add_up(
        self, names: Sequence[str], model: Model, terms: Terms, asked: SharedNoise
    ) -> SumReplies:
        """Return the sum of these clients' gradients at a model, with the noise of all."""


# The noise of a run ------------------------------------------------------------------------------


def choose_sigma(
    accounts: Mapping[str, AccountStatus], left: Mapping[str, int], rounds: int, *, with_loss: bool
) -> float:
    """Return the least σ of sums for which each of these accounts pays in every round.

    A sum costs 1/σ² of each owner's μ², so the strictest owner sets the noise: for c whole units of
    its account in a round it is 1/√(c u). `left` has the units that the run may spend of each.

    Raises
    ------
    FairbloomError
        For the accounts that pay for too few rounds.
    """
    affordable = {name: _dearest_part(left[name] // rounds, with_loss=with_loss) for name in left}
    short = [name for name, units in affordable.items() if units < 1]
    if short:
        least = rounds * (1 + LOSS_UNITS)
        if not with_loss:
            least = rounds
        raise FairbloomError(
            f"{join_names(short)}: the privacy account has too few units for {rounds} rounds,"
            f" {left[short[0]]} for at least {least}: lower num-rounds, or raise privacy.spend"
        )
    # u = 1/(4 σ²) of the σ at the lowest price, which a status has
    units = {name: 1.0 / (STEP_UNITS * accounts[name].sigma ** 2) for name in left}
    strictest = min(affordable[name] * units[name] for name in left)
    return 1.0 / math.sqrt(strictest)


def _dearest_part(units: int, *, with_loss: bool) -> int:
    """Return the units of the dearest part of a sum for which this many units of a round pay.

    A loss costs a quarter of it, rounded down, and 1 at least.
    """
    if not with_loss:
        return units
    of_both = STEP_UNITS + LOSS_UNITS
    return min((STEP_UNITS * units + STEP_UNITS - 1) // of_both, units - LOSS_UNITS)


# Weights -----------------------------------------------------------------------------------------


def cap_weights(weights: FloatArray, counts: FloatArray, cap: float) -> FloatArray:
    """Return weights of sum 1, none of them above `cap` times the client's share of the rows.

    The noise of a step grows by the largest such multiple. The others keep their proportions;
    where these are all at their caps or 0, the rest is dealt by rows.

    Parameters
    ----------
    weights
        w, at least 0 each, with a positive sum, shape (m,).
    counts
        n_k, the training rows, shape (m,).
    cap
        1 or more.
    """
    shares = counts / counts.sum()
    most = cap * shares
    capped: FloatArray = weights / weights.sum()
    free = capped > 0.0
    while (over := free & (capped > most)).any():
        capped[over] = most[over]
        free &= ~over
        rest = 1.0 - most[~free & (weights > 0.0)].sum()
        if free.any():
            capped[free] = rest * weights[free] / weights[free].sum()
    missing = 1.0 - capped.sum()
    if missing > 0.0 and not free.any():
        unused = weights == 0.0
        if unused.any():
            capped[unused] = missing * shares[unused] / shares[unused].sum()
    return capped


# A round -----------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """A round's model, its step, and its replies."""

    model: Model
    step: Step
    replies: Replies


def take_sum(
    method: Method,
    clients: ClientPool,
    current: RoundInProgress,
    model: Model,
    summing: Summing,
) -> Taken:
    """Ask a round's clients for their losses and for the sum of their gradients; take its step.

    Raises
    ------
    FairbloomError
        If a client has no part in it: the sum of the others would have another noise.
    MethodError
        If the method does not return weights.
    NoStepError
        If the model would not be finite.
    """
    pool = cast(SummingClients, clients)
    names = [*current.draws]
    asked = SharedNoise(
        sigma=_sigma_of_run(method, names, summing),
        honest=summing.honest,
        shares=dict.fromkeys(names, 1.0),
    )
    metrics = {name: {NUM_EXAMPLES: summing.accounts[name].rows} for name in names}
    if LOSS_BEFORE in method.needs:
        losses = pool.report_losses(names, model, current.terms, asked)
        _note_all(method, losses)
        metrics = {name: {**metrics[name], **losses.metrics[name]} for name in names}
    of_method = Replies(metrics=metrics, refused=Refusals(current.number))
    cohort = build_cohort_of_sum(method, of_method, current.number, summing.num_rounds)
    weights, memory = weigh(method, cohort, summing.weight_cap)
    ratios = weights / cohort.counts
    shares = (ratios / ratios.max()).tolist()
    asked = replace(asked, shares=dict(zip(names, shares, strict=True)))
    added = pool.add_up(names, model, current.terms, asked)
    _note_all(method, added)
    scale = summing.learning_rate(current.number) * float(ratios.max())
    after, length, moments = step_of_sum(method, model, added.total, scale, asked)
    norms = method.run_state.norms.plus(current.number, np.empty(0), length)
    state = method.run_state.stepped(current.number, memory, {}, moments, norms)
    method.enter(state.learned(changed=length > 0.0, unchanged=False))
    coefficients = dict(zip(names, weights.tolist(), strict=True))
    step = Step(metrics=method.own_metrics(cohort, weights), coefficients=coefficients)
    replies = Replies(
        metrics=metrics,
        refused=added.refused,
        bytes_sent=added.bytes_sent,
        sizes=added.sizes,
        accounts=added.accounts,
    )
    return Taken(after, step, replies)


def _sigma_of_run(method: Method, names: Sequence[str], summing: Summing) -> float:
    """Return σ of the run's sums: it follows from what the accounts had before the first one."""
    with_loss = LOSS_BEFORE in method.needs
    lowest = STEP_UNITS
    if with_loss:
        lowest += LOSS_UNITS
    spend = summing.spend or summing.num_rounds * lowest
    accounts = method.run_state.accounts
    left = {name: int(min(accounts[name].units, spend)) for name in names}
    return choose_sigma(summing.accounts, left, summing.num_rounds, with_loss=with_loss)


def _note_all(method: Method, replies: Replies) -> None:
    """Note what replies cost; raise FairbloomError if a client's is missing."""
    reasons = replies.refused.reasons
    if reasons:
        name, reason = next(iter(reasons.items()))
        raise FairbloomError(
            f"round {replies.refused.round}: a sum with shared noise needs every client, and"
            f" {join_names([*reasons])} sent no part; {name}: {reason}"
        )
    method.enter(method.run_state.charged(replies.accounts, replies.metrics, shared=True))


def build_cohort_of_sum(
    method: Method, replies: Replies, server_round: int, num_rounds: int
) -> Cohort:
    """Return what a method sees of clients that share noise: rows, and losses if it needs them.

    Inner products and norms raise MethodError: the server has no update.
    """
    names = replies.names
    counts = np.array([replies.metrics[name][NUM_EXAMPLES] for name in names])
    weights = method.prior_weights_of(names, counts.tolist())
    metrics = dict[str, FloatArray]()
    if LOSS_BEFORE in method.needs:
        metrics[LOSS_BEFORE] = smooth_losses(method, replies)

    def refuse() -> FloatArray:
        raise MethodError(
            f"{type(method).__name__} reads updates, and the server has only their sum, as clients"
            " share noise (privacy.honest): take a method that weighs by rows or losses, fedavg or"
            " term for example"
        )

    return Cohort(
        round=server_round,
        num_rounds=num_rounds,
        names=names,
        online=names,
        counts=counts,
        prior=weights / weights.sum(),
        draws=np.ones(len(names)),
        metrics=Needed(type(method).__name__, metrics),
        past=method.past,
        gram_of=refuse,
        grams_of=refuse,
        squared_norms_of=refuse,
    )


class Weighed(NamedTuple):
    """The weights of a round: w of sum 1, shape (m,), and the method's memory after it."""

    weights: FloatArray
    memory: Mapping[str, Any]


def weigh(method: Method, cohort: Cohort, cap: float) -> Weighed:
    """Return the capped weights that a method gives the clients of a sum.

    Raise MethodError if it returns a negative number, or keeps a row.
    """
    decision = decide(method, cohort)
    weights = decision.coefficients
    if weights.ndim > 1 or weights.min() < 0.0 or not weights.any() or decision.keep:
        raise MethodError(
            f"{type(method).__name__}.weigh, in round {cohort.round}, returned {weights}, and keeps"
            f" {len(decision.keep)} rows: clients that share noise need one weight each, none below"
            " 0, and the server has no row to keep"
        )
    memory = learn(method, decision, cohort, (), {})
    return Weighed(cap_weights(weights, cohort.counts, cap), memory)


def step_of_sum(
    method: Method, model: Model, total: Integers, scale: float, asked: SharedNoise
) -> tuple[Model, float, Moments | None]:
    """Return the model after the step of a sum, the step's norm, and the optimizer's moments.

    The step is −η γ max_j (w_j/n_j) Σ q, of which `scale` is η max_j (w_j/n_j); a server optimizer
    may change it. Raise NoStepError if the model would not be finite.
    """
    layout = method.layout_of(model)
    lattice = Lattice(asked.sigma, CLIP, layout.size, asked.honest)
    direction = scale * lattice.spacing * total.astype(np.float64)
    moments = None
    if method.server_optimizer is None:
        flat = layout.flat - direction
    else:
        flat, moments = method.server_optimizer.step(
            layout.flat, direction, method.run_state.moments
        )
    after = layout.arrays_of(flat)
    if not all(np.isfinite(array).all() for array in after.values()):
        raise NoStepError("the step makes numbers of the model infinite")
    shared = {name: after[first] for name, first in layout.shared.items()}
    return {**model, **after, **shared}, norm(direction), moments
