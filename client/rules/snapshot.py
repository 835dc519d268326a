"""DRFA's client half: the reply also has the model in the middle of its local steps."""

from typing import Any

from fairbloom.protocol.names import SNAPSHOT
from fairbloom.protocol.terms import SNAPSHOT_STEP, Terms

from ..work import Copy
from .base import Rule


class SnapshotRule(Rule):
    """Copies the model after one of the steps, or after the last if there are fewer steps.

    Source: Deng et al., NeurIPS 2020 (DRFA), Algorithm 1.
    """

    reads = SNAPSHOT_STEP
    replies = SNAPSHOT

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._snapshot: Any = None

    def after_step(self, step: int, copy: Copy, *, last: bool) -> None:
        """Copy the model after the step of the terms."""
        if self._snapshot is None and (last or step == self.terms.snapshot_step):
            self._snapshot = copy()

    def second_model(self) -> Any:
        """Return the copy, None if there was no step."""
        return self._snapshot
