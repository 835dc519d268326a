"""The attack of FedMGDA+ in an experiment: which clients report falsely, and how.

Source: Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-objective Optimization, IEEE TNSE
2022, section 6.2.2.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from .settings import LOSS_SCALE, RunSettings, SettingsError, split_names
from .streams import generator

# The strengths that attack-strength = 0 stands for.
USUAL_BIAS = 1.0
USUAL_FACTOR = 10.0


@dataclass(frozen=True)
class Attack:
    """What attackers make of their replies.

    A loss v becomes `factor` · v + `bias`, and an update u becomes `factor` · u: a client with s
    times its loss has s times its gradient.
    """

    factor: float = 1.0
    bias: float = 0.0
    attackers: frozenset[str] = frozenset()


NO_ATTACK = Attack()


def attack_of(settings: RunSettings, clients: Sequence[str]) -> Attack:
    """Return the attack of a run on these clients.

    Raises
    ------
    SettingsError
        When a share makes no client an attacker.
    """
    if not settings.attack:
        return NO_ATTACK
    attackers = find_attackers(settings, clients)
    if settings.attack == LOSS_SCALE:
        return Attack(factor=settings.attack_strength or USUAL_FACTOR, attackers=attackers)
    return Attack(bias=settings.attack_strength or USUAL_BIAS, attackers=attackers)


def find_attackers(settings: RunSettings, clients: Sequence[str]) -> frozenset[str]:
    """Return the clients that attack: those that are named, or a share drawn from the seed."""
    share = share_in(settings.attackers)
    if share is None:
        return frozenset(split_names(settings.attackers))
    number = floor(share * len(clients))
    if number == 0:
        raise SettingsError(
            f"attackers = {settings.attackers!r}: that share of {len(clients)} clients is less than"
            " one: raise it, or name them"
        )
    drawn = generator(settings.seed, "attackers").permutation(len(clients))[:number]
    ascending = sorted(clients)
    return frozenset(ascending[place] for place in drawn)


def share_in(attackers: str) -> Fraction | None:
    """Return the exact share of the clients in the setting `attackers`, None if it has names.

    A share has a decimal point, so that clients may be called 1 and 2.
    """
    text = attackers.strip()
    if re.fullmatch(r"[+-]?\d*\.\d+", text) is None:
        return None
    return Fraction(text)
