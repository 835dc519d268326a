"""The states that clients keep between rounds, as the server knows them: from which round each is, and who lost one.

A client goes on from its state of the round that the terms of its work name, which is that of its
last reply that was used. So a reply that was refused or lost, and a server that goes back a round,
leave nothing behind.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairbloom.protocol.names import STATE_ROUND

from .clients import TrainReplies
from .refusals import lacking_metric

MAX_STATE_LOSSES = 2
"""A client that has lost its state so often is refused from then on."""

REMEDY = (
    "give it a folder that stays (state-dir in its client.toml) and begin a new run, or leave the"
    " client out"
)


@dataclass(frozen=True)
class States:
    """From which round each client's state is, and how often a client has lost its state, by name.

    The round is that of the client's last used reply since the method's memory began.
    """

    rounds: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> dict[str, int]:
        """Return the round of each of these clients' states, 0 where it has none."""
        return {name: self.rounds.get(name, 0) for name in names}

    def after(self, number: int, used: Collection[str]) -> "States":
        """Return the states after a round in which the replies of these clients were used."""
        return States({**self.rounds, **dict.fromkeys(used, number)}, self.losses) if used else self

    def without_all(self, lost_by: Collection[str]) -> "States":
        """Return no states, since these clients have lost theirs and all begin again."""
        return States(
            {}, {**self.losses, **{name: self.losses.get(name, 0) + 1 for name in lost_by}}
        )

    def screen(self, trained: TrainReplies, sent: Mapping[str, int]) -> tuple[str, ...]:
        """Leave out replies of clients that went on from another state than the `sent` one.

        Return the clients that lost it.

        The round of the state is taken out of the replies' metrics.
        """
        lost: list[str] = []
        reasons: dict[str, ValueError | str] = {}
        for name in trained.names:
            from_round = trained.metrics[name].pop(STATE_ROUND, None)
            if self.losses.get(name, 0) >= MAX_STATE_LOSSES:
                reasons[name] = (
                    f"it has lost its state between rounds {self.losses[name]} times: {REMEDY}"
                )
            elif from_round is None:
                reasons[name] = lacking_metric(STATE_ROUND)
            elif from_round != sent[name]:
                lost.append(name)
                reasons[name] = (
                    "it has lost its state between rounds: it continued from its state of round"
                    f" {from_round:g}, and its last reply that was used is that of round"
                    f" {sent[name]} (0: none)"
                )
        trained.refuse(reasons)
        return tuple(lost)
