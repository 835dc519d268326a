"""Private rounds: the server opens sums of the clients' numbers and updates, and sees no single one."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.private.errors import SkippedError
from fairbloom.private.keys import Authority
from fairbloom.private.packing import pack
from fairbloom.private.rules import EVALUATE, TRAIN, Position, buffer_bound
from fairbloom.private.server import Answers, Opened, PrivateServer, Task
from fairbloom.private.weighing import BINS, WEIGHT, AscentWeighing, GramWeighing, MeanWeighing, Sums, Weighing, bin_of
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.protocol.terms import Terms

from .aggregation import rows_after
from .clients import Clients, Replies
from .cohort import Cohort
from .fits import PRIVACY
from .limits import check_step
from .loop import Metrics, Rounds
from .method import Method
from .options import OPTIONS
from .round import size_on_the_wire
from .screening import Refusals
from .updates import FloatArray, Layout, Model, Vectors, length, total

LIMITS = ("max_growth", "loss_limit", "update_limit")
"""The options that need single clients' numbers or updates: they stay at their defaults."""

MOST_NUMBERS = 100_000
"""The largest update that is shared number by number, for angles."""


@runtime_checkable
class PrivateClients(Clients, Protocol):
    """Clients that take part in private rounds."""

    authority: Authority

    def ask(
        self, exchange: str, requests: Mapping[str, Mapping[str, bytes]], model: Model | None, terms: Terms
    ) -> Answers:
        """Send an exchange's requests, with the model where it is given; return the answers that come in time."""


def check_private(method: Method, tier: str) -> None:
    """Raise ValueError where a method, or one of its options, needs more than a tier of privacy shows."""
    method.check_fit(PRIVACY[tier], "privacy", tier)
    for name in LIMITS:
        if (value := getattr(method, name)) != OPTIONS[name].default:
            raise ValueError(
                f"{name} = {value:g} needs single clients' numbers or updates, which privacy = {tier!r} hides: "
                "leave it out"
            )
    single = {
        "enrolled_sizes": bool(method.enrolled_sizes),
        "sampling by history": method.draws_by_history,
        "train_metrics_aggr_fn": method.train_metrics_aggr_fn is not None,
        "evaluate_metrics_aggr_fn": method.evaluate_metrics_aggr_fn is not None,
    }
    for name, given in single.items():
        if given:
            raise ValueError(f"{name} needs single clients' numbers, which privacy = {tier!r} hides: leave it out")


class _Channel:
    """The way to the clients in one round, with the bytes that went through it."""

    def __init__(self, clients: PrivateClients, model: Model, terms: Terms) -> None:
        self._clients, self._model, self._terms = clients, model, terms
        self.sent, self.received = 0, 0

    def exchange(self, name: str, requests: Mapping[str, Mapping[str, bytes]]) -> Answers:
        answers = self._clients.ask(name, requests, self._model if name == "work" else None, self._terms)
        self.sent += sum(len(content) for request in requests.values() for content in request.values())
        self.received += sum(len(content) for reply in answers.replies.values() for content in reply.values())
        return answers


class PrivateRounds(Rounds):
    """Rounds in which the server sees sums, or sums and angles, alone; parameters are those of Rounds, and these.

    Parameters
    ----------
    run
        The run's name, which clients sign their keys for.
    scores, binned
        What evaluations measure, by name on the wire, and of which they count clients in bins.
    loss_bound
        The largest loss that a method distinguishes.
    sketch
        How many numbers of a sketch stand for an update where angles are opened; 0: the update itself.
    """

    clients: PrivateClients

    def __init__(
        self,
        method: Method,
        clients: PrivateClients,
        *others: Any,
        run: str,
        scores: Sequence[str],
        binned: Sequence[str],
        loss_bound: float,
        sketch: int = 0,
    ) -> None:
        super().__init__(method, clients, *others)
        self._run, self._loss_bound, self._sketch = run, loss_bound, sketch
        self._weighing_of_scores = MeanWeighing(scores=tuple(scores), binned=tuple(binned))

    def train_round(self, number: int, model: Model, measure: Sequence[str]) -> tuple[Model | None, Metrics]:
        """Draw clients, open the sum of their weighted updates, and take the step."""
        method = self._method
        names, terms = self.draw(number, ())
        self.opened = {}
        layout = method.layout_of(model)
        weighing = self._weighing(names, number, layout)
        if isinstance(weighing, AscentWeighing):  # a client that was not in the first round takes no part
            names = [name for name in names if name in weighing.clients]
            self._draws = Counter(names)
        task = self._task(TRAIN, terms, model, weighing, layout)
        after: Model | None = None
        why, lost = "no client could be asked", list[str]()
        if names:
            channel = _Channel(self.clients, model, terms)
            server = PrivateServer(task, self.clients.authority, channel)
            alive: tuple[str, ...] = ()
            try:
                opened = server.run(names)
                after = self._stepped_by(number, layout, opened, names)
                alive, why = opened.alive, ""
                lost = sorted(set(opened.cohort) - set(alive))
            except SkippedError as skipped:
                why = str(skipped)
            except ValueError as error:
                if isinstance(error, FairbloomError):
                    raise
                why = f"the sum of the updates cannot be used: {error}"
            received = channel.received - len(alive) * _size(model, method.frozen)
            self._trained = _replies(number, server, alive, channel.sent, received)
        else:
            self._trained = Replies(metrics={}, refused=Refusals(number))
        method.progress.finished_rounds = number
        self._why = why
        if why:
            log.warning("round %d is skipped, and the model stays as it is: %s", number, why)
        elif self.opened.get("capped"):
            log.info("round %d: %d clients scaled their updates down to the cap", number, self.opened["capped"])
        self.opened["lost"] = len(lost)
        self._count(number, self._trained, why)
        return after, self._summed_up(len(self._draws), self._trained)

    def _weighing(self, names: Sequence[str], number: int, layout: Layout) -> Weighing:
        """Return how clients weigh; FairbloomError where the method cannot do with these clients or this model."""
        try:
            weighing = self._method.private_weighing(names, number, self._num_rounds, self._loss_bound)
        except ValueError as error:
            raise FairbloomError(str(error)) from error
        if not isinstance(weighing, GramWeighing):
            return weighing
        if layout.size > MOST_NUMBERS and not self._sketch:
            raise FairbloomError(
                f"the model has {layout.size} trained numbers, and angles are exact up to {MOST_NUMBERS}: set "
                "angles-sketch=1024, which estimates them, or choose a smaller model"
            )
        return replace(weighing, sketch=self._sketch)

    def _weighed(self, number: int, weighing: GramWeighing, names: Sequence[str], sums: Sums) -> FloatArray:
        """Return what the method makes of an opened Gram matrix."""
        lengths, cosines = weighing.gram(names, sums)
        nameless = _names_alone(number, self._num_rounds, tuple(names), ())
        cohort = replace(
            nameless,
            prior=np.full(len(names), 1.0 / len(names)),
            gram_of=lambda: cosines * np.outer(lengths, lengths),
            squared_norms_of=lambda: lengths**2,
        )
        return self._method.weigh(cohort)

    def evaluate_round(self, number: int, model: Model, measure: Sequence[str]) -> Metrics | None:
        """Open the sums of the scores that clients measure; return their means by examples."""
        names, terms = self.draw_evaluation(number, ())
        if not names:
            return None
        weighing = self._weighing_of_scores
        channel = _Channel(self.clients, model, terms)
        server = PrivateServer(self._task(EVALUATE, terms, model, weighing), self.clients.authority, channel)
        found = dict[str, float]()
        try:
            opened = server.run(names, vectors=False)
        except SkippedError as skipped:
            log.warning("round %d is not evaluated: %s", number, skipped)
        else:
            clients, sums = len(opened.cohort), opened.sums
            for name in weighing.binned:
                counted = {each: sums[each] for each in (bin_of(name, place) for place in range(BINS))}
                if min(counted.values()) < 0 or sum(counted.values()) != clients:
                    words = "round %d: the bins of %s do not count each of %d clients once, and are left out"
                    log.warning(words, number, name, clients)
                    continue
                self.opened = {**(self.opened or {}), **{each: count for each, count in counted.items() if count}}
            for name in weighing.scores:
                mean = sums[f"{name}/sum"] / clients
                variance = max(0.0, sums[f"{name}/squares"] / clients - mean * mean)
                found[name] = sums[f"{name}/weighted"] / sums[WEIGHT]
                self.opened = {**(self.opened or {}), f"{name}-mean": mean, f"{name}-std": float(np.sqrt(variance))}
        self._evaluated = _replies(number, server, (), channel.sent, 0)
        return found

    def _task(self, purpose: str, terms: Terms, model: Model, weighing: Weighing, layout: Layout | None = None) -> Task:
        # A server that starts again takes another attempt, and clients answer only later ones.
        attempt = int(time.time())
        position = Position(self.clients.authority.federation, self._run, terms.server_round, attempt, purpose)
        others = () if layout is None else (*layout.buffers, *layout.integers)
        arrays = [] if layout is None else list(layout.trainable)
        config = {key: value for key, value in terms.to_config().items() if key != "state-round"}
        content = {"work": config, "weighing": weighing.spec(), "trainable": arrays, "others": list(others)}
        bounds = [(model[name].size, buffer_bound(model[name])) for name in others]
        size = 0 if layout is None else layout.size
        weigh = None
        if isinstance(weighing, GramWeighing):
            weigh = partial(self._weighed, terms.server_round, weighing)
        return Task(position, bytes.fromhex(digest_arrays(model)), pack(content), weighing, size, bounds, weigh)

    def _stepped_by(self, number: int, layout: Layout, opened: Opened, names: Sequence[str]) -> Model:
        """Return the model after a step that was opened, and let the method remember it."""
        method = self._method
        if not np.any(opened.step):
            why = (
                "one client was more than all others together, and the cap took its update"
                if opened.capped
                else ("no client moved, or all weights are too small to be told from zero")
            )
            raise ValueError(f"it is zero, since {why}: a smaller epsilon, tilt or q gives more clients weight")
        step = Vectors.of(np.asarray(opened.step))
        kept = {key: row for key, row in method.progress.kept.items() if method.recalls(key, names, number)}
        vectors = Vectors.below([step, *kept.values()])
        coefficients = np.concatenate([np.ones(1), method.kept_factors(len(kept))])
        down: FloatArray = total(coefficients, vectors, ends=layout.ends)
        check_step(method, layout, length(down), 0.0)
        flat, moments = layout.flat.astype(np.float64) - down, method.progress.moments
        if method.server_optimizer is not None:
            flat, moments = method.server_optimizer.step(layout.flat, down, moments)
        after = self._model_with(layout, flat, opened)
        cohort = _names_alone(number, self._num_rounds, opened.alive, tuple(kept))
        remembered = method.remember(cohort, coefficients, {})
        method.progress.kept = rows_after(method, remembered, vectors)
        method.progress.moments = moments
        lengths = method.progress.lengths
        method.progress.lengths = replace(lengths, longest_step=max(length(down), lengths.longest_step))
        self.opened = {"clients": len(opened.alive), "capped": opened.capped, "beyond": opened.beyond}
        return after

    @staticmethod
    def _model_with(layout: Layout, flat: FloatArray, opened: Opened) -> Model:
        """Return the model whose trainable part is `flat`, with the mean changes of the other arrays."""
        places = dict(layout.slices)
        places |= {name: places[first] for name, first in layout.shared.items()}
        changes = dict(zip((*layout.buffers, *layout.integers), opened.others, strict=True))
        model: dict[str, Any] = {}
        for name, array in layout.arrays.items():
            after = array
            if name in places:
                after = flat[places[name]].reshape(array.shape)
            elif name in changes:
                change = changes[name].reshape(array.shape)
                after = array + (change if array.dtype.kind == "f" else np.rint(change))
            model[name] = np.asarray(after).astype(array.dtype, copy=False)
            if not np.isfinite(model[name]).all():
                raise ValueError(f"array {name!r} after the step is beyond the range of {array.dtype}")
        return model


def _replies(number: int, server: PrivateServer, names: Sequence[str], sent: int, received: int) -> Replies:
    """Return what is known of the replies: nobody's numbers, but who took part and why others did not."""
    refused = Refusals(number)
    for name, reason in server.refused.items():
        refused.add(name, reason)
    refused.log()
    return Replies(
        metrics={name: {} for name in names},
        refused=refused,
        missing=tuple(sorted(server.missing)),
        more_sent=sent,
        more_received=received,
    )


def _names_alone(number: int, num_rounds: int | None, names: tuple[str, ...], kept: tuple[Any, ...]) -> Cohort:
    """Return the cohort of a step, of which a method knows the names alone."""
    none = np.empty(0)
    return Cohort(
        round=number,
        num_rounds=num_rounds,
        names=names,
        counts=none,
        prior=none,
        draws=none,
        memory=kept,
        gram_of=lambda: none,
        grams_of=lambda: none,
        squared_norms_of=lambda: none,
    )


def _size(model: Model, frozen: Sequence[str]) -> int:
    return sum(size_on_the_wire(array) for name, array in model.items() if name not in frozen)
