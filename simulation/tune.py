"""The engines measured against each other on a task: a few rounds of real training each, of which nothing is written.

A run never looks at the clock to choose its engine; a person who reads these numbers may.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fairbloom.client.device import choose_device
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import AGREED, LOSS_BEFORE, TRAIN_LOSS
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.server.app import agree
from fairbloom.server.settings import Settings
from fairbloom.tasks import check_data, load_task
from fairbloom.tasks.models import arrays_of, check_arrays, float_buffers, frozen_parameters, shared_parameters

from .choice import Choice, choose
from .clients import LocalClients
from .dispatch.processes import processors_here
from .loop import LoopClients
from .run import one_thread

MIN_ROUNDS = 3
"""How many rounds of an engine are measured at least, after one that is not."""

ENDLESS_ROUNDS = 2**31
"""The number of rounds that the measured runs believe to have: none of them is the last."""


@dataclass
class Timing:
    """The seconds of each measured round of an engine, with its evaluation, or why it cannot be had here."""

    engine: str
    seconds: list[float] = field(default_factory=list)
    why_not: str = ""

    @property
    def of_a_round(self) -> float:
        """The median of the measured rounds, in seconds."""
        return median(self.seconds)


@dataclass(frozen=True)
class Tuned:
    """What was measured of several engines, and what `engine = auto` chooses here."""

    timings: Sequence[Timing]
    auto: Choice

    @property
    def had(self) -> dict[str, Timing]:
        """The engines that can be had here, the fastest first."""
        return {each.engine: each for each in sorted(self.timings, key=_pace) if not each.why_not}

    def speed(self, timing: Timing) -> float | None:
        """Return how many times as fast as the loop an engine is, None where it cannot be had."""
        return None if timing.why_not else self.had["loop"].of_a_round / timing.of_a_round

    @property
    def better(self) -> str:
        """The engine to set by hand, "" where none is much faster than the one that auto chooses."""
        fastest, usual = next(iter(self.had.values())), self.had.get(self.auto.engine)
        is_much = usual is None or usual.of_a_round > 1.1 * fastest.of_a_round  # a smaller gain is not worth a setting
        return fastest.engine if is_much else ""


def tune(settings: Settings, engines: Sequence[str], seconds: float) -> Tuned:
    """Measure rounds of real training, on the real data, by each of several engines in turn, loop among them.

    The rounds of each engine take these seconds together; three are measured however long they take.
    """
    choose_device(settings.device)
    config: dict[str, Any] = {**settings.run_config(), "engine": "auto", "state-dir": ""}
    check_data(config)
    with one_thread(), ExitStack() as ending:  # as in a run
        loop = LoopClients(settings.strategy(), config)
        config[AGREED] = agree(settings, loop, deployed=False)
        settings = settings.decide_fraction(loop.online(1), {})
        config["fraction"] = settings.fraction
        timings, running = [Timing(engine) for engine in engines], list[tuple[Timing, Iterator[Round]]]()
        for timing in timings:
            try:
                choice = choose_engine(config, timing.engine)
                clients = ending.enter_context(closing(choice.clients(settings.strategy(), config)))
            except FairbloomError as error:
                timing.why_not = str(error)
            else:
                running.append((timing, run_rounds(clients, config)))
        for _, rounds in running:
            next(rounds)  # the first one loads data, starts processes and tries the model
        measure(running, seconds)
    return Tuned(timings, choose(config, processors_here()))


def choose_engine(config: Mapping[str, Any], engine: str) -> Choice:
    """Return how an engine computes the clients of a run; raise FairbloomError where it cannot be had here."""
    choice = choose({**config, "engine": engine}, processors_here())
    if choice.engine != engine:
        raise FairbloomError(choice.reason)
    return choice


def run_rounds(clients: LocalClients, config: Mapping[str, Any]) -> Iterator[Round]:
    """Return rounds without an end, each as in a run."""
    method, module = clients.method, load_task(config).model()
    check_arrays(module)
    method.buffers, method.shared = float_buffers(module), shared_parameters(module)
    method.frozen = frozen_parameters(module)
    model = arrays_of(module.state_dict())
    rounds = Rounds(method, clients, ENDLESS_ROUNDS, config[AGREED])
    return rounds.run(
        model,
        measure=lambda number: [LOSS_BEFORE] if rounds.evaluates(number) else [],
        measure_after=[TRAIN_LOSS],
    )


def measure(running: Sequence[tuple[Timing, Iterator[Round]]], seconds: float) -> None:
    """Let each engine compute rounds until they have taken so long; in turn, so that what disturbs one disturbs all."""
    while waiting := [(each, rounds) for each, rounds in running if not _is_enough(each.seconds, seconds)]:
        for timing, rounds in waiting:
            started = time.perf_counter()
            next(rounds)
            timing.seconds.append(time.perf_counter() - started)


def _is_enough(measured: Sequence[float], seconds: float) -> bool:
    return len(measured) >= MIN_ROUNDS and sum(measured) >= seconds


def _pace(timing: Timing) -> float:
    return timing.of_a_round if timing.seconds else 0.0
