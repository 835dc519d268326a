"""EAGLE's client half: the least training loss that a client reaches without the others."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.terms import BASELINE_TRAINING

from ..local import LocalClient
from ..metrics import OF_BASELINE
from ..states import BASELINE
from ..training import measure, train
from ..work import LocalWork, batch_order, draws_seed, run_work
from .base import Rule, Scores


class Baseline(Rule):
    """Trains once without the others, and stores the loss and scores of the best model.

    It starts from the model that the client receives then.
    """

    reads = BASELINE_TRAINING

    def before(self, client: LocalClient) -> Scores:
        """Return the scores of the client's best model; train it first if there is none yet."""
        if not OF_BASELINE.applies(self.terms, client.splits):
            return {}
        stored = client.states.find(BASELINE, before=self.terms.server_round)
        best = {} if stored is None else stored.state
        if not best:
            best = self._train(client)
            # Else the server refuses the reply, and the next model that comes may be finite.
            if best[LOSS].isfinite():
                client.states.keep(BASELINE, self.terms.server_round, best, origin=0)
        return client.report(
            OF_BASELINE, {name: score.item() for name, score in best.items()}, self.terms
        )

    def _train(self, client: LocalClient) -> dict[str, Tensor]:
        """Return the loss and scores of the best model, of the first one and each epoch's."""
        terms = self.terms
        model = client.model
        task = client.task
        examples = client.splits.train
        received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        measured = [measure(model, task, examples)]
        for epoch in range(terms.baseline_epochs or 0):
            train(model, task, examples, baseline_epoch(client, epoch))
            measured.append(measure(model, task, examples))
            if has_settled(
                [scores[LOSS] for scores in measured],
                terms.baseline_patience or 0,
                terms.baseline_tolerance or 0.0,
            ):
                break
        model.load_state_dict(received)
        best = min(measured, key=lambda each: each[LOSS] if math.isfinite(each[LOSS]) else math.inf)
        return {name: torch.tensor(score, dtype=torch.float64) for name, score in best.items()}


def baseline_epoch(client: LocalClient, epoch: int) -> LocalWork:
    """Return the work of an epoch of the baseline: plain loss, and the run's first learning rate.

    It has no pull, and neither a time budget nor a straggler's share ends it early. The optimizer's
    state is new in each epoch, as in a round.
    """
    work = run_work(client.settings, 1)
    return replace(
        work,
        epochs=1,
        learning_rate=client.settings.learning_rate,
        time_budget=math.inf,
        smallest_batch=client.smallest_batch(work),
        random=batch_order(client.order, epoch, client.key, "lonely"),
        draws=draws_seed(client.order, epoch, client.key, "lonely"),
    )


def has_settled(losses: Sequence[float], patience: int, tolerance: float) -> bool:
    """Return whether the least loss fell by at most `tolerance` of itself in `patience` epochs."""
    if len(losses) <= patience:
        return False
    least = list(accumulate(losses, min))
    before = least[-1 - patience]
    return not before - least[-1] > tolerance * abs(before)
