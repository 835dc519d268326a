"""One client of four sends absurd weights: each method's final accuracy without the limit of updates, and with it.

Prints, for each attack and method, the mean accuracy over the honest clients after the last round: of the run without
that client, with it and update-limit = inf, and with it and the default; then how often the sender was refused.
"""

import argparse
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fairbloom.client.local import NO_VECTORS, LocalClient, Update
from fairbloom.client.states import StateDict
from fairbloom.errors import FairbloomError
from fairbloom.experiments.check.subject import EVEN
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.tasks import load_task
from fairbloom.tasks.models import float_buffers, shared_parameters

HOSTILE = "client-1"
ROUNDS = 20
PLAIN: Mapping[str, Any] = {
    "clients": 4,
    "partition": "iid",
    "fraction": 1.0,
    "batch-size": 32,
    "learning-rate": 0.05,
    "num-rounds": ROUNDS,
    "evaluate-every": 0,
    "device": "cpu",
    "unused-rounds": 0,
}

Attack = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""From a received array to the one that the hostile client replies in place of what it has trained."""


def constant(value: float) -> Attack:
    """Return an attack whose every weight is `value`."""
    return lambda received, random: torch.full_like(received, value)


def scaled(factor: float) -> Attack:
    """Return an attack whose weights are the received ones times `factor`."""
    return lambda received, random: factor * received


def noise(received: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return an array that is as far from the received one as that is from zero, in a random direction."""
    direction = torch.randn(received.shape, generator=random)
    return received + received.norm() / direction.norm() * direction


REFUSED: Mapping[str, Attack] = {
    "1e6": constant(1e6),
    "1e30": constant(1e30),
    "1e38": constant(1e38),
    "-100 w": scaled(-100.0),
}
"""Attacks that the limit refuses."""

WITHIN: Mapping[str, Attack] = {"noise as long as w": noise, "2 w": scaled(2.0)}
"""Attacks whose updates are as long as the model, which is never refused."""


@dataclass(frozen=True)
class HostileClient(LocalClient):
    """A client that trains as it should, and then replies something else in some rounds."""

    attack: Attack = noise
    rounds: Collection[int] = ()

    def train(self, received: StateDict, terms: Terms, sent: Mapping[str, StateDict] = NO_VECTORS) -> Update:
        """Return what an attack makes of the received arrays, for a second model too, with the honest metrics."""
        update = super().train(received, terms, sent)
        if terms.server_round not in self.rounds:
            return update
        random = torch.Generator().manual_seed(terms.server_round)
        hostile = {
            name: self.attack(array, random) if array.is_floating_point() else update.arrays[name]
            for name, array in received.items()
        }
        return replace(update, arrays=hostile, second=hostile if update.second else {})


class HostileClients(LoopClients):
    """Clients in this process of which one is hostile in some rounds."""

    def __init__(self, method: FairStrategy, settings: Mapping[str, Any], attack: Attack, rounds: Collection[int]):
        super().__init__(method, settings)
        self._attack, self._rounds = attack, rounds

    def local(self, name: str) -> LocalClient:
        """Return one of the clients."""
        there = super().local(name)
        return HostileClient(**vars(there), attack=self._attack, rounds=self._rounds) if name == HOSTILE else there


def run(attack: Attack, hostile_rounds: Collection[int], **changes: Any) -> list[Round]:
    """Return the rounds of a run in which one client attacks in some of them; `changes` differ from PLAIN."""
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    settings = Settings.of({**PLAIN, **changed})
    if settings.strategy().compares_groups:
        settings = Settings.of({**PLAIN, **changed, "task": EVEN})
    config, method = settings.run_config(), settings.strategy()
    module = load_task(config).model()
    method.buffers, method.shared = float_buffers(module), shared_parameters(module)
    clients = HostileClients(method, config, attack, hostile_rounds)
    model = {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
    rounds = Rounds(method, clients, settings.num_rounds)
    return list(rounds.run(model, measure=lambda number: (), measure_after=()))


def accuracy(finished: Round) -> float:
    """Return the mean accuracy in percent over the honest clients, of personal models where there are any."""
    found = [
        reported.get("accuracy-personal", reported["accuracy"])
        for name, reported in finished.evaluations.items()
        if name != HOSTILE
    ]
    return 100.0 * float(np.mean(found))


@cache
def without(method: str, **changes: Any) -> float:
    """Return the final accuracy of a run in which the hostile client does not train."""
    honest = ",".join(f"client-{k}" for k in range(PLAIN["clients"]) if f"client-{k}" != HOSTILE)
    return accuracy(run(noise, (), method=method, training_clients=honest, **changes)[-1])


def outcome(attack: Attack, hostile_rounds: Collection[int], method: str, **changes: Any) -> tuple[float, int]:
    """Return the final accuracy, and how often the hostile client was refused.

    A run that cannot be finished has the accuracy nan.
    """
    try:
        rounds = run(attack, hostile_rounds, method=method, **changes)
    except FairbloomError:
        return math.nan, 0
    return accuracy(rounds[-1]), sum(HOSTILE in each.refused for each in rounds)


def table(attacks: Mapping[str, Attack], methods: Sequence[str], **changes: Any) -> Table:
    """Return the table of attacks in round 3 alone and in each round, for each of the methods."""
    shown = Table("attack", "in", "method", "without it", "before", "after", "refused", box=None)
    cells = product(attacks.items(), {"round 3": (3,), "each round": range(1, ROUNDS + 1)}.items(), methods)
    for (name, attack), (when, rounds), method in cells:
        before = outcome(attack, rounds, method, update_limit=math.inf, **changes)
        after = outcome(attack, rounds, method, **changes)
        numbers = (f"{value:.1f}" for value in (without(method, **changes), before[0], after[0]))
        shown.add_row(name, when, method, *numbers, f"{after[1]} of {len(rounds)}")
    return shown


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas")
    parser.add_argument("--attacks", default=",".join([*REFUSED, *WITHIN]), help="names with commas")
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    attacks = {name: attack for name, attack in {**REFUSED, **WITHIN}.items() if name in chosen.attacks.split(",")}
    Console(width=120).print(table(attacks, chosen.methods.split(",")))


if __name__ == "__main__":
    main()
