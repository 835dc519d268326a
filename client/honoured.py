"""What those who compute clients honour of the local work, of a server's terms and of the metrics.

Each way to compute says it in one place. Whatever else is asked is done another way, or refused by name: it
is never left out in silence.
"""

from dataclasses import dataclass

from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.terms import WORK, Terms

from .metrics import BY_GROUP, OF_EVALUATION, OF_TRAINING, OF_WORK
from .work import LocalWork, set_fields


@dataclass(frozen=True)
class Honoured:
    """What is honoured.

    Attributes
    ----------
    work
        Fields of `LocalWork`.
    terms
        Fields of `Terms`.
    metrics
        Of `fairbloom.client.metrics`: patterns of measurements, and names.
    """

    work: frozenset[str]
    terms: frozenset[str]
    metrics: frozenset[str]

    @property
    def keys(self) -> list[str]:
        """What a client says on the wire that it honours: of the keys that must be said, those of these terms."""
        return [key for key in WORK if key.replace("-", "_") in self.terms]

    def unmet(self, terms: Terms, *works: LocalWork, by_group: bool = False) -> str:
        """Return the first thing that is asked for and is not honoured, as name = value; "" where all is.

        `by_group` says whether clients measure scores by group.
        """
        fields = [(self.terms, terms), *((self.work, work) for work in works)]
        settings = [(name, value, known) for known, of in fields for name, value in set_fields(of).items()]
        unmet = [f"{name.replace('_', '-')} = {value}" for name, value, known in settings if name not in known]
        rows = {name: metric_row(name) for name in terms.measure}
        unmet += [f"measure = {name}" for name, row in rows.items() if row and row not in self.metrics]
        always = [each.pattern for each in (*OF_TRAINING, *OF_EVALUATION) if not each.requested]
        always += [BY_GROUP] if by_group else []
        unmet += [f"the measurement {pattern}" for pattern in always if pattern not in self.metrics]
        return unmet[0] if unmet else ""


def metric_row(name: str) -> str:
    """Return the row of the table of a metric that terms ask for, "" where no client measures it on request."""
    if name in {*OF_WORK, *BETWEEN_GROUPS}:
        return name
    rows = [each.pattern for each in (*OF_TRAINING, *OF_EVALUATION) if each.requested and each.requests((name,))]
    return rows[0] if rows else ""
