"""What the two ports of a SuperLink have in common."""

from dataclasses import dataclass, field

from ..operator.federation import Federation
from .connections import Connections
from .overdue import Overdue
from .rate_limit import CallLimit
from .refusals import RefusalLog


@dataclass(frozen=True)
class Shared:
    """A federation, and what goes on at its server."""

    federation: Federation
    connections: Connections
    refusals: RefusalLog
    overdue: Overdue = field(default_factory=Overdue)
    turns: CallLimit = field(default_factory=CallLimit)
