"""Which nodes work on what nobody waits for any longer."""

from collections.abc import Mapping

RUN_OVER, TIME_OVER = "the run is over", "its time is over"
"""Why a node drops its work."""


class Overdue:
    """The runs for which nodes still work although they are over, by node, as heartbeats say."""

    def __init__(self) -> None:
        self._runs: dict[int, str] = {}

    @property
    def runs(self) -> Mapping[str, str]:
        """The run that is over and for which a node still works, by the node's number."""
        return {str(node_id): run_id for node_id, run_id in self._runs.copy().items()}

    def judge(self, node_id: int, run_id: str, *, waits: bool, runs: bool) -> str:
        """Return why a node drops its work, "" where it goes on.

        `run_id` is "" for no run; `waits` is whether the run still waits for this work; `runs` whether the run is not
        over.
        """
        if run_id and not runs:
            self._runs[node_id] = run_id
            return RUN_OVER
        self.idle(node_id)
        return TIME_OVER if run_id and not waits else ""

    def idle(self, node_id: int) -> None:
        """Note that a node asks for work, or works for a run that goes on."""
        self._runs.pop(node_id, None)
