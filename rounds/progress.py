"""How far a run has come, beside what its method remembers."""

from dataclasses import dataclass, field

from .average import Average
from .cohort import Kept
from .lengths import Lengths
from .sampling import History
from .server_optimizer import Moments
from .states import States
from .updates import Vectors

SERVER_OPTIMIZER = "server-optimizer"
"""Where a state has the server optimizer and what it keeps."""


@dataclass
class Progress:
    """How far a run has come, beside what its method remembers.

    Attributes
    ----------
    finished_rounds
        The number of the last round that is over.
    steps
        How many rounds took a step.
    kept
        The old updates, or combinations of them, that the method keeps.
    first_counts
        The weight of each client's first usable reply.
    average
        Of the global models after each round, where the method averages them.
    lengths
        How long the updates of the last rounds were, and the longest step of all.
    history
        What a sampling scheme draws by, where it asks for it.
    roster
        The training clients known up to now, as in Cohort, where the method uses them.
    moments
        What the server optimizer keeps, where there is one and it has taken a step.
    states
        From which rounds the states are that clients keep, where they keep any.
    """

    finished_rounds: int = 0
    steps: int = 0
    kept: dict[Kept, Vectors] = field(default_factory=dict)
    first_counts: dict[str, float] = field(default_factory=dict)
    average: Average = field(default_factory=Average)
    lengths: Lengths = field(default_factory=Lengths)
    history: History = field(default_factory=History)
    roster: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    states: States = field(default_factory=States)
