"""Simulated attacks by hostile clients: their names, default strengths, and the attackers."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor

from .parameters import SettingsError
from .settings import RunSettings, split_names
from .streams import generator

# The attacks on data, see fairbloom.tasks.label_flip, and on the reported training loss.
LABEL_FLIP = "label-flip"
LOSS = "loss"
LOSS_SCALE = "loss-scale"

# The default attack-strength of each attack, None if it has no strength. docs/data/attacks.csv
# describes the attacks.
ATTACKS: Mapping[str, float | None] = {
    "sign-flip": 1.0,
    "scale": 10.0,
    "noise": 10.0,
    LABEL_FLIP: None,
    LOSS: 1.0,
    LOSS_SCALE: 10.0,
    "alie": 1.5,
    "ipm": 2.0,
}


def attackers_of(settings: RunSettings, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the sorted names of a run's hostile clients.

    They are named by the settings, or drawn from the seed as a share of all clients.

    Parameters
    ----------
    settings
        Of the run; without an attack, no client is hostile.
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
            f"attackers = {settings.attackers!r}: that share of {len(clients)} clients is less than"
            " one: raise it, or name them"
        )
    drawn = generator(settings.seed, "attackers").permutation(len(clients))[:number]
    return tuple(sorted(sorted(clients)[place] for place in drawn))


def share_in(attackers: str) -> Fraction | None:
    """Return the exact share of the clients in the setting `attackers`, None if it has names.

    A share has a decimal point, so that clients may be called 1 and 2.
    """
    text = attackers.strip()
    return Fraction(text) if re.fullmatch(r"[+-]?\d*\.\d+", text) else None
