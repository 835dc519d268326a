"""One round, from the choice of its clients to its record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairbloom.errors import join_names
from fairbloom.protocol.terms import Terms

from .aggregation import Step
from .arrays import Model
from .clients import Replies
from .refusals import Refusals, join_alike
from .round import Round


class RoundEvaluation(NamedTuple):
    """The evaluation of a round: its metrics, those of the server, as in Round, and what it was of.

    `average` is the mean of all models, in the form of the model, if they are averaged.
    """

    average: Any = None
    metrics: Mapping[str, Any] | None = None
    server_metrics: Mapping[str, Any] | None = None


@dataclass(kw_only=True)
class RoundInProgress:
    """What is known of a round so far; `finish` returns its record.

    Attributes
    ----------
    number
        t, from 1.
    draws
        The clients that were drawn for training, in the order of names, with their counts.
    offline
        The known clients that were offline then, in the order of names.
    revoked
        The known clients that the operator has revoked, in the order of names.
    owing
        The clients online that train and are not asked, because they owe an earlier reply, in the
        order of names.
    excluded
        The clients that are not asked to train: their privacy accounts are spent or halted.
    known_clients
        How many clients the run has known up to now.
    terms
        The terms of the clients' local work.
    vectors, factors
        The vectors that each client gets in addition to the model, and the factors by which the
        kept rows were multiplied for that, by record.
    replies
        The replies of training, without the updates; None before the clients have trained.
    lost_states
        The clients that have lost their state.
    step
        What is known of the step; empty without one.
    bytes_of_probe
        The size of the arrays that went out for losses at the snapshots.
    evaluators
        The clients that were drawn for evaluation.
    evaluation
        Their replies; empty before they have evaluated.
    """

    number: int
    draws: Counter[str] = field(default_factory=Counter)
    offline: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    owing: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    known_clients: int = 0
    terms: Terms = field(default_factory=lambda: Terms(server_round=0))
    vectors: Mapping[str, Model] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    replies: Replies | None = None
    lost_states: tuple[str, ...] = ()
    step: Step = field(default_factory=Step)
    bytes_of_probe: int = 0
    evaluators: Sequence[str] = ()
    evaluation: Replies = field(
        default_factory=lambda: Replies(metrics={}, refused=Refusals(server_round=0))
    )

    @property
    def participants(self) -> tuple[str, ...]:
        """The clients with updates that the round uses."""
        return self.replies.names if self.replies else ()

    @property
    def is_answered(self) -> bool:
        """Whether a client has answered in time; otherwise the round has no participants."""
        return self.replies is not None and len(self.replies.missing) < len(self.draws)

    def explain_no_update(self, replies: Replies, training_clients: Sequence[str]) -> str:
        """Return as text why no reply can be used; `training_clients` is empty if all train."""
        if self.draws:
            return explain_unusable(replies, len(self.draws))
        words = "too few clients were online that owed no earlier reply"
        if training_clients:
            return (
                f"of those that train (training_clients = {join_names(training_clients)}), {words}"
            )
        return words

    def finish(self, arrays: Any, metrics: Mapping[str, Any], evaluation: RoundEvaluation) -> Round:
        """Return the record of the round.

        `arrays` is the model after the round in the form that `on_round` gets it; `metrics` are
        as in Round.
        """
        replies = self.replies
        if replies is None:
            raise RuntimeError(
                f"round {self.number} has no replies of training: call aggregate_train first"
            )
        refused = dict(replies.refused.reasons)
        for name, reason in self.evaluation.refused.reasons.items():
            before = f"{refused[name]}; " if name in refused else ""
            refused[name] = f"{before}evaluation: {reason}"
        return Round(
            number=self.number,
            participants=tuple(self.draws) if self.is_answered else (),
            refused=dict(sorted(refused.items())),
            missing=replies.missing,
            offline=self.offline,
            revoked=self.revoked,
            owing=self.owing,
            excluded=self.excluded,
            coefficients=self.step.coefficients,
            lost_states=self.lost_states,
            arrays=arrays,
            average=evaluation.average,
            metrics=dict(metrics),
            evaluation_metrics=dict(evaluation.metrics or {}),
            server_metrics=dict(evaluation.server_metrics or {}),
            train_metrics=replies.metrics,
            evaluations=self.evaluation.metrics,
            not_finite=self.evaluation.not_finite,
            clients=self.known_clients,
            bytes_sent=replies.bytes_sent + self.bytes_of_probe + self.evaluation.bytes_sent,
            bytes_received=replies.bytes_received,
        )


def explain_unusable(replies: Replies, asked: int) -> str:
    """Return as text why none of the replies of the clients that were asked can be used."""
    parts: list[str] = []
    if replies.missing:
        parts.append(f"{len(replies.missing)} of {asked} clients did not answer in time")
    reasons = replies.refused.reasons
    if reasons:
        joined = join_alike(reasons)
        reason, names = next(iter(joined.items()))
        same = len(reasons) > 1 and len(joined) == 1
        which = "all" if same else f"that of {names[0]}"
        if not same:
            reason = reasons[names[0]]
        parts.append(f"{len(reasons)} of {asked} replies were refused, {which} since {reason}")
    return " and ".join(parts)
