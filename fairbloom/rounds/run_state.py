"""The state of a run: one frozen value, which only the transitions of this module change.

A round has these: `drawn`, `screened`, `charged` and `without` for privacy accounts, `stepped` and
`learned` or `without_step`, `with_states`, `averaged`, `tested` and `evaluated`. Flower's hooks add
`hooked`, a run folder adds `counted` and `recorded`, and `stopped` ends a run before a round. A
checkpoint has a state by its fields, as `system.values` writes them, once its rows are `in_memory`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.names import LOSS_BEFORE

from .accounts import AccountInRun
from .arrays import FloatArray, Model
from .cohort import Kept
from .participation import Participations
from .round import Round
from .server_optimizer import Moments
from .states import States
from .vectors import Vectors

# A round is compared with this many earlier rounds, by number; skipped rounds have no norms.
ROUNDS_BACK = 5


@dataclass(frozen=True)
class NormHistory:
    """The norms of a run's updates and steps.

    `used` has ‖u_k‖/e_k of the used replies by round, for the last ROUNDS_BACK rounds;
    `longest_step` is the norm of the run's longest step.
    """

    used: Mapping[int, FloatArray] = field(default_factory=dict)
    longest_step: float = 0.0

    def before(self, server_round: int) -> FloatArray:
        """Return ‖u_k‖/e_k of all used replies in the rounds that this one is compared with."""
        recent = [
            norms
            for number, norms in self.used.items()
            if server_round - ROUNDS_BACK <= number < server_round
        ]
        return np.concatenate(recent) if recent else np.empty(0)

    def plus(self, server_round: int, used: FloatArray, step: float) -> Self:
        """Return the history with one more round.

        `used` has ‖u_k‖/e_k of its used replies, and `step` is the norm of its step.
        """
        kept = {
            number: norms
            for number, norms in self.used.items()
            if number > server_round - ROUNDS_BACK
        }
        return type(self)({**kept, server_round: used}, max(step, self.longest_step))


@dataclass(frozen=True)
class Average:
    """The sum in float64 of the global models after some rounds, which gives their mean."""

    rounds: int = 0
    sums: Mapping[str, FloatArray] = field(default_factory=dict)

    def plus(self, model: Model) -> Self:
        """Return the sum with one more model."""
        sums = dict[str, FloatArray]()
        for name, array in model.items():
            if array.dtype.kind == "f":
                total = np.add(self.sums.get(name, 0.0), array, dtype=np.float64)
                sums[name] = np.asarray(total)
        return type(self)(self.rounds + 1, sums)

    def mean(self, last: Model) -> Model:
        """Return the mean, in the dtypes of the last model and with its integer arrays.

        It is the last model itself if no model was added.
        """
        if not self.rounds:
            return last
        means = {
            name: np.asarray(total / self.rounds, last[name].dtype)
            for name, total in self.sums.items()
        }
        return {name: means.get(name, array) for name, array in last.items()}


@dataclass(frozen=True)
class ScoreSoFar:
    """The best score of a run's rounds so far, if any is known, and its round.

    `last` is the last round with a known score.
    """

    best: float | None = None
    best_round: int = 0
    last: int = 0

    def after(
        self, number: int, value: float | None, better: Callable[[float, float], float]
    ) -> Self:
        """Return what is known after a round with this score, None if it has none.

        `better` returns by how much the first of two scores is the better one.
        """
        if value is None:
            return self
        if self.best is None or better(value, self.best) > 0.0:
            return type(self)(value, number, number)
        return replace(self, last=number)


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a run knows after its rounds so far, besides the model.

    Attributes
    ----------
    finished_rounds
        The number of the last finished round.
    steps
        How many rounds took a step.
    skipped
        How many rounds in a row, up to the last one, took none.
    changed
        Whether any reply has changed a trainable parameter.
    unchanged
        How many rounds had usable replies before one did.
    evaluated_round
        The last round with a usable evaluation, 0 without one.
    unevaluated
        How many rounds in a row, up to the last one, asked for evaluations and could use none.
    memory
        The method's memory: str, numbers, None, arrays, lists and dicts only.
    kept
        The rows that the method keeps.
    first_counts
        The weight that each client stated first: in its first usable reply, or before it.
    first_tests
        The same of evaluations.
    average
        The mean of the global models, if the method averages them.
    norms
        The norms of the last rounds' updates, and of the longest step.
    roster
        Training examples of every known client, if the method requires them.
    moments
        The moments of the server optimizer.
    states
        The rounds of the clients' states.
    spent
        The clients with a spent privacy budget.
    halted
        The clients with a halted privacy account, until they answer a query.
    accounts
        The privacy accounts of the clients that have one.
    with_state
        The clients whose contexts have a state.
    configs
        The hooks' changes to a user's configs, by message.
    wrappers
        The plain values of the strategies around the method, the outermost first.
    best
        The score that chooses the best model.
    stopping
        The score that early stopping goes by, if the run may end early.
    losses
        The training losses, by client, of the model that the next round begins with; empty if they
        are unknown.
    participations
        How often each client was asked to train, answered, and had its reply used.
    """

    finished_rounds: int = 0
    steps: int = 0
    skipped: int = 0
    changed: bool = False
    unchanged: int = 0
    evaluated_round: int = 0
    unevaluated: int = 0
    memory: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[Kept, Vectors] = field(default_factory=dict)
    first_counts: Mapping[str, float] = field(default_factory=dict)
    first_tests: Mapping[str, float] = field(default_factory=dict)
    average: Average = field(default_factory=Average)
    norms: NormHistory = field(default_factory=NormHistory)
    roster: Mapping[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    states: States = field(default_factory=States)
    spent: frozenset[str] = frozenset()
    halted: frozenset[str] = frozenset()
    accounts: Mapping[str, AccountInRun] = field(default_factory=dict)
    with_state: frozenset[str] = frozenset()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wrappers: Sequence[Mapping[str, Any]] = ()
    best: ScoreSoFar = ScoreSoFar()
    stopping: ScoreSoFar = ScoreSoFar()
    losses: Mapping[str, float] = field(default_factory=dict)
    participations: Participations = field(default_factory=Participations)

    # Transitions ----------------------------------------------------------------------------------

    def drawn(self, sizes: Mapping[str, float]) -> Self:
        """Return the state with new clients in the roster, with their examples or 0."""
        roster = {**self.roster, **sizes}
        return replace(self, roster={name: roster[name] for name in sorted(roster)})

    def screened(self, counts: Mapping[str, float]) -> Self:
        """Return the state after the screening of a round's replies, or of what precedes the first.

        `counts` has the weights that the usable replies state. The roster gets numbers that it
        lacks.
        """
        new = {name: count for name, count in counts.items() if name not in self.first_counts}
        if not new and not self.roster:
            return self
        first = {**self.first_counts, **new}
        roster = {name: size or float(first.get(name, 0.0)) for name, size in self.roster.items()}
        return replace(self, first_counts=first, roster=roster)

    def without(self, spent: Collection[str], halted: Collection[str]) -> Self:
        """Return the state of a run that asks `spent` clients no more.

        It asks none whose account is `halted` for work, either; no others are halted.
        """
        return replace(self, spent=self.spent.union(spent), halted=frozenset(halted))

    def charged(
        self,
        statuses: Mapping[str, AccountStatus],
        reports: Mapping[str, Mapping[str, float]],
        *,
        shared: bool = False,
    ) -> Self:
        """Return the state after replies with these statuses, and the metrics of usable ones.

        With `shared` noise, no client's steps have more noise than another's.
        """
        accounts = {**self.accounts}
        for name, status in statuses.items():
            noise = 0.0 if shared else status.sigma**2
            signal = 1.0 / (1.0 + noise / max(status.rows, 1.0))
            account = self.accounts.get(name, AccountInRun(signal, status.units))
            accounts[name] = account.after(status.spent, reports.get(name, {}).get(LOSS_BEFORE))
        return replace(self, accounts=accounts)

    def stepped(
        self,
        number: int,
        memory: Mapping[str, Any],
        kept: Mapping[Kept, Vectors],
        moments: Moments | None,
        norms: NormHistory,
    ) -> Self:
        """Return the state after the step of a round."""
        return replace(
            self,
            finished_rounds=number,
            steps=self.steps + 1,
            skipped=0,
            memory=memory,
            kept=kept,
            moments=moments,
            norms=norms,
        )

    def without_step(self, number: int) -> Self:
        """Return the state after a round that took no step."""
        return replace(self, finished_rounds=number, skipped=self.skipped + 1)

    def learned(self, *, changed: bool, unchanged: bool) -> Self:
        """Return the state after a round in which replies changed a parameter, or did not.

        `unchanged` is whether some replies changed none, without a known reason.
        """
        if self.changed:
            return self
        rounds = self.unchanged
        if unchanged and not changed:
            rounds += 1
        return replace(self, changed=changed, unchanged=rounds)

    def with_states(self, states: States, *, lost: bool) -> Self:
        """Return the state with the rounds of the clients' states after a round.

        If a client has `lost` its state, the method begins again, too.
        """
        left = replace(self, memory={}, kept={}) if lost else self
        return replace(left, states=states)

    def averaged(self, model: Model) -> Self:
        """Return the state with one more model in the mean."""
        return replace(self, average=self.average.plus(model))

    def tested(self, counts: Mapping[str, float]) -> Self:
        """Return the state with the test examples that clients state in usable evaluations."""
        return replace(self, first_tests={**counts, **self.first_tests})

    def evaluated(self, number: int, *, usable: bool) -> Self:
        """Return the state after a round that asked for evaluations."""
        if usable:
            return replace(self, evaluated_round=number, unevaluated=0)
        return replace(self, unevaluated=self.unevaluated + 1)

    def hooked(
        self,
        configs: Mapping[str, Mapping[str, Any]],
        wrappers: Sequence[Mapping[str, Any]],
        with_state: Collection[str],
    ) -> Self:
        """Return the state after hooks of Flower's, which may change configs and wrappers."""
        return replace(
            self, configs=configs, wrappers=tuple(wrappers), with_state=frozenset(with_state)
        )

    def counted(self, finished: Round) -> Self:
        """Return the state that knows who took part in a finished round."""
        return replace(self, participations=self.participations.after(finished))

    def recorded(self, best: ScoreSoFar, stopping: ScoreSoFar, losses: Mapping[str, float]) -> Self:
        """Return the state after the finished round was recorded, with its scores and losses."""
        return replace(self, best=best, stopping=stopping, losses=losses)

    def stopped(self, last: int) -> Self:
        """Return the state of a run that ends after its round `last`."""
        return replace(self, finished_rounds=last)

    # Before it is written -------------------------------------------------------------------------

    def in_memory(self) -> Self:
        """Return the state with kept rows of its own, where they lie in files or are computed."""
        rows = {
            label: Vectors.of(row.blocks[0][0].copy(), needs_float64=row.needs_float64)
            for label, row in self.kept.items()
        }
        return replace(self, kept=rows)
