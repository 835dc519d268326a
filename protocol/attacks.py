"""Attacks by hostile clients, as experiments set them: their names, usual strengths, and who attacks."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor

from .parameters import SettingsError
from .settings import RunSettings, split_names
from .streams import generator

LABEL_FLIP = "label-flip"
LOSS = "loss"
"""The attacks on data, see tasks.flipped, and on the reported training loss."""

ATTACKS: Mapping[str, float | None] = {
    "sign-flip": 1.0,
    "scale": 10.0,
    "noise": 10.0,
    LABEL_FLIP: None,
    LOSS: 1.0,
    "alie": 1.5,
    "ipm": 2.0,
}
"""The usual attack-strength of each attack, None where it has none; docs/data/attacks.csv says what
each does."""


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
            f"attackers = {settings.attackers!r}: that share of {len(clients)} clients is none:"
            " raise it, or name them"
        )
    drawn = generator(settings.seed, "attackers").permutation(len(clients))[:number]
    return tuple(sorted(sorted(clients)[place] for place in drawn))


def share_in(attackers: str) -> Fraction | None:
    """Return the share of the clients that the setting `attackers` asks for, exactly.

    None where it names them.

    A share has a decimal point, so that clients may be called 1 and 2.
    """
    return (
        Fraction(attackers.strip()) if re.fullmatch(r"[+-]?\d*\.\d+", attackers.strip()) else None
    )
