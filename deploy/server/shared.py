"""What the two ports of a SuperLink have in common."""

from dataclasses import dataclass, field

from ..operator.federation import Federation
from .connections import Connections
from .rate_limit import CallLimit
from .refusals import RefusalLog


@dataclass(frozen=True)
class Shared:
    """A federation, and what goes on at its server."""

    federation: Federation
    connections: Connections
    refusals: RefusalLog
    overdue: dict[int, str] = field(default_factory=dict)
    """The run that is over and for which a node still works, as its heartbeats say, by its number."""

    turns: CallLimit = field(default_factory=CallLimit)
