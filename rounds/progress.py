"""How far a run has come, without the memory of its method."""

from dataclasses import dataclass, field

from .average import Average
from .cohort import Kept
from .lengths import Lengths
from .server_optimizer import Moments
from .states import States
from .updates import Vectors

SERVER_OPTIMIZER = "server-optimizer"
"""Where a state has the server optimizer and what it keeps."""


@dataclass
class Progress:
    """How far a run has come, and what it knows of its clients, in addition to the method's own memory.

    `finished_rounds` is the number of the last one; `steps` counts those that took a step, and `skipped` those in a row
    without one up to now; `first_counts` has the weight of each client's first usable reply, or what it said before.
    """

    finished_rounds: int = 0
    steps: int = 0
    skipped: int = 0
    kept: dict[Kept, Vectors] = field(default_factory=dict)
    first_counts: dict[str, float] = field(default_factory=dict)
    average: Average = field(default_factory=Average)
    lengths: Lengths = field(default_factory=Lengths)
    roster: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    states: States = field(default_factory=States)
