"""Sides measured in turn, and medians with their spread."""

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.server.run_folder.files import ENGINE
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

FEWEST_ROUNDS = 4
MOST_ROUNDS = 5_000
"""No run is made shorter, since the evaluation after the last round would count too much, and none
longer."""


@dataclass(frozen=True)
class Measured:
    """Values of the same thing, measured again and again.

    Shown as their median, with the least and the greatest.
    """

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        least = min(self.values)
        greatest = max(self.values)
        scale, unit = (1000.0, "ms") if self.unit == "s" and self.median < 1.0 else (1.0, self.unit)
        spread = f" ({scale * least:.3g}–{scale * greatest:.3g})" if least < greatest else ""
        return f"{scale * self.median:.3g} {unit}{spread}"


Side = Callable[[Settings], float]
"""One way to compute a run: returns its seconds a round after the first, and raises FairbloomError
where it cannot."""


class InProcess:
    """A whole run in process by one engine: from its first row to its end, with records, checkpoints and evaluation.

    Parameters
    ----------
    engine
        Which engine computes, whatever the settings say.

    Attributes
    ----------
    choice
        What the last run has recorded of its engine: which one it was, and why.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.choice: Mapping[str, Any] = {}

    def __call__(self, settings: Settings) -> float:
        """Return the seconds a round after the first.

        Raise FairbloomError when the engine cannot compute this run.
        """
        first: list[float] = []

        def on_round(recorded: RecordedRound) -> None:
            first.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as scratch, log_from(logging.WARNING):
            chosen = Settings.of(
                {**settings.run_config(), "engine": self.engine, "out": f"{scratch}/run"}
            )
            folder = simulate(chosen, on_round)
            ended = time.perf_counter()
            self.choice = ENGINE.read(folder) or {}
        return (ended - first[0]) / (settings.num_rounds - 1)


def in_turn(
    sides: Mapping[str, Side], settings: Settings, *, seconds: float, repeats: int
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure the seconds a round of each side on the same settings, each side once before any of them again.

    A side makes as many rounds as take about `seconds`. Return what was measured, by side, and the
    reasons of those sides that cannot compute the run.
    """
    lengths: dict[str, Settings] = {}
    refused: dict[str, str] = {}
    for name, side in sides.items():
        try:
            lengths[name] = settings.model_copy(
                update={"num_rounds": rounds_in(seconds, side, settings)}
            )
        except FairbloomError as reason:
            refused[name] = str(reason)
    values: dict[str, list[float]] = {name: [] for name in lengths}
    for _ in range(repeats):
        for name, length in lengths.items():
            values[name].append(sides[name](length))
    return {name: Measured(tuple(found), "s") for name, found in values.items()}, refused


def rounds_in(seconds: float, side: Side, settings: Settings) -> int:
    """Return how many rounds take a side about so many seconds; trying it out also warms it up."""
    rounds = FEWEST_ROUNDS
    while True:
        a_round = side(settings.model_copy(update={"num_rounds": rounds}))
        if a_round * rounds >= seconds / 4 or rounds >= MOST_ROUNDS:
            return int(min(max(FEWEST_ROUNDS, 1.0 + seconds / a_round), MOST_ROUNDS))
        rounds = min(4 * rounds, MOST_ROUNDS)


def times(slower: Measured, faster: Measured) -> Measured:
    """Return how many times as long the one takes as the other, repeat by repeat."""
    return Measured(tuple(a / b for a, b in zip(slower.values, faster.values, strict=True)), "×")
