"""Attacks by hostile clients, as experiments set them: their names, what each needs, and who attacks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from .parameters import SettingsError
from .settings import RunSettings, split_names
from .streams import generator

OWN, HONEST, EARLIER, LABELS = "its own update", "all honest updates", "its earlier update", "labels of classes"
LOSSES, ACCURACIES = "a method that weighs losses, as QFedAvg does", "a method that weighs accuracies, as FairFed does"
COUNTS = "weighting = examples"
"""What an attack needs."""

LABEL_FLIP = "label-flip"
"""The attack that is one of the data: see tasks.flipped."""


@dataclass(frozen=True)
class Attack:
    """What is known of an attack before a run; docs/data/attacks.csv says what it does.

    Attributes
    ----------
    needs
        What a run must have for it to have an effect: one of the constants above.
    strength
        The usual attack-strength; None: the attack has none.
    """

    needs: str
    strength: float | None = None


ATTACKS: Mapping[str, Attack] = {
    "sign-flip": Attack(OWN, 1.0),
    "scale": Attack(OWN, 10.0),
    "same-value": Attack(OWN, 1.0),
    "noise": Attack(OWN, 10.0),
    "drift": Attack(OWN, 1.0),
    "free-rider": Attack(OWN),
    "stale": Attack(EARLIER),
    "label-flip": Attack(LABELS),
    "loss": Attack(LOSSES, 1.0),
    "count": Attack(COUNTS, 5.0),
    "accuracy": Attack(ACCURACIES),
    "alie": Attack(HONEST, 1.5),
    "ipm": Attack(HONEST, 2.0),
    "optimal-alie": Attack(HONEST),
    "optimal-ipm": Attack(HONEST),
    "mimic": Attack(HONEST),
}


def attackers_of(settings: RunSettings, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a run's hostile clients, in order: those named, or a share of all drawn from the seed.

    Parameters
    ----------
    settings
        Of the run; without an attack nobody attacks.
    clients
        The names of all clients.

    Raises
    ------
    SettingsError
        When a share makes no client hostile.
    """
    if not settings.attack:
        return ()
    share = share_in(settings.attackers)
    if share is None:
        return tuple(sorted(split_names(settings.attackers)))
    number = floor(share * len(clients))
    if not number:
        raise SettingsError(
            f"attackers = {settings.attackers!r}: that share of {len(clients)} clients is none: raise it, or name them"
        )
    drawn = generator(settings.seed, "attackers").permutation(len(clients))[:number]
    return tuple(sorted(sorted(clients)[place] for place in drawn))


def share_in(attackers: str) -> Fraction | None:
    """Return the share of the clients that the setting `attackers` asks for, exactly; None where it names them.

    A share has a decimal point, so that clients may be called 1 and 2.
    """
    return Fraction(attackers.strip()) if re.fullmatch(r"[+-]?\d*\.\d+", attackers.strip()) else None
