"""Hostile clients on this machine: each trains as an honest one does, and then its reply is changed.

The server sees the changed reply alone. Nothing here runs on a device: a deployed run refuses the setting `attack`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.client.states import ClientStates
from fairbloom.errors import FairbloomError
from fairbloom.imports import imported
from fairbloom.protocol.attacks import ACCURACIES, ATTACKS, COUNTS, EARLIER, HONEST, LOSSES, attackers_of
from fairbloom.protocol.names import ACCURACY_AFTER, ACCURACY_BEFORE, NUM_EXAMPLES, SNAPSHOT, TRAIN_LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.rounds.clients import Reports, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import LOSSES as REPORTED_LOSSES
from fairbloom.rounds.updates import Updates
from fairbloom.strategies import FedAvgN, FedMGDAPlus

log = logging.getLogger(__name__)

Vector = NDArray[np.float64]
STALE = "stale"
"""The name of the update that a stale client replies again, among what it keeps between rounds."""


@dataclass(frozen=True)
class Sight:
    """What a hostile client sees; a user's attack is a function of it that returns an update, shape (d,).

    Attributes
    ----------
    own
        The update that it computed, u = w − w_k, shape (d,).
    honest
        Those of the round's honest clients, in the order of names, shape (h, d).
    strength
        The setting attack-strength.
    number
        How many clients attack in this round.
    random
        A stream of (seed, round, client).
    common
        A stream of the seed alone: the same in every round and for each attacker.
    step
        What the server's defence makes of updates on average: a step, shape (d,).
    """

    own: Vector
    honest: Vector
    strength: float
    number: int
    random: np.random.Generator
    common: np.random.Generator
    step: Callable[[Vector], Vector]


def _mean(sight: Sight) -> Vector:
    return np.asarray(sight.honest.mean(axis=0))


def _deviation(sight: Sight) -> Vector:
    honest = sight.honest
    return np.asarray(honest.std(axis=0, ddof=1) if len(honest) > 1 else np.zeros_like(honest[0]))


def _farthest(sight: Sight, start: Vector, along: Vector) -> Vector:
    """Return the vector on a half-line that moves the server's step the farthest from the mean of the honest updates.

    It is no longer than the longest honest update, so that no limit on lengths sees it.
    """
    mean, longest = _mean(sight), float(np.linalg.norm(sight.honest, axis=1).max())

    def moved(vector: Vector) -> float:
        return _length(sight.step(np.vstack([sight.honest, *[vector] * sight.number])) - mean)

    slope, offset, square = _length(along), float(start @ along), _length(start)
    if not slope:
        return start
    most = (-offset + np.sqrt(max(0.0, offset**2 + slope**2 * (longest**2 - square**2)))) / slope**2
    tried = [start + strength * along for strength in np.linspace(0.0, max(0.0, float(most)), 20)]
    return max(tried, key=moved)


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _as_long(sight: Sight, vector: Vector) -> Vector:
    """Return a vector in the direction of another one, strength times as long as the client's own update."""
    return vector * (sight.strength * _length(sight.own) / _length(vector))


UPDATES: Mapping[str, Callable[[Sight], Vector]] = {
    "sign-flip": lambda sight: -sight.strength * sight.own,
    "scale": lambda sight: sight.strength * sight.own,
    "same-value": lambda sight: np.full_like(sight.own, sight.strength),
    "noise": lambda sight: sight.own + _as_long(sight, sight.random.standard_normal(sight.own.size)),
    "drift": lambda sight: _as_long(sight, sight.common.standard_normal(sight.own.size)),
    "free-rider": lambda sight: np.zeros_like(sight.own),
    "alie": lambda sight: _mean(sight) + sight.strength * _deviation(sight),
    "ipm": lambda sight: -sight.strength * _mean(sight),
    "optimal-alie": lambda sight: _farthest(sight, _mean(sight), _deviation(sight)),
    "optimal-ipm": lambda sight: _farthest(sight, np.zeros_like(sight.own), -_mean(sight)),
    "mimic": lambda sight: sight.honest[0].copy(),
}
"""What becomes of a hostile client's update.

Sources: alie is of Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019; ipm of Xie, Koyejo and Gupta, Fall of
Empires, UAI 2019; mimic of Karimireddy, He and Jaggi, ICLR 2022, as bucketing in rounds.defences.
"""

SCALING = ("sign-flip", "scale", "drift", "ipm")
"""The attacks whose strength is the length of the update alone."""

REPORTS: Mapping[str, tuple[frozenset[str], Callable[[float, float], float]]] = {
    "loss": (REPORTED_LOSSES, lambda value, strength: value + strength),
    "count": (frozenset({NUM_EXAMPLES}), lambda value, strength: float(int(value * strength))),
    "accuracy": (frozenset({ACCURACY_BEFORE, ACCURACY_AFTER}), lambda value, strength: 0.0),
}
"""Which metrics a hostile client reports wrongly, and what becomes of each."""


class Adversaries:
    """The hostile clients of a run.

    Parameters
    ----------
    settings
        Of the run.
    clients
        The names of all clients.
    method
        The server's, whose defence the optimal attacks know.

    Raises
    ------
    FairbloomError
        When all clients would attack, or the attack has no effect on the method.
    """

    def __init__(self, settings: RunSettings, clients: Sequence[str], method: Method) -> None:
        self.names = frozenset(attackers_of(settings, clients))
        training = method.training_clients or clients
        if self.names.issuperset(training):
            raise FairbloomError(f"attackers = {settings.attackers!r} are all clients: leave an honest one")
        if self.names.isdisjoint(training):
            raise FairbloomError(f"attackers = {settings.attackers!r}: none is among training-clients: name one")
        check_effect(settings, method)
        self._seed, self._from, self._name = settings.seed, settings.attack_from, settings.attack
        known = ATTACKS.get(settings.attack)
        self._strength = settings.attack_strength or (known.strength if known else None) or 1.0
        self._replays = known is not None and known.needs == EARLIER
        self._change = UPDATES.get(settings.attack) or (None if known else imported("attack", settings.attack))
        self._needs_honest = known is None or known.needs == HONEST
        self._defence = method.defence

    def attack(self, trained: Trained, number: int, states: Callable[[str], ClientStates]) -> None:
        """Change the replies of the hostile clients in round `number`.

        An attack that sees honest updates does nothing in a round without one.
        """
        hostile = [name for name in trained.names if name in self.names]
        if number < self._from or not hostile or (self._needs_honest and len(hostile) == len(trained.names)):
            return
        self.lie(trained.metrics, number)
        for updates in (trained.updates, trained.second):
            if updates is not None and self._change is not None:
                self._replace(self._change, updates, trained.names, hostile, number)
        if self._replays:
            self._replay(trained, hostile, number, states)

    def lie(self, reports: Reports, number: int, *, evaluated: bool = False) -> None:
        """Change what hostile clients report in round `number`; of an evaluation, the training loss alone."""
        about, change = REPORTS.get(self._name, (frozenset[str](), None))
        if evaluated:
            about &= {TRAIN_LOSS}
        if change is None or number < self._from:
            return
        for name in self.names.intersection(reports):
            reports[name] = {
                metric: change(value, self._strength) if metric in about else value
                for metric, value in reports[name].items()
            }

    def _replace(
        self,
        change: Callable[[Sight], Vector],
        updates: Updates,
        names: Sequence[str],
        hostile: Sequence[str],
        number: int,
    ) -> None:
        rows = _rows(updates)
        honest = rows[[place for place, name in enumerate(names) if name not in hostile]]
        for name in hostile:
            place = names.index(name)
            random, common = generator(self._seed, "attack", number, name), generator(self._seed, "attack")
            seen = Sight(rows[place], honest, self._strength, len(hostile), random, common, self._step)
            self._put(updates, place, np.asarray(change(seen), np.float64), name)

    def _put(self, updates: Updates, place: int, changed: Vector, name: str) -> None:
        largest = np.finfo(updates.matrix.dtype).max
        if changed.shape != (updates.layout.size,) or not (np.abs(changed) <= largest).all():
            raise FairbloomError(
                f"attack = {self._name!r} makes of the update of {name} something of shape {changed.shape}, or with "
                f"numbers beyond {largest:.3g}: return {updates.layout.size} finite numbers, or lower attack-strength"
            )
        updates.replace(place, changed)

    def _replay(
        self, trained: Trained, hostile: Sequence[str], number: int, states: Callable[[str], ClientStates]
    ) -> None:
        for name in hostile:
            kept, place = states(name)[STALE], trained.names.index(name)
            first = kept.before(number)
            if first is None:
                first = {"update": torch.from_numpy(_rows(trained.updates)[place].copy())}
            else:
                trained.updates.replace(place, first["update"].numpy())
            kept.keep(number, first)

    def _step(self, rows: Vector) -> Vector:
        weights = np.full(len(rows), 1.0 / len(rows))
        return rows.T @ (weights if self._defence is None else self._defence.of_mean(rows @ rows.T))


def check_effect(settings: RunSettings, method: Method) -> None:
    """Raise FairbloomError where an attack changes nothing that the method reads; log where it ignores the strength."""
    known, name = ATTACKS.get(settings.attack), type(method).__name__
    reads = {
        LOSSES: bool(method.needs & REPORTED_LOSSES) or method.draws_by_history or method.second == SNAPSHOT,
        COUNTS: method.weighting == "examples",
        ACCURACIES: bool(method.needs & {ACCURACY_BEFORE, ACCURACY_AFTER}),
    }
    if known and not reads.get(known.needs, True):
        raise FairbloomError(
            f"attack = {settings.attack!r} has no effect on {name}: it needs {known.needs}. Choose that, or "
            "another attack"
        )
    if settings.attack in SCALING and isinstance(method, FedAvgN | FedMGDAPlus) and method.defence is None:
        log.warning("%s normalises updates, so attack-strength has no effect on it", name)


def _rows(updates: Updates) -> Vector:
    return np.asarray(updates.matrix[: len(updates.vectors)] * updates.vectors.scales[:, None], np.float64)
