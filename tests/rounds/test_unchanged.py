"""Runs in which no reply changes a parameter, or no evaluation can be used, are errors."""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.rounds.round import Round, StopRun
from fairbloom.strategies import FedAvg, FedFV, Local
from tests.federation import (
    BUFFERS,
    Answer,
    Arrays,
    MemoryGrid,
    answering,
    arrays,
    error,
    initial_model,
    quadratics,
    record,
    unpack,
)

SITES = tuple(quadratics(4))
NO_STEP = "took no step on the parameters that it received"


def echo(message: Message, reply: Message) -> list[Message]:
    """Return the reply of a client that has trained a copy, and has averaged its statistics."""
    content = message.content.array_records["arrays"]
    statistics = unpack(reply.content.array_records["arrays"])["norm.mean"]
    reply.content["arrays"] = record({**unpack(content), "norm.mean": statistics})
    return [reply]


def at_rest(message: Message, reply: Message) -> list[Message]:
    (reply,) = echo(message, reply)
    reply.content["client"] = ConfigRecord({"zero-rate": True})
    return [reply]


def run(strategy: Any, faults: Mapping[int, Any], sites: Any = SITES, **how: Any) -> list[Round]:
    finished: list[Round] = []
    grid = MemoryGrid(
        quadratics(4), faults={(site, n): fault for n, fault in faults.items() for site in sites}
    )
    arguments: dict[str, Any] = {"initial_arrays": record(initial_model()), "num_rounds": 5, **how}
    strategy.start(grid, on_round=finished.append, **arguments)
    return finished


def always(fault: Any) -> dict[int, Any]:
    return dict.fromkeys(range(1, 10), fault)


@pytest.mark.parametrize("strategy", [FedAvg, FedFV])
def test_a_run_without_any_changed_reply_is_an_error(strategy: Any) -> None:
    with pytest.raises(
        NothingLearnedError,
        match=rf"for 3 rounds: no reply has changed a parameter\. Client site-0 {NO_STEP}.*"
        r"optimizer\.step\(\).*unused-rounds = 0",
    ):
        run(strategy(buffers=BUFFERS), always(echo))
    assert len(run(strategy(buffers=BUFFERS, unused_rounds=0), always(echo))) == 5


def test_unchanged_rounds_are_counted_in_checkpoints() -> None:
    before = FedAvg(buffers=BUFFERS)
    (*_, last) = run(before, always(echo), num_rounds=2)
    after = {"initial_arrays": last.arrays, "resume": copy.deepcopy(before.state_dict())}
    with pytest.raises(NothingLearnedError, match="for 3 rounds: no reply"):
        run(FedAvg(buffers=BUFFERS), always(echo), **after)
    assert len(run(FedAvg(buffers=BUFFERS), {}, **after)) == 3


def test_unchanged_replies_after_a_step_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        run(FedAvg(buffers=BUFFERS), dict.fromkeys(range(2, 10), echo), num_rounds=9)
    (words,) = [words for words in caplog.messages if NO_STEP in words]
    assert words.startswith("round 2: client site-0, as 3 others, took no step")


def test_a_single_client_without_a_step_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        run(FedAvg(buffers=BUFFERS), always(echo), sites=["site-2"])
    (words,) = [words for words in caplog.messages if NO_STEP in words]
    assert words.startswith("round 1: client site-2 took no step")


@pytest.mark.parametrize(
    ("strategy", "fault", "config"),
    [
        (Local(buffers=BUFFERS), None, {}),
        (FedAvg(buffers=BUFFERS), at_rest, {}),
        (FedAvg(buffers=BUFFERS), echo, {"lr": 0.0}),
        (FedAvg(buffers=BUFFERS, frozen=("weight", "bias", "scale")), echo, {}),
    ],
)
def test_no_shared_steps_and_a_rate_of_0_are_no_error(
    strategy: Any, fault: Any, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(run(strategy, always(fault), train_config=ConfigRecord(config))) == 5
    assert NO_STEP not in caplog.text


# Evaluations --------------------------------------------------------------------------------------


def failing(first: int = 1) -> dict[str, Answer]:
    """Return clients that cannot evaluate from a round on."""

    def client(name: str) -> Answer:
        inner = quadratics(4)[name]

        def evaluate(message: Message) -> Message:
            number = int(str(message.content.config_records["config"]["server-round"]))
            return inner(message) if number < first else error(message, message)[0]

        return answering(inner, evaluate=evaluate)

    return {name: client(name) for name in SITES}


def evaluated(clients: dict[str, Answer], rounds: int, **options: Any) -> list[Round]:
    finished: list[Round] = []
    FedAvg(**options).start(
        MemoryGrid(clients), record(initial_model()), rounds, on_round=finished.append
    )
    return finished


@pytest.mark.parametrize(
    ("first", "rounds", "options", "words"),
    [
        (1, 9, {}, "for 3 evaluated rounds: in round 3, 4 of 4 replies were refused, all since"),
        (3, 9, {}, "for 3 evaluated rounds: in round 5, 4 of 4 replies were refused"),
        (1, 9, {"evaluate_every": 2, "unused_rounds": 2}, "for 2 evaluated rounds: in round 4,"),
        (1, 2, {}, "no round of 2 could be evaluated: 4 of 4 replies were refused"),
        (1, 9, {"evaluate_every": 0}, "no round of 9 could be evaluated: 4 of 4 replies"),
    ],
)
def test_rounds_without_a_usable_evaluation_are_an_error(
    first: int, rounds: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(NothingLearnedError, match=f"{words}.*out of memory.*unused-rounds = 0"):
        evaluated(failing(first), rounds, **options)
    assert len(evaluated(failing(first), rounds, **{**options, "unused_rounds": 0})) == rounds


def test_a_few_rounds_without_a_usable_evaluation_are_no_error() -> None:
    assert len(evaluated(failing(first=4), 5)) == 5


def test_a_continued_run_counts_evaluations_from_its_checkpoint() -> None:
    before = FedAvg()
    last: list[Round] = []

    def stop(finished: Round) -> None:
        last.append(finished)
        if finished.number == 2:
            raise StopRun

    start: Arrays = initial_model()
    before.start(MemoryGrid(failing()), record(start), 9, on_round=stop)
    state = copy.deepcopy(before.state_dict())
    with pytest.raises(NothingLearnedError, match="in round 3, 4 of 4"):
        FedAvg().start(MemoryGrid(failing()), last[-1].arrays, 9, resume=state)


def test_an_update_too_small_for_float32_counts_as_a_change() -> None:
    weight = initial_model()["weight"]
    weight[0, 0] = np.nextafter(weight[0, 0], np.float32(9))
    changed = arrays(**{**initial_model(), "weight": weight})
    assert len(run(FedAvg(buffers=BUFFERS, unused_rounds=1), {1: changed}, num_rounds=1)) == 1
