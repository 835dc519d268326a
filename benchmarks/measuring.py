"""Measure several sides in turn, and show medians with their spread."""

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import ENGINE
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

# In a shorter run, the evaluation after the last round would count too much.
MIN_ROUNDS = 4

MAX_ROUNDS = 5_000


@dataclass(frozen=True)
class Measured:
    """Repeated measurements, shown as their median with the least and the greatest."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        least = min(self.values)
        greatest = max(self.values)
        scale = 1.0
        unit = self.unit
        if unit == "s" and self.median < 1.0:
            scale = 1000.0
            unit = "ms"
        spread = f" ({scale * least:.3g}–{scale * greatest:.3g})" if least < greatest else ""
        return f"{scale * self.median:.3g} {unit}{spread}"


Side = Callable[[Settings], float]
"""A way to compute a run: returns its seconds per round, without the first one; raises
FairbloomError if it cannot."""


class InProcess:
    """A whole run by one engine in this process, with records, checkpoints and evaluation.

    Parameters
    ----------
    engine
        The engine, which replaces the one of the settings.
    others
        Further settings, which override the run's.

    Attributes
    ----------
    choice
        The last run's record of its engine, and why it was chosen.
    """

    def __init__(self, engine: str, **others: Value) -> None:
        self.config = {"engine": engine, **others}
        self.choice: Mapping[str, Any] = {}

    @property
    def computed_by(self) -> str:
        """The engine that computed the last run, and CUDA graphs."""
        graphs = f", graphs: {recorded}" if (recorded := self.choice.get("recorded")) else ""
        return f"{self.choice.get('engine')}{graphs}"

    def __call__(self, settings: Settings) -> float:
        """Return the seconds per round; raise FairbloomError if the engine cannot do this run."""
        first: list[float] = []

        def on_round(recorded: RecordedRound) -> None:
            first.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as scratch, log_from(logging.WARNING):
            chosen = Settings.of({**settings.run_config(), **self.config, "out": f"{scratch}/run"})
            folder = simulate(chosen, on_round)
            ended = time.perf_counter()
            self.choice = ENGINE.read(folder) or {}
        return (ended - first[0]) / (settings.num_rounds - 1)


def in_turn(
    sides: Mapping[str, Side],
    settings: Settings,
    *,
    repeats: int,
    seconds: float = 0.0,
    rounds: int | None = None,
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure the seconds per round of each side on the same settings, one side after the other.

    A run of a side has this many `rounds` after its first one; None: it takes about `seconds`.
    Return the measurements by side, and the reasons of sides that cannot compute the run.
    """
    lengths: dict[str, Settings] = {}
    values: dict[str, list[float]] = {name: [] for name in sides}
    refused: dict[str, str] = {}
    for repeat in range(repeats):
        for name, side in sides.items():
            if name in refused:
                continue
            try:
                if repeat == 0:
                    total = rounds_in(seconds, side, settings) if rounds is None else rounds + 1
                    lengths[name] = settings.model_copy(update={"num_rounds": total})
                values[name].append(side(lengths[name]))
            except FairbloomError as reason:
                refused[name] = str(reason)
    found = {
        name: Measured(tuple(each), "s") for name, each in values.items() if name not in refused
    }
    return found, refused


def rounds_in(seconds: float, side: Side, settings: Settings) -> int:
    """Return the rounds that a side computes in about `seconds`; the trial also warms it up."""
    rounds = MIN_ROUNDS
    while True:
        a_round = side(settings.model_copy(update={"num_rounds": rounds}))
        if a_round * rounds >= seconds / 4 or rounds >= MAX_ROUNDS:
            return int(min(max(MIN_ROUNDS, 1.0 + seconds / a_round), MAX_ROUNDS))
        rounds = min(4 * rounds, MAX_ROUNDS)


def times(slower: Measured, faster: Measured) -> Measured:
    """Return the ratio of the slower to the faster side, repeat by repeat."""
    return Measured(tuple(a / b for a, b in zip(slower.values, faster.values, strict=True)), "×")
