"""False reports: attackers train honestly, then what their method reads of them is changed.

The server sees only the changed replies. Evaluations stay true, so that results show the harm.
Nothing here runs on a device.
"""

from collections.abc import Sequence

import numpy as np

from fairbloom.errors import FairbloomError, join_names
from fairbloom.logs import log
from fairbloom.protocol.attacks import Attack
from fairbloom.protocol.names import SNAPSHOT
from fairbloom.rounds.clients import Reports, TrainReplies, check_names
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import LOSSES


def check_attackers(attack: Attack, method: Method, clients: Sequence[str]) -> None:
    """Raise FairbloomError for attackers that are no clients, or if none of them trains.

    That false losses do not change a method which reads none is the claim of a paper: it is logged.
    """
    if not attack.attackers:
        return
    attackers = sorted(attack.attackers)
    check_names("attackers", attackers, clients)
    if attack.attackers.isdisjoint(method.training_clients or clients):
        raise FairbloomError(
            f"attackers = {join_names(attackers)}: none of them trains: name one of"
            " training-clients"
        )
    reads_losses = method.second == SNAPSHOT or not LOSSES.isdisjoint(method.needs)
    if attack.factor == 1.0 and not reads_losses:
        log.info("%s reads no losses: false losses change nothing", type(method).__name__)


def falsify_losses(reports: Reports, attack: Attack) -> None:
    """Change the losses in the attackers' reports: v becomes factor · v + bias."""
    for name in attack.attackers.intersection(reports):
        reports[name] = {
            metric: attack.factor * value + attack.bias if metric in LOSSES else value
            for metric, value in reports[name].items()
        }


def scale_updates(replies: TrainReplies, attack: Attack) -> None:
    """Multiply the attackers' updates, those of second models too, by the factor."""
    if attack.factor == 1.0:
        return
    places = [place for place, name in enumerate(replies.names) if name in attack.attackers]
    for updates in (replies.updates, replies.second):
        if updates is None:
            continue
        for place in places:
            # A row of a matrix on a card is a copy.
            with np.errstate(over="ignore"):  # an update that is not finite is refused
                updates.matrix[place] = attack.factor * updates.matrix[place]
