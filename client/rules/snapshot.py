"""DRFA's client half: the model in the midst of the work is replied as well."""

from typing import Any

from fairbloom.protocol.names import SNAPSHOT
from fairbloom.protocol.terms import SNAPSHOT_STEP, Terms

from .base import Copy, Rule


class SnapshotRule(Rule):
    """Keeps the model as it is after one of the steps, or after the last where there are fewer.

    Source: Deng et al., NeurIPS 2020 (DRFA), Algorithm 1.
    """

    reads = SNAPSHOT_STEP
    replies = SNAPSHOT

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._taken: Any = None

    def after_step(self, step: int, copy: Copy, *, last: bool) -> None:
        """Keep a copy after that step."""
        if self._taken is None and (last or step == self.terms.snapshot_step):
            self._taken = copy()

    def second(self) -> Any:
        """Return the copy, None where there was no step."""
        return self._taken
