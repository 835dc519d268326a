"""EAGLE's client half: the least loss that a client reaches by training alone, which it finds once and keeps."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator, seed_of
from fairbloom.protocol.terms import BASELINE_TRAINING

from ..metrics import OF_BASELINE
from ..states import BASELINE
from ..training import measure, train
from ..work import LocalWork, run_work
from .base import Rule, Scores

if TYPE_CHECKING:
    from ..local import LocalClient


class Baseline(Rule):
    """Trains alone once, from the model that it then receives, and keeps loss and scores of the best model it met."""

    reads = BASELINE_TRAINING
    keeps = BASELINE

    def before(self, client: "LocalClient") -> Scores:
        """Return what the client reports of its best model, which it finds first where it has none.

        It keeps nothing where no model that it met had a finite loss: the reply is then refused,
        and the next model that it receives may be whole.
        """
        if not OF_BASELINE.applies(self.terms, client.splits):
            return {}
        kept = client.states.find(BASELINE, before=self.terms.server_round)
        found = {} if kept is None else kept.state
        if not found:
            terms = self.terms
            model = client.model
            task = client.task
            examples = client.splits.train
            received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            met = [measure(model, task, examples)]  # first, and after every epoch
            for epoch in range(terms.baseline_epochs or 0):
                train(model, task, examples, baseline_epoch(client.settings, client.key, epoch))
                met.append(measure(model, task, examples))
                losses = [each[LOSS] for each in met]
                if has_settled(
                    losses, terms.baseline_patience or 0, terms.baseline_tolerance or 0.0
                ):
                    break
            best = min(met, key=lambda each: each[LOSS] if math.isfinite(each[LOSS]) else math.inf)
            found = {name: torch.tensor(score, dtype=torch.float64) for name, score in best.items()}
            if found[LOSS].isfinite():
                client.states.keep(BASELINE, terms.server_round, found, origin=0)
            model.load_state_dict(received)
        return client.report(
            OF_BASELINE, {name: score.item() for name, score in found.items()}, self.terms
        )


def baseline_epoch(settings: RunSettings, client: str, epoch: int) -> LocalWork:
    """Return the work of an epoch in which a client trains alone: on the plain loss, at the run's first learning rate.

    Nothing pulls it, neither time nor a straggler's share ends it early, and whatever the optimizer
    remembers starts afresh, as it does in a round.
    """
    return replace(
        run_work(settings, 1),
        epochs=1,
        learning_rate=settings.learning_rate,
        time_budget=math.inf,
        random=generator(settings.seed, "lonely batches", epoch, client),
        draws=seed_of(settings.seed, "lonely dropout", epoch, client),
    )


def has_settled(losses: Sequence[float], patience: int, tolerance: float) -> bool:
    """Return whether the least loss fell by less than `tolerance` of itself over the last `patience` epochs."""
    if len(losses) <= patience:
        return False
    least = list(accumulate(losses, min))
    before = least[-1 - patience]
    now = least[-1]
    return not before - now > tolerance * abs(before)
