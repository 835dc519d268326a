"""Which hooks of rules, fields of local work and metrics an engine supports.

Each engine declares its support. Anything else falls back to another engine, or is refused by name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.terms import WORK, Terms

from .metrics import BY_GROUP, OF_EVALUATION, OF_TRAINING, WORK_METRICS
from .rules.base import Rule
from .rules.registry import RULES
from .work import LocalWork, set_fields


@dataclass(frozen=True)
class Support:
    """The supported hooks of rules, fields of `LocalWork`, and metrics.

    Metrics are names, or patterns of measurements. `rules` has the supported rules, if the hooks do
    not decide it.
    """

    hooks: frozenset[str]
    work: frozenset[str]
    metrics: frozenset[str]
    rules: frozenset[type[Rule]] | None = None

    @property
    def wire_keys(self) -> list[str]:
        """The keys of `WORK` that a client declares on the wire: those of its rules."""
        followed = {key for rule in RULES if self.follows(rule) for key in rule.wire_keys()}
        return [key for key in WORK if key in followed]

    def follows(self, rule: type[Rule]) -> bool:
        """Return whether a rule is supported: all its hooks are called."""
        return rule.hooks() <= self.hooks and (self.rules is None or rule in self.rules)

    def find_unsupported(
        self, terms: Terms, rules: Iterable[Rule], *works: LocalWork, by_group: bool = False
    ) -> str:
        """Return the first term that is not supported, as name = value; "" if all are.

        `rules` are the rules of the terms. `by_group`: whether clients measure scores by group.
        """
        unsupported = [str(rule) for rule in rules if not self.follows(type(rule))]
        for work in works:
            for name, value in set_fields(work).items():
                if name not in self.work:
                    unsupported.append(f"{name.replace('_', '-')} = {value}")
        unsupported += [
            f"measure = {name}"
            for name in terms.measure
            if metric_row(name) not in {"", *self.metrics}
        ]
        always = [
            measurement.pattern
            for measurement in (*OF_TRAINING, *OF_EVALUATION)
            if not measurement.requested
        ]
        if by_group:
            always.append(BY_GROUP)
        unsupported += [
            f"the measurement {pattern}" for pattern in always if pattern not in self.metrics
        ]
        return next(iter(unsupported), "")


def metric_row(name: str) -> str:
    """Return the name or pattern of a metric on request, "" if clients know no such metric."""
    if name in {*WORK_METRICS, *BETWEEN_GROUPS}:
        return name
    asked = (
        measurement.pattern
        for measurement in (*OF_TRAINING, *OF_EVALUATION)
        if measurement.requested and measurement.requests((name,))
    )
    return next(asked, "")
