"""The rounds of a run, with any method and any clients."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairbloom.errors import find_nearest, join_names
from fairbloom.logs import log
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.names import TRAIN_LOSS
from fairbloom.protocol.scores import Score
from fairbloom.protocol.terms import Terms
from fairbloom.text import plural, text_if

from .aggregation import NoStepError, Step, aggregate, build_cohort, check_row
from .arrays import Model
from .clients import NOTHING, ClientPool, Metrics, Replies, TrainReplies, check_names
from .cohort import MethodError
from .compatibility import ROSTER
from .in_progress import RoundEvaluation, RoundInProgress
from .learning import Watcher, find_unchanged
from .method import Method
from .refusals import NotFiniteMetricError, log_repeated
from .round import Round, StopRun
from .run_state import RunState
from .sampling import sample, share
from .screening import (
    NormBounds,
    check_model,
    screen_evaluations,
    screen_replies,
    usable_sizes,
)
from .sums import Summing, take_sum


class Rounds:
    """The rounds of a method with its clients.

    `run` takes the four steps of each round and makes the clients work in between. Flower's hooks,
    which have the same names, take them one by one, for `run_by`: `configure_train`,
    `aggregate_train`, `configure_evaluate`, `aggregate_evaluate`.

    Parameters
    ----------
    num_rounds
        T, the rounds of the whole run; None if unknown.
    known
        The names of the clients that the run has known before.
    enrolled
        Leaves the clients that the operator has revoked out of some names.
    all_evaluate_last
        Whether all clients evaluate the last round's model, regardless of the method's fraction,
        unless that is 0.
    first_limit
        A client's first count of examples may be this many times the others' median, unless it is
        enrolled with a size.
    scores
        The scores of the run, whose intervals bound what clients report; others are known by name.
    spend
        The most units that the run spends of each client's privacy account; 0: the lowest price of
        each round.
    units
        That lowest price.
    accounts
        The privacy accounts that are known before the first round.
    summing
        How the clients share the noise of their accounts; None: each has its own.
    """

    def __init__(
        self,
        method: Method,
        clients: ClientPool,
        num_rounds: int | None = None,
        known: Iterable[str] = (),
        *,
        enrolled: Callable[[Iterable[str]], Collection[str]] = tuple,
        all_evaluate_last: bool = False,
        first_limit: float = math.inf,
        scores: Iterable[Score] = (),
        spend: float = 0.0,
        units: int = 1,
        accounts: Iterable[tuple[str, AccountStatus]] = (),
        summing: Summing | None = None,
    ) -> None:
        self.clients = clients
        # The clients that were online at the last draw, in the order of names.
        self.online: Sequence[str] = ()
        # The round in progress, or the last one. Flower's hooks, which are called one by one, find
        # it here.
        self.current = RoundInProgress(number=0)
        # Known clients that are offline. `self.online` has the others: there may be a million.
        self._offline = set(known)
        self._enrolled = enrolled
        self._revoked = frozenset[str]()  # when a round began
        # The reason why the rounds ended before the last one, or "".
        self.stopped = ""
        # The last status of each client's privacy account.
        self.accounts = dict(accounts)
        self._method = method
        self.num_rounds = num_rounds
        self._all_evaluate_last = all_evaluate_last
        self._first_limit = first_limit
        self._scores = {score.name: score for score in scores}
        self._spend = spend
        self._units = units
        self._summing = summing
        self._watcher = Watcher(method, num_rounds)
        self._has_asked = False  # whether this process has asked clients to train
        self._has_checked_names = False
        self._owing = frozenset[str]()  # the clients that owed a reply when the last round began
        self._said = Counter[tuple[str, str]]()  # the reasons of refusals that are in the log

    def run(
        self, model: Model, *, measure: Callable[[int], Sequence[str]], measure_after: Sequence[str]
    ) -> Iterator[Round]:
        """Yield the remaining rounds with these clients as they finish; see `run_by`.

        Parameters
        ----------
        model
            The global model after the last finished round.
        measure
            Returns the metrics that clients which evaluate after a round report of its training, in
            addition to those that the method needs. They are only recorded.
        measure_after
            The metrics that its participants report in evaluation.
        """
        check_model(self._method, model)

        def train(number: int, model: Model) -> tuple[Model | None, Metrics]:
            if self._summing is not None:
                return self._train_by_sum(number, model, self._summing)
            recorded = measure(number)
            current = self.configure_train(number, model, recorded)
            if recorded:
                self._ask_evaluators_only(current)
            # The replies get no name here: their updates are as large as all models, and must be
            # gone before the clients evaluate.
            return self.aggregate_train(
                number,
                self.clients.train([*current.draws], model, current.terms, current.vectors),
            )

        def evaluate(number: int, model: Model) -> RoundEvaluation:
            names, terms, served = self.configure_evaluate(number, model, measure_after)
            metrics: Metrics | None = None
            if names:
                asked: Collection[str] = self.current.participants
                if accounts := self._method.run_state.accounts:  # each loss is charged
                    asked = [name for name in asked if name not in accounts]
                metrics = self.aggregate_evaluate(
                    self.clients.evaluate(names, served, terms, asked)
                )
            return RoundEvaluation(served if self._method.average_models else None, metrics)

        return self.run_by(train, evaluate, model)

    def run_by(
        self,
        train: Callable[[int, Any], tuple[Any, Mapping[str, Any] | None]],
        evaluate: Callable[[int, Any], RoundEvaluation],
        model: Any,
    ) -> Iterator[Round]:
        """Yield the remaining rounds as they finish, with models in any form.

        StopRun ends the rounds before the one in which it is raised; `stopped` has its reason.

        Parameters
        ----------
        train
            Trains in the round of this number; returns the model, None if it is unchanged, and the
            metrics.
        evaluate
            Evaluates the model after the round of this number.
        """
        last = self._method.run_state.finished_rounds
        rounds = self.num_rounds or 0
        try:
            for number in range(last + 1, rounds + 1):
                after, metrics = train(number, model)
                if after is not None:
                    model = after
                yield self.current.finish(model, metrics or {}, evaluate(number, model))
                last = number
                if self.stopped:
                    break
        except StopRun as stop:
            self.stopped = stop.reason
            self._method.enter(self._method.run_state.stopped(last))
            return
        finally:
            log_repeated(self._said)
        self._watcher.check_learned()

    # The four steps -------------------------------------------------------------------------------

    def configure_train(
        self,
        number: int,
        model: Model,
        measure: Sequence[str],
        others: Mapping[str, Any] | None = None,
    ) -> RoundInProgress:
        """Begin a round: draw its clients from (seed, round), and set the terms of their work."""
        method = self._method
        current = RoundInProgress(number=number)
        self.current = current
        if halted := method.run_state.halted:
            method.enter(
                method.run_state.without((), halted.difference(self.clients.sizes(sorted(halted))))
            )
        free = self._wait_for_available(method.min_train_nodes, trains=True, waits=True)
        self._log_owing(current)
        self._check_training_clients()
        if ROSTER in method.requires and (sizes := self._sizes_of_new()):
            method.enter(method.run_state.drawn(sizes))
        state = method.run_state
        current.offline = tuple(sorted(self._enrolled(self._offline)))
        current.revoked = tuple(sorted(self._offline.difference(current.offline)))
        self._log_revoked(current.revoked)
        current.excluded = tuple(sorted(self._find_excluded()))
        current.draws = self._choose(
            free, share(method.fraction_train, len(free), method.min_train_nodes), number
        )
        self._has_asked |= bool(current.draws)
        current.terms = replace(
            method.terms(number),
            measure=tuple(sorted(method.needs.union(measure))),
            state_rounds=state.states.of(current.draws) if method.keeps_states else {},
            seed=method.seed,
            others=others or {},
            **self._offer(current),
        )
        sends = method.sends()
        current.factors = {record: factor for record, (_, factor) in sends.items()}
        vectors = dict[str, Model]()
        for record, (kept, factor) in sends.items():
            row = state.kept[kept]
            layout = method.layout_of(model)
            check_row(method, f"an update of round {kept.round}", row.size, layout)
            vectors[record] = layout.arrays_of(row.blocks[0][0] * factor)
        current.vectors = vectors
        return current

    def aggregate_train(self, number: int, replies: TrainReplies) -> tuple[Model | None, Metrics]:
        """Screen the replies, weigh the updates and take the step.

        Return the model, None if it is unchanged, and the round's metrics.

        Raises
        ------
        NothingLearnedError
            When `unused_rounds` rounds in a row took no step, or that many rounds had only replies
            without a change.
        MethodError
            When the method does not return coefficients.
        """
        method = self._method
        current = self.current
        current.number = number  # a user's configure_train may not have called ours
        # Updates, and vectors that were sent, are as large as models: the round does not keep them.
        current.replies = replies.without_updates()
        current.vectors = NOTHING
        norm_bounds = self._screen(current, replies)
        replies.refused.log(self._said)
        self._note_accounts(number, replies)
        state = method.run_state
        model: Model | None = None
        skip_reason = ""
        unchanged: Sequence[str] = ()
        if norm_bounds is None:
            skip_reason = current.explain_no_update(replies, method.training_clients)
        else:
            changed, unchanged = find_unchanged(current, replies)
            try:
                model, current.step, state = self._aggregate(current, replies, norm_bounds)
            except NoStepError as reason:
                skip_reason = str(reason)
            state = state.learned(changed=changed, unchanged=bool(unchanged))
        if skip_reason:
            state = state.without_step(number)
        if method.keeps_states:
            state = self._with_states(state, current, () if model is None else replies.names)
        method.enter(state)
        if skip_reason:
            # Refused replies are in the lines above, with their reasons.
            is_logged = norm_bounds is None and not replies.missing and replies.refused.count
            log.warning(
                "round %d is skipped, and the model stays as it is%s",
                number,
                text_if(not is_logged, f": {skip_reason}"),
            )
        self._watcher.check_step(number, skip_reason)
        self._watcher.check_unchanged(current, unchanged)
        metrics = replies.summarize(
            len(current.draws) * current.is_answered, method.weighted_by_key
        )
        if model is None:
            return None, metrics
        return model, metrics | current.step.metrics

    def _train_by_sum(
        self, number: int, model: Model, summing: Summing
    ) -> tuple[Model | None, Metrics]:
        """Take the step of the sum of all clients; see `take_sum`."""
        current = self.configure_train(number, model, ())
        taken = take_sum(self._method, self.clients, current, model, summing)
        current.replies = taken.replies
        current.step = taken.step
        self.accounts.update(taken.replies.accounts)
        self._watcher.check_step(number, "")
        metrics = taken.replies.summarize(len(current.draws), self._method.weighted_by_key)
        return taken.model, metrics | taken.step.metrics

    def configure_evaluate(
        self,
        number: int,
        model: Model,
        measure: Sequence[str],
        others: Mapping[str, Any] | None = None,
    ) -> tuple[Sequence[str], Terms, Model]:
        """Draw the clients that evaluate, none if the round is not evaluated.

        If the method averages models, add this one to their mean. Return the clients, the terms of
        their work, and the model that they evaluate.
        """
        method = self._method
        if method.average_models:
            frozen = frozenset(method.frozen_in(model))
            changing = {name: array for name, array in model.items() if name not in frozen}
            method.enter(method.run_state.averaged(changing))
        terms = method.terms(number).for_evaluation(measure, others or {})
        current = self.current
        current.number = number  # this process may not have begun the round
        current.evaluators = ()
        if self.evaluates(number):
            last = number == self.num_rounds or bool(self.stopped)
            free = self._wait_for_available(method.min_evaluate_nodes, trains=False, waits=last)
            current.evaluators = self._draw_evaluators(free, number)
        return current.evaluators, terms, self.mean_model(model)

    def aggregate_evaluate(self, replies: Replies) -> Metrics | None:
        """Screen the replies; return their mean metrics by examples, None if nobody was asked.

        Raises
        ------
        NothingLearnedError
            When `unused_rounds` evaluated rounds in a row had no usable evaluation.
        """
        current = self.current
        current.evaluation = replies
        method = self._method
        counts = screen_evaluations(method, replies, self._scores, self._first_limit)
        method.enter(method.run_state.tested(counts))
        replies.refused.log(self._said)
        self._note_accounts(current.number, replies)
        if not current.evaluators:
            return None
        method.enter(method.run_state.evaluated(current.number, usable=bool(replies.names)))
        self._watcher.check_evaluation(current)
        return replies.summarize(len(current.evaluators), method.weighted_by_key)

    # The run --------------------------------------------------------------------------------------

    @property
    def known(self) -> set[str]:
        """The names of the clients that the run has known up to now."""
        return self._offline.union(self.online)

    @property
    def diverged(self) -> bool:
        """Whether local steps made numbers in the replies of the current or last round infinite.

        A loss of the first model does not count: no step has made it.
        """
        replies = self.current.replies
        if replies is None:
            return False
        return any(
            self._method.run_state.steps > 0 or not isinstance(error, NotFiniteMetricError)
            for error in replies.refused.not_finite.values()
        )

    def evaluates(self, number: int) -> bool:
        """Return whether clients evaluate after this round."""
        if self._method.fraction_evaluate <= 0.0:
            return False
        if self.stopped or number == self.num_rounds:
            return True
        every = self._method.evaluate_every
        return every > 0 and number % every == 0

    def mean_model(self, model: Model) -> Model:
        """Return the mean of all global models if they are averaged, else the last one, `model`.

        It is the model that is evaluated and saved.
        """
        return self._method.run_state.average.mean(model)

    # Parts ----------------------------------------------------------------------------------------

    def _wait_for_available(self, fewest: int, *, trains: bool, waits: bool) -> Sequence[str]:
        """Return the clients that can be asked, of those that train or of all, by name.

        With `waits`, a run that had clients before waits until enough can be asked.
        """
        fewest = max(self._method.min_available_nodes, fewest)
        while True:
            before = self.online
            self.online = self.clients.online(fewest)
            # Clients in one process are always online, as the same object.
            if self.online is not before and (before or self._offline):
                self._offline = self._offline.union(before).difference(self.online)
            self.current.known_clients = len(self.online) + len(self._offline)
            is_enough = len(self.online) >= fewest
            free = self.clients.free() if is_enough else ()
            if trains and is_enough:
                self.current.owing = self._find_owing(free)
            if trains:
                free = self._select_training(free)
            if free or not waits or not (self._has_asked or self._method.run_state.steps):
                return free
            # Excluded clients that are online are free, too: one of the others is awaited.
            excluded = self._find_excluded().intersection(self.online)
            self.clients.wait_until_free(len(excluded) + 1 if excluded else fewest)

    def _find_owing(self, free: Sequence[str]) -> tuple[str, ...]:
        """Return the clients online that train and are not free, as they owe a reply."""
        if len(free) == len(self.online):  # there may be a million
            return ()
        return tuple(self._select_training(sorted({*self.online}.difference(free))))

    def _log_owing(self, current: RoundInProgress) -> None:
        """Log which clients are not asked from this round on, and which are asked again."""
        owing = frozenset(current.owing)
        if new := sorted(owing - self._owing):
            log.warning(
                "round %d begins without %s, which %s an earlier reply: %s asked again after a late"
                " reply, or else after a pause that doubles each time",
                current.number,
                join_names(new),
                plural(len(new), "owes", "owe"),
                plural(len(new), "it is", "they are"),
            )
        if back := sorted(self._owing.intersection(self.online) - owing):
            log.info("round %d asks %s again", current.number, join_names(back))
        self._owing = owing

    def _log_revoked(self, names: Sequence[str]) -> None:
        """Log once which clients the operator has revoked."""
        if new := sorted(set(names).difference(self._revoked)):
            log.warning(
                "the operator has revoked %s: the run goes on without %s",
                join_names(new),
                plural(len(new), "it", "them"),
            )
        self._revoked = frozenset(names)

    def _choose(self, free: Sequence[str], wanted: int, number: int) -> Counter[str]:
        """Return the method's draw from the free clients; check that it is one."""
        if not free:
            return Counter()
        drawn = sorted(self._method.choose(free, wanted, number))
        name = f"{type(self._method).__name__}.choose, in round {number},"
        if not drawn:
            raise MethodError(
                f"{name} selected none of the {len(free)} clients: return at least one of the names"
                " passed to it"
            )
        if strange := set(drawn).difference(free):
            raise MethodError(
                f"{name} drew {min(strange)!r}, which is not one of the {len(free)} available"
                " clients: return only names from its argument"
            )
        return Counter(drawn)

    def _draw_evaluators(self, free: Sequence[str], number: int) -> Sequence[str]:
        """Draw the clients that evaluate after a round, from those that can be asked.

        Clients with privacy accounts have few reports on their tests: unless `evaluate_every` is
        above 1, they evaluate the final model only.
        """
        method = self._method
        is_last = number == self.num_rounds or bool(self.stopped)
        state = method.run_state
        if not is_last and method.evaluate_every <= 1 and state.accounts:
            free = [name for name in free if name not in state.accounts]
        if state.halted:
            free = [name for name in free if name not in state.halted]
        if not free:
            return ()
        all_evaluate = number == self.num_rounds and self._all_evaluate_last
        fraction = max(float(all_evaluate), method.fraction_evaluate)
        return sample(
            free,
            share(fraction, len(free), method.min_evaluate_nodes),
            method.seed,
            "evaluate",
            number,
        )

    def _ask_evaluators_only(self, current: RoundInProgress) -> None:
        """Clients that will not evaluate report only the metrics that the method needs.

        No table has a row of the others, and a loss costs a pass over their data.
        """
        others = current.draws.keys() - self._draw_evaluators(self.clients.free(), current.number)
        others |= current.draws.keys() & self._method.run_state.accounts.keys()
        current.terms = replace(
            current.terms, measures=dict.fromkeys(others, tuple(sorted(self._method.needs)))
        )

    def _sizes_of_new(self) -> dict[str, float]:
        """Return the examples of training clients that the roster lacks, 0 if they are unknown."""
        roster = self._method.run_state.roster
        new = [name for name in self._select_training(sorted(self.known)) if not roster.get(name)]
        if not new:
            return {}
        sizes = usable_sizes(self._method, self.clients.sizes(new), self._first_limit)
        return {name: sizes.get(name, 0.0) for name in new}

    def _select_training(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of the clients that train, in the same order; by default all."""
        if excluded := self._find_excluded():
            names = [name for name in names if name not in excluded]
        chosen = set(self._method.training_clients)
        return [name for name in names if name in chosen] if chosen else names

    def _check_training_clients(self) -> None:
        """Log once which names in `training_clients` no client has, with the nearest names.

        A run does not begin with such names in `prior`: it would be another prior.
        """
        if self._has_checked_names:
            return
        self._has_checked_names = True
        known = self.known
        if self._method.run_state.finished_rounds == 0:
            check_names(
                "prior", tuple(self._method.prior_weights), self._select_training(sorted(known))
            )
        for name in (client for client in self._method.training_clients if client not in known):
            near = find_nearest(name, sorted(known))
            log.warning(
                "training_clients names %s, but no client online has this name%s",
                name,
                text_if(near, f"; did you mean {near}?"),
            )

    def _screen(self, current: RoundInProgress, replies: TrainReplies) -> NormBounds | None:
        """Refuse replies that are not plausible; return the norm bounds of the others, if any."""
        method = self._method
        if method.keeps_states:
            current.lost_states = method.run_state.states.screen(
                replies, current.terms.state_rounds
            )
        norm_bounds = screen_replies(method, replies, current.number, self._first_limit)
        counts = {name: report[method.weighted_by_key] for name, report in replies.metrics.items()}
        method.enter(method.run_state.screened(counts))
        return norm_bounds

    def _aggregate(
        self, current: RoundInProgress, replies: TrainReplies, norm_bounds: NormBounds
    ) -> tuple[Model, Step, RunState]:
        method = self._method
        rows = build_cohort(
            method,
            replies,
            server_round=current.number,
            num_rounds=self.num_rounds,
            online=self._select_training(self.online),
            draws=current.draws,
            sent=current.factors,
        )
        return aggregate(method, replies, norm_bounds, rows, partial(self._evaluate_probe, current))

    def _evaluate_probe(self, current: RoundInProgress, model: Model) -> Replies:
        """Make a second sample of the training clients report their loss at a model."""
        free = self._select_training(self.clients.free())
        names = sample(
            free, min(current.draws.total(), len(free)), self._method.seed, "losses", current.number
        )
        terms = Terms(
            server_round=current.number,
            measure=(TRAIN_LOSS,),
            wire_dtype=self._method.wire_dtype,
        )
        replies = self.clients.probe(names, model, terms)
        current.bytes_of_probe = replies.bytes_sent
        return replies

    # Privacy accounts -----------------------------------------------------------------------------

    def _offer(self, current: RoundInProgress) -> dict[str, Any]:
        """Return the terms of what the run may still spend of its clients' privacy accounts.

        The price of shared noise follows from the noise of the sum.
        """
        accounts = self._method.run_state.accounts
        if not self._spend or not accounts or self.num_rounds is None or self._summing:
            return {}
        # It is asked now; the factor allows for rounding: a tenth of 30 rounds is 3.
        more = (self.num_rounds - current.number) * self._method.fraction_train * (1.0 - 1e-12)
        budgets = {
            name: accounts[name].units_left(self._spend)
            for name in current.draws
            if name in accounts
        }
        return {"privacy_budgets": budgets, "privacy_rounds": 1 + math.ceil(more)}

    def note_first_accounts(self) -> None:
        """Note the accounts with which the run begins."""
        shared = self._summing is not None
        self._method.enter(self._method.run_state.charged(self.accounts, {}, shared=shared))

    def _find_excluded(self) -> frozenset[str]:
        """Return the clients that cannot train: their privacy accounts are spent or halted."""
        state = self._method.run_state
        excluded = state.spent | state.halted
        if not self._spend:
            return excluded
        return excluded.union(
            name
            for name, account in state.accounts.items()
            if account.units_left(self._spend) < self._units
        )

    def _note_accounts(self, number: int, replies: Replies) -> None:
        """Note what replies say of privacy accounts; stop the run if none allows more work."""
        method = self._method
        refused = replies.refused
        spent = refused.with_code(ErrorCode.BUDGET_SPENT)
        halted = refused.with_code(ErrorCode.ACCOUNT_HALTED)
        if not replies.accounts and not spent and not halted:
            return
        state = method.run_state.charged(replies.accounts, replies.metrics)
        self.accounts.update(replies.accounts)
        method.enter(state.without(spent, state.halted | halted))
        if spent:
            log.warning(
                "%s %s spent the privacy budget after round %d, and %s left out from now on",
                join_names(sorted(spent)),
                plural(len(spent), "has", "have"),
                number - 1,
                plural(len(spent), "is", "are"),
            )
        is_last = number == self.num_rounds
        if not is_last and self._find_excluded() and not self._select_training(self.online):
            self.stopped = "the privacy accounts of all clients are spent or halted"

    def _with_states(
        self, state: RunState, current: RoundInProgress, used: Collection[str]
    ) -> RunState:
        """Return the state with the round of these clients' states.

        If a client has lost its own, all begin again.
        """
        states = state.states.after(current.number, used)
        if not current.lost_states:
            return state.with_states(states, lost=False)
        log.warning(
            "round %d: %s lost the state that clients keep between rounds, so %s and all"
            " clients begin again without state",
            current.number,
            join_names(current.lost_states),
            type(self._method).__name__,
        )
        return state.with_states(states.without_all(current.lost_states), lost=True)
