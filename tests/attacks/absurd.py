"""One client of four that trains as it should, and then replies absurd weights in some rounds."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from fairbloom.client.local import NO_VECTORS, LocalClient, Update
from fairbloom.client.states import StateDict
from fairbloom.experiments.check.subject import EVEN
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import load_task
from fairbloom.tasks.models import float_buffers, shared_parameters

HOSTILE = "client-1"
ROUNDS = 20
PLAIN: Mapping[str, Any] = {
    **{"clients": 4, "partition": "iid", "fraction": 1.0, "batch-size": 32, "learning-rate": 0.05, "device": "cpu"},
    **{"num-rounds": ROUNDS, "evaluate-every": 0, "unused-rounds": 0},
}

Attack = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""From a received array to the one that the hostile client replies in place of what it has trained."""


def noise(received: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return an array that is as far from the received one as that is from zero, in a random direction."""
    direction = torch.randn(received.shape, generator=random)
    return received + received.norm() / direction.norm() * direction


REFUSED: Mapping[str, Attack] = {
    "1e30": lambda received, random: torch.full_like(received, 1e30),
    "1e38": lambda received, random: torch.full_like(received, 1e38),
    "-100 w": lambda received, random: -100.0 * received,
}
"""Attacks that the limit refuses."""

WITHIN: Mapping[str, Attack] = {"noise as long as w": noise, "2 w": lambda received, random: 2.0 * received}
"""Attacks whose updates are as long as the model, which is never refused."""


@dataclass(frozen=True)
class HostileClient(LocalClient):
    """A client that replies what an attack makes of the received arrays, with the metrics of honest training."""

    attack: Attack = noise
    rounds: Collection[int] = ()

    def train(self, received: StateDict, terms: Terms, sent: Mapping[str, StateDict] = NO_VECTORS) -> Update:
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
    """Clients in this process of which one is made by `hostile`."""

    def __init__(self, method: FairStrategy, config: Mapping[str, Any], hostile: Callable[..., LocalClient]) -> None:
        super().__init__(method, config)
        self._make = hostile

    def local(self, name: str) -> LocalClient:
        there = super().local(name)
        return self._make(**vars(there)) if name == HOSTILE else there


def run(attack: Attack, hostile_rounds: Collection[int], **changes: Any) -> list[Round]:
    """Return the rounds of a run in which one client attacks in some of them; `changes` differ from PLAIN."""
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    settings = Settings.of({**PLAIN, **changed})
    if settings.strategy().compares_groups:
        settings = Settings.of({**PLAIN, **changed, "task": EVEN})
    config, method = settings.run_config(), settings.strategy()
    module = load_task(config).model()
    method.buffers, method.shared = float_buffers(module), shared_parameters(module)
    clients = HostileClients(method, config, partial(HostileClient, attack=attack, rounds=hostile_rounds))
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
def without(method: str) -> float:
    """Return the final accuracy of a run in which the hostile client does not train."""
    honest = ",".join(f"client-{k}" for k in range(PLAIN["clients"]) if f"client-{k}" != HOSTILE)
    return accuracy(run(noise, (), method=method, training_clients=honest)[-1])
