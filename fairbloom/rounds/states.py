"""What the server knows of the states that clients keep between rounds.

The terms of a client's work name a round: that of its last used reply. The client continues from
its state of that round. So a refused or lost reply leaves nothing behind, and neither does a server
that goes back a round.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairbloom.protocol.names import STATE_ROUND

from .clients import TrainReplies
from .refusals import lacking_metric

# A client that has lost its state this many times is refused from then on.
MAX_STATE_LOSSES = 2

REMEDY = (
    "give it a folder that stays (state-dir in its client.toml) and begin a new run, or leave the"
    " client out"
)


@dataclass(frozen=True)
class States:
    """The round of each client's state, and how often a client has lost its state, by name.

    The round is that of the client's last used reply since the method's memory began.
    """

    rounds: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> dict[str, int]:
        """Return the round of the state of each of these clients, 0 if it has none."""
        return {name: self.rounds.get(name, 0) for name in names}

    def after(self, number: int, used: Collection[str]) -> "States":
        """Return the states after a round in which the replies of these clients were used."""
        return States({**self.rounds, **dict.fromkeys(used, number)}, self.losses) if used else self

    def without_all(self, lost_by: Collection[str]) -> "States":
        """Return no states: these clients have lost theirs, and all clients begin again."""
        losses = {name: self.losses.get(name, 0) + 1 for name in lost_by}
        return States({}, {**self.losses, **losses})

    def screen(self, trained: TrainReplies, sent: Mapping[str, int]) -> tuple[str, ...]:
        """Refuse replies of clients that did not continue from the state of the `sent` round.

        Return the clients that lost it. The round of the state leaves the replies' metrics.
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
