"""Hostile clients on this machine: they train honestly, then their replies are changed.

The server sees only the changed reply. Nothing here runs on a device: a deployed run refuses the
setting `attack`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.imports import imported
from fairbloom.logs import log
from fairbloom.protocol.attacks import ATTACKS, LOSS, LOSS_SCALE, attackers_of
from fairbloom.protocol.names import SNAPSHOT, TRAIN_LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.rounds.clients import Reports, TrainReplies
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import LOSSES
from fairbloom.rounds.updates import Updates

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Sight:
    """The knowledge of a hostile client.

    A user's attack is a function of it that returns an update, shape (d,).

    Attributes
    ----------
    own
        The update that it computed, u = w − w_k, shape (d,).
    honest
        The updates of the round's honest clients, in the order of names, shape (h, d).
    strength
        The setting attack-strength.
    number
        Number of clients that attack in this round.
    random
        A random stream of (seed, round, client).
    """

    own: Vector
    honest: Vector
    strength: float
    number: int
    random: np.random.Generator


def _scaled(sight: Sight) -> Vector:
    return sight.strength * sight.own


def _noisy(sight: Sight) -> Vector:
    drawn = sight.random.standard_normal(sight.own.size)
    return sight.own + drawn * (sight.strength * np.linalg.norm(sight.own) / np.linalg.norm(drawn))


def _alie(sight: Sight) -> Vector:
    mean = np.asarray(sight.honest.mean(axis=0))
    several = len(sight.honest) > 1
    deviation = np.asarray(sight.honest.std(axis=0, ddof=1)) if several else np.zeros_like(mean)
    return mean + sight.strength * deviation


# The changed update of a hostile client, by the name of the attack.
#
# Sources: alie is of Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019; ipm of Xie,
# Koyejo and Gupta, Fall of Empires, UAI 2019; loss-scale of Hu et al., IEEE TNSE 2022
# (FedMGDA+), figure 2: a client with s times its loss has s times its gradient.
UPDATES: Mapping[str, Callable[[Sight], Vector]] = {
    "sign-flip": lambda sight: -sight.strength * sight.own,
    "scale": _scaled,
    LOSS_SCALE: _scaled,
    "noise": _noisy,
    "alie": _alie,
    "ipm": lambda sight: -sight.strength * np.asarray(sight.honest.mean(axis=0)),
}

# The attacks that need an honest update in the round. A user's attack may need one, too.
SEES_HONEST = ("alie", "ipm")


class Adversaries:
    """The hostile clients of a run.

    Raise FairbloomError if all clients would attack, or none that trains. False losses for a method
    that reads none are logged: that they change nothing may be what a paper claims.
    """

    def __init__(self, settings: RunSettings, clients: Sequence[str], method: Method) -> None:
        self.names = frozenset(attackers_of(settings, clients))
        training = method.training_clients or clients
        if self.names.issuperset(training):
            raise FairbloomError(
                f"attackers = {settings.attackers!r} are all clients: leave an honest one"
            )
        if self.names.isdisjoint(training):
            raise FairbloomError(
                f"attackers = {settings.attackers!r}: no training client among them: name one"
            )
        if settings.attack == LOSS and not (method.needs & LOSSES or method.second == SNAPSHOT):
            log.warning(
                "attack = %r has no effect on %s, which reads no losses",
                LOSS,
                type(method).__name__,
            )
        self._settings = settings
        known = settings.attack in ATTACKS
        self._strength = settings.attack_strength or ATTACKS.get(settings.attack) or 1.0
        self._change: Callable[[Sight], Vector] | None = (
            UPDATES.get(settings.attack) if known else imported("attack", settings.attack)
        )
        self._sees_honest = not known or settings.attack in SEES_HONEST

    def attack(self, trained: TrainReplies, number: int) -> None:
        """Change the replies of the hostile clients in round `number`.

        An attack that sees honest updates does nothing in a round without one.
        """
        hostile = [name for name in trained.names if name in self.names]
        if number < self._settings.attack_from or not hostile:
            return
        if self._sees_honest and len(hostile) == len(trained.names):
            return
        self.lie(trained.metrics, number)
        for updates in (trained.updates, trained.second):
            if updates is not None and self._change is not None:
                rows = np.array(updates.matrix[: len(updates), :], np.float64)
                honest = rows[
                    [place for place, name in enumerate(trained.names) if name not in hostile]
                ]
                for name in hostile:
                    place = trained.names.index(name)
                    seen = Sight(
                        rows[place],
                        honest,
                        self._strength,
                        len(hostile),
                        generator(self._settings.seed, "attack", number, name),
                    )
                    updates.replace(place, self._checked(self._change(seen), updates, name))

    def lie(self, reports: Reports, number: int, *, evaluated: bool = False) -> None:
        """Raise or multiply the losses that hostile clients report in round `number`.

        In reports of an evaluation, this is only the training loss.
        """
        if self._settings.attack not in (LOSS, LOSS_SCALE) or number < self._settings.attack_from:
            return
        factor = self._strength if self._settings.attack == LOSS_SCALE else 1.0
        term = self._strength * (self._settings.attack == LOSS)
        raised = {TRAIN_LOSS} if evaluated else LOSSES
        for name in self.names.intersection(reports):
            reports[name] = {
                metric: factor * value + term if metric in raised else value
                for metric, value in reports[name].items()
            }

    def _checked(self, changed: Vector, updates: Updates, name: str) -> Vector:
        changed = np.asarray(changed, np.float64)
        largest = np.finfo(updates.matrix.dtype).max
        if changed.shape != (updates.layout.size,) or not (np.abs(changed) <= largest).all():
            raise FairbloomError(
                f"attack = {self._settings.attack!r} makes of the update of {name} something of"
                f" shape {changed.shape}, or with numbers beyond {largest:.3g}: return"
                f" {updates.layout.size} finite numbers, or lower attack-strength"
            )
        return changed
