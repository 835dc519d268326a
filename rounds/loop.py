"""One round after the other, for every method and everybody who computes."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.names import SNAPSHOT, TRAIN_LOSS
from fairbloom.protocol.terms import Terms

from .aggregation import (
    NoStepError,
    check_row,
    cohort_of,
    defended,
    rows_after,
    single_coefficients,
)
from .arrays import FloatArray, Model, norm
from .clients import ClientPool, Replies, Reports, TrainReplies
from .cohort import Cohort, MethodError, Probed
from .compatibility import ROSTER
from .defences import trimmed_mean
from .method import Method
from .refusals import NotFiniteMetricError
from .round import Round
from .sampling import sample, share
from .screening import (
    NormBounds,
    check_model,
    check_step,
    out_of_proportion,
    screen_buffers,
    screen_lengths,
    screen_reports,
    usable_sizes,
)
from .server_optimizer import Moments
from .vectors import Vectors, weighted_sum

Metrics = dict[str, Any]


class NothingLearnedError(FairbloomError):
    """A run without any step; the message says what the clients lack and what to do."""


class Rounds:
    """The rounds of a method with its clients: `ask`, `train`, `ask_to_evaluate` and `evaluate`, in this order.

    `run` calls them and lets the clients work in between; Flower's hooks call them one by one.

    Parameters
    ----------
    num_rounds
        T, the rounds of the whole run; None where nobody knows.
    known
        The names of the clients that the run has known before.
    all_evaluate_last
        Whether all clients evaluate the last round's model, whatever share does so otherwise,
        unless none does.
    first_limit
        A client's first count of examples may be this many times the others' median, unless it is
        enrolled with one.
    """

    def __init__(
        self,
        method: Method,
        clients: ClientPool,
        num_rounds: int | None = None,
        known: Iterable[str] = (),
        *,
        all_evaluate_last: bool = False,
        first_limit: float = math.inf,
    ) -> None:
        self.clients = clients
        self.online: Sequence[str] = ()
        """The names of the clients that were online when some were drawn last, in order."""
        # of those known; the others, of whom there may be a million, are not kept once more
        self._away = set(known)
        self._method = method
        self._num_rounds = num_rounds
        self._all_evaluate_last = all_evaluate_last
        self._first_limit = first_limit
        self._why = "its rounds were skipped"
        self._asked = False  # whether clients were asked to train, by this process
        self._begin()

    def _begin(self) -> None:
        self._draws: Counter[str] = Counter()
        self._offline: tuple[str, ...] = ()
        self._trained: Replies | None = None
        self._evaluated: Replies | None = None
        self._asked_to_evaluate: list[str] = []
        self._bytes_of_probe = 0
        self._coefficients: dict[str, float] = {}
        self._left_out: tuple[str, ...] = ()
        self._sent: Mapping[str, float] = {}
        self._state_rounds: Mapping[str, int] = {}
        self._lost_states: tuple[str, ...] = ()

    def run(
        self, model: Model, *, measure: Callable[[int], Sequence[str]], measure_after: Sequence[str]
    ) -> Iterator[Round]:
        """Yield the rounds that are left, as they finish.

        `model` is the global one after the last finished round. `measure` returns the metrics that
        a round's training reports in addition to what the method needs; `measure_after` are those
        of its participants' evaluation.
        """
        check_model(self._method, model)
        for number in range(self._method.progress.finished_rounds + 1, (self._num_rounds or 0) + 1):
            names, terms, sent = self.ask(number, model, measure(number))
            after, metrics = self.train(number, self.clients.train(names, model, terms, sent))
            model = model if after is None else after
            names, terms, averaged = self.ask_to_evaluate(number, model, measure_after)
            replies = (
                self.clients.evaluate(names, averaged, terms, self.participants) if names else None
            )
            evaluated = None if replies is None else self.evaluate(replies)
            average = averaged if self._method.average_models else None
            yield self.finished_round(
                number, model, model, metrics, average, evaluation_metrics=evaluated
            )
        self.check_learned()

    # The four steps -------------------------------------------------------------------------------

    def ask(
        self,
        number: int,
        model: Model,
        measure: Sequence[str],
        others: Mapping[str, Any] | None = None,
    ) -> tuple[list[str], Terms, Mapping[str, Model]]:
        """Draw the round's clients from (seed, round).

        Return their names in order, and the terms of their work.

        The third is what each of them gets in addition to the model, by the name of its record.
        """
        method = self._method
        self._begin()
        free = self._free(method.min_train_nodes, trains=True, waits=True)
        if ROSTER in method.requires:
            self._enter_new()
        self._offline = tuple(sorted(self._away))
        wanted = share(method.fraction_train, len(free), method.min_train_nodes)
        self._draws = self._choose(free, wanted, number)
        self._asked |= bool(self._draws)
        measured = tuple(sorted(method.needs.union(measure)))
        self._state_rounds = method.progress.states.of(self._draws) if method.keeps_states else {}
        terms = replace(
            method.terms(number),
            measure=measured,
            state_rounds=self._state_rounds,
            seed=method.seed,
            others=others or {},
        )
        return list(self._draws), terms, self._vectors_to_send(model)

    def _vectors_to_send(self, model: Model) -> Mapping[str, Model]:
        method = self._method
        sent = dict[str, Model]()
        sends = method.sends()
        for record, (kept, factor) in sends.items():
            row = method.progress.kept[kept]
            layout = method.layout_of(model)
            check_row(method, f"an update of round {kept.round}", row.size, layout)
            sent[record] = layout.arrays_of(row.blocks[0][0] * factor)
        self._sent = {record: factor for record, (_, factor) in sends.items()}
        return sent

    def train(self, number: int, trained: TrainReplies) -> tuple[Model | None, Metrics]:
        """Screen the replies, weigh the updates and take the step.

        No model is returned where it stays as it is.

        Raises
        ------
        NothingLearnedError
            When `unused_rounds` rounds in a row took no step.
        MethodError
            When the method returns what cannot be coefficients.
        """
        method = self._method
        # Without the updates, which are as large as all models: they are no longer needed once the
        # step is taken.
        self._trained = Replies(
            **{each.name: getattr(trained, each.name) for each in fields(Replies)}
        )
        usual = self._screen(number, trained)
        trained.refused.log()
        method.progress.finished_rounds = number
        after: Model | None = None
        reported: Metrics = {}
        why = (
            "" if usual else _why_none_is_usable(len(self._draws), trained, method.training_clients)
        )
        if usual:
            try:
                after, reported = self._take(number, trained, usual)
            except NoStepError as reason:
                why = str(reason)
        if method.keeps_states:
            self._note_states(number, () if after is None else trained.names)
        self._why = why
        if why:
            # in the lines before
            said = not usual and not trained.missing and trained.refused.count
            log.warning(
                "round %d is skipped, and the model stays as it is%s",
                number,
                "" if said else f": {why}",
            )
        self._count(number, why)
        return after, self._summed_up(len(self._draws) if self._answered else 0, trained) | reported

    def averaged(self, model: Model) -> Model:
        """Return what is evaluated and saved where `model` is the last global one: itself, or the mean of all."""
        return self._method.progress.average.mean(model)

    def ask_to_evaluate(
        self,
        number: int,
        model: Model,
        measure: Sequence[str],
        others: Mapping[str, Any] | None = None,
    ) -> tuple[list[str], Terms, Model]:
        """Draw the clients that evaluate, none where the round is not evaluated.

        Return their names and the terms.

        The third is the model to evaluate: where the method averages models, this one is taken into
        their mean.
        """
        method = self._method
        if method.average_models:
            changing = {
                name: array for name, array in model.items() if name not in frozenset(method.frozen)
            }
            method.progress.average = method.progress.average.plus(changing)
        of_method = method.terms(number)
        terms = Terms(
            server_round=number,
            measure=tuple(measure),
            personal_lambda=of_method.personal_lambda,
            local_only=of_method.local_only,
            others=others or {},
        )
        self._asked_to_evaluate = []
        if self.evaluates(number):
            last = number == self._num_rounds
            free = self._free(method.min_evaluate_nodes, trains=False, waits=last)
            fraction = 1.0 if last and self._all_evaluate_last else method.fraction_evaluate
            wanted = share(fraction, len(free), method.min_evaluate_nodes)
            self._asked_to_evaluate = sample(free, wanted, method.seed, "evaluate", number)
        return self._asked_to_evaluate, terms, self.averaged(model)

    def evaluate(self, evaluated: Replies) -> Metrics | None:
        """Take in what the clients measured.

        Return the means by examples, None where no client was asked.
        """
        self._evaluated = evaluated
        evaluated.refused.log()
        asked = len(self._asked_to_evaluate)
        return self._summed_up(asked, evaluated) if asked else None

    def check_learned(self) -> None:
        """Raise NothingLearnedError when a run is over in which no round has taken a step."""
        if self._method.unused_rounds and self._num_rounds and self._method.progress.steps == 0:
            raise NothingLearnedError(
                f"no round of {self._num_rounds} took a step: {self._why}. {REMEDY}"
            )

    # What came of it ------------------------------------------------------------------------------

    @property
    def known(self) -> set[str]:
        """The names of the clients that the run has known up to now."""
        return self._away.union(self.online)

    def evaluates(self, number: int) -> bool:
        """Return whether a round is one after which clients evaluate."""
        every = self._method.evaluate_every
        last = number == self._num_rounds
        return self._method.fraction_evaluate > 0.0 and (
            last or (every > 0 and number % every == 0)
        )

    @property
    def participants(self) -> tuple[str, ...]:
        """The clients with updates that the current round uses."""
        return self._trained.names if self._trained else ()

    @property
    def _answered(self) -> bool:
        """Whether any client that was asked to train has answered in time: otherwise the round has no participants."""
        return self._trained is not None and len(self._trained.missing) < len(self._draws)

    @property
    def diverged(self) -> bool:
        """Whether replies of the round that is going on, or was the last, held numbers that local steps made infinite.

        The loss of the first model is of no step's making.
        """
        found = self._trained.refused.not_finite.values() if self._trained else ()
        stepped = self._method.progress.steps > 0
        return any(stepped or not isinstance(each, NotFiniteMetricError) for each in found)

    def finished_round(
        self,
        number: int,
        model: Model,
        arrays: Any,
        metrics: Mapping[str, Any],
        average: Any = None,
        *,
        evaluation_metrics: Mapping[str, Any] | None = None,
        server_metrics: Mapping[str, Any] | None = None,
    ) -> Round:
        """Return the round that is over.

        `arrays`, and `average` if there is one, are in the form that one wants.
        """
        trained = self._trained
        evaluated = self._evaluated
        if trained is None:
            raise RuntimeError(f"round {number} has not been trained: train has not been called")
        reasons = dict(trained.refused.reasons)
        for name, reason in (evaluated.refused.reasons if evaluated else {}).items():
            reasons[name] = "; ".join(
                [*([reasons[name]] if name in reasons else []), f"evaluation: {reason}"]
            )
        hostile = trained.hostile.union(evaluated.hostile if evaluated else ())
        return Round(
            number=number,
            participants=tuple(self._draws) if self._answered else (),
            refused=dict(sorted(reasons.items())),
            missing=trained.missing,
            offline=self._offline,
            coefficients=self._coefficients,
            left_out=self._left_out,
            lost_states=self._lost_states,
            arrays=arrays,
            average=average,
            metrics=dict(metrics),
            evaluation_metrics=dict(evaluation_metrics or {}),
            server_metrics=dict(server_metrics or {}),
            train_metrics=trained.metrics,
            evaluations=evaluated.metrics if evaluated else {},
            hostile=hostile,
            clients=len(self.online) + len(self._away) - len(hostile),
            bytes_sent=trained.bytes_sent
            + self._bytes_of_probe
            + (evaluated.bytes_sent if evaluated else 0),
            bytes_received=trained.bytes_received,
        )

    # Parts ----------------------------------------------------------------------------------------

    def _free(self, fewest: int, *, trains: bool, waits: bool) -> Sequence[str]:
        """Return the clients that can be asked, of those that train or of all, in the order of names.

        With `waits`, a run that had clients before waits until enough can be asked.
        """
        fewest = max(self._method.min_available_nodes, fewest)
        while True:
            before = self.online
            self.online = self.clients.online(fewest)
            # clients in one process are always there
            if self.online is not before and (before or self._away):
                self._away = self._away.union(before).difference(self.online)
            free = self.clients.free() if len(self.online) >= fewest else ()
            free = self._training(free) if trains else free
            if free or not waits or not (self._asked or self._method.progress.steps):
                return free
            self.clients.wait_until_free(fewest)

    def _choose(self, free: Sequence[str], wanted: int, number: int) -> Counter[str]:
        """Let the method draw from the free clients.

        MethodError where it draws none, or another one.
        """
        drawn = sorted(self._method.choose(free, wanted, number)) if free else []
        name = f"{type(self._method).__name__}.choose, in round {number},"
        if free and not drawn:
            raise MethodError(
                f"{name} drew none of {len(free)} clients: return at least one of the names that it"
                " gets"
            )
        if strange := set(drawn).difference(free):
            raise MethodError(
                f"{name} drew {min(strange)!r}, which is none of the {len(free)} clients that can"
                " be asked: return names that it gets"
            )
        return Counter(drawn)

    def _enter_new(self) -> None:
        """Enter training clients that are new into the roster, each with its examples as far as these are known."""
        method = self._method
        roster = self._method.progress.roster
        new = [name for name in self._training(sorted(self.known)) if not roster.get(name)]
        if new:
            sizes = usable_sizes(method, self.clients.sizes(new), self._first_limit)
            roster = {**roster, **{name: sizes.get(name, 0.0) for name in new}}
            method.progress.roster = {name: roster[name] for name in sorted(roster)}

    def _training(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of the clients that train, in the same order: all of them where the method names none."""
        chosen = set(self._method.training_clients)
        return [name for name in names if name in chosen] if chosen else names

    def _screen(self, number: int, trained: TrainReplies) -> NormBounds | None:
        """Leave out replies that are not plausible.

        Return what is usual among the others, None where none is left.
        """
        method = self._method
        if method.keeps_states:
            self._lost_states = method.progress.states.screen(trained, self._state_rounds)
        screen_reports(method, trained, self._first_limit)
        screen_buffers(method, trained)
        usual = screen_lengths(method, trained, number)
        first = method.progress.first_counts
        new = {
            name: report[method.weighted_by_key]
            for name, report in trained.metrics.items()
            if name not in first
        }
        method.progress.first_counts = {**first, **new} if new else first
        if ROSTER in method.requires:
            known = method.progress.first_counts
            method.progress.roster = {
                n: size or float(known.get(n, 0.0)) for n, size in method.progress.roster.items()
            }
        return usual

    def _note_states(self, number: int, used: Collection[str]) -> None:
        """Note from which round the states of these clients are.

        If some have lost theirs, all begin again.
        """
        progress = self._method.progress
        progress.states = progress.states.after(number, used)
        if self._lost_states:
            self._method.forget()
            progress.states = progress.states.without_all(self._lost_states)
            log.warning(
                "round %d: %s lost the state that clients keep between rounds, so %s and all"
                " clients begin again without state",
                number,
                ", ".join(self._lost_states),
                type(self._method).__name__,
            )

    def _take(self, number: int, trained: TrainReplies, usual: NormBounds) -> tuple[Model, Metrics]:
        """Return the model after the step, and the method's metrics.

        NoStepError means that nothing is remembered.
        """
        method = self._method
        cohort, vectors = cohort_of(
            method,
            trained,
            server_round=number,
            num_rounds=self._num_rounds,
            online=self._training(self.online),
            draws=self._draws,
            sent=self._sent,
        )
        coefficients, own, seen, mixing = defended(method, cohort)
        down: FloatArray | None = None
        if trimmed := method.defence.trimmed(cohort.size) if method.defence else 0:
            down, of_clients = trimmed_mean(trained.updates.vectors, trimmed)
            coefficients = np.concatenate([of_clients, np.zeros(cohort.rows - cohort.size)])
        lengths = trained.updates.norms
        rows = (
            [trained.second.norms] if method.has_second_rows and trained.second is not None else []
        )
        longest = max(float(each.max()) for each in (lengths, *rows))
        try:
            after, step, moments = self._stepped(
                trained, cohort, coefficients, vectors, longest, down
            )
        except ValueError as reason:
            with np.errstate(over="ignore"):
                parts = np.abs(single_coefficients(cohort, coefficients)[: cohort.size]) * lengths
            client = cohort.names[int(np.argmax(parts))]
            raise NoStepError(
                f"{reason}; the largest part of it is that of client {client}"
            ) from reason
        probed = self._probe(seen, own, mixing, trained)
        remembered = method.remember(seen, own, probed)
        if mixing is not None:
            remembered = {
                key: None if mix is None else mix @ mixing for key, mix in remembered.items()
            }
        method.progress.kept = rows_after(method, remembered, vectors)
        method.progress.moments = moments
        method.progress.norms = method.progress.norms.plus(number, lengths / usual.allowances, step)
        of_clients = single_coefficients(cohort, coefficients)[: cohort.size]
        self._left_out = (
            method.defence.left_out(cohort.names, mixing, of_clients) if method.defence else ()
        )
        self._coefficients = dict(zip(cohort.names, of_clients.tolist(), strict=True))
        return after, method.own_metrics(cohort, coefficients)

    def _stepped(
        self,
        trained: TrainReplies,
        cohort: Cohort,
        coefficients: FloatArray,
        vectors: Vectors,
        longest_update: float,
        down: FloatArray | None,
    ) -> tuple[Model, float, Moments | None]:
        """Return the model after the step, the length of the method's step, and the state of the server optimizer.

        `down` is the step down that a trimmed mean takes in place of the coefficients, None with
        any other.
        """
        method = self._method
        updates = trained.updates
        layout = trained.updates.layout
        if method.server_optimizer is None and down is None:
            after = updates.model_after(coefficients, vectors, cohort.prior, cohort.counts)
            step = layout.distance(after, layout.trainable)
            check_step(method, layout, step, longest_update)
            return after, step, None
        down = weighted_sum(coefficients, vectors, ends=layout.ends) if down is None else down
        step = norm(down)
        check_step(method, layout, step, longest_update)
        if method.server_optimizer is None:
            return updates.model_with(layout.flat - down, cohort.prior, cohort.counts), step, None
        flat, moments = method.server_optimizer.step(layout.flat, down, method.progress.moments)
        return updates.model_with(flat, cohort.prior, cohort.counts), step, moments

    def _probe(
        self,
        cohort: Cohort,
        coefficients: FloatArray,
        mixing: FloatArray | None,
        trained: TrainReplies,
    ) -> Probed:
        """Ask a second sample of clients for their loss at the model that the method probes.

        Snapshots are mixed as the updates are. Leave out unusable answers.
        """
        mix = self._method.probe(cohort, coefficients)
        snapshots = trained.second if self._method.second == SNAPSHOT else None
        if mix is None or snapshots is None:
            return {}
        if mixing is not None:
            mix = mix @ mixing[: cohort.size, : cohort.size]
        try:
            model = snapshots.model_after(mix, snapshots.vectors, cohort.prior, cohort.counts)
        except ValueError as reason:
            log.warning("no losses at the snapshots of round %d: %s", cohort.round, reason)
            return {}
        free = self._training(self.clients.free())
        names = sample(
            free, min(self._draws.total(), len(free)), self._method.seed, "losses", cohort.round
        )
        terms = Terms(server_round=cohort.round, measure=(TRAIN_LOSS,))
        replies = self.clients.evaluate(names, model, terms, names)
        self._bytes_of_probe = replies.bytes_sent
        told = {
            name: {TRAIN_LOSS: each[TRAIN_LOSS]}
            for name, each in replies.metrics.items()
            if TRAIN_LOSS in each
        }
        missing = f"metric {TRAIN_LOSS!r} is missing or no finite number"
        silent = replies.metrics.keys() - told.keys()
        too_large = out_of_proportion(told, {TRAIN_LOSS}, self._method.loss_limit)
        for name, why in {
            **replies.refused.reasons,
            **dict.fromkeys(silent, missing),
            **too_large,
        }.items():
            trained.refused.add(name, f"loss at the snapshot: {why}")
        return {name: each[TRAIN_LOSS] for name, each in told.items() if name not in too_large}

    def _summed_up(self, asked: int, replies: Replies) -> Metrics:
        honest = {
            name: report for name, report in replies.metrics.items() if name not in replies.hostile
        }
        return {
            **means(honest, self._method.weighted_by_key),
            "participants": asked,
            "replies-used": len(replies.metrics),
            "replies-refused": replies.refused.count,
            "replies-missing": len(replies.missing),
        }

    def _count(self, number: int, why: str) -> None:
        """Raise NothingLearnedError when round after round was skipped.

        `why` this one was, "" where it was not.
        """
        progress = self._method.progress
        limit = self._method.unused_rounds
        if not why:
            progress.steps = progress.steps + 1
            progress.skipped = 0
            return
        progress.skipped += 1
        if limit and progress.skipped >= limit:
            raise NothingLearnedError(
                f"the run has learned nothing for {progress.skipped} rounds: in round {number},"
                f" {why}. {REMEDY}"
            )


REMEDY = "Correct that and continue, or let runs go on regardless by unused-rounds = 0"


def _why_none_is_usable(asked: int, trained: TrainReplies, training: Sequence[str]) -> str:
    """Return in words why no reply of a round could be used.

    `training` names the clients that train, if not all do.
    """
    if not asked:
        among = (
            f"of those that train (training_clients = {', '.join(training)}), " if training else ""
        )
        return f"{among}too few clients were online that owed no earlier reply"
    reasons = trained.refused.reasons
    parts = (
        [f"{len(trained.missing)} of {asked} clients did not answer in time"]
        if trained.missing
        else []
    )
    if reasons:
        name, reason = next(iter(reasons.items()))
        of_all = len(reasons) > 1 and set(reasons.values()) == {reason}
        which = "all" if of_all else f"that of {name}"
        parts.append(f"{len(reasons)} of {asked} replies were refused, {which} since {reason}")
    return " and ".join(parts)


def means(reports: Reports, weight_key: str) -> Metrics:
    """Return the means, weighted by `weight_key`, of each metric that at least half of the reports have.

    A mean is over the reports that have the metric. What fewer report is left out: so one client
    adds no metrics.
    """
    having = Counter(chain.from_iterable(reports.values()))
    del having[weight_key]
    averaged: Metrics = {}
    for key in (key for key, count in having.items() if 2 * count >= len(reports)):
        used = [report for report in reports.values() if key in report]
        values = np.array([report[key] for report in used], np.float64)
        weights = np.array([report[weight_key] for report in used], np.float64)
        # what a client reports may be as large as a float64 can be
        with np.errstate(over="ignore"):
            averaged[key] = float(values @ (weights / weights.sum()))
    return averaged
