"""Flower's own loop and wrappers, a user's subclass, and users' clients and grids."""

import inspect
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg as FlowersFedAvg,
    Strategy,
)

from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.rounds.quorum import QuorumError
from fairbloom.strategies import FedAvg, FedMGDA
from tests.federation import (
    BUFFERS,
    KINDS,
    OPTIONS,
    Answer,
    MemoryGrid,
    answering,
    bits,
    error,
    flat,
    initial_model,
    no_reply,
    quadratics,
    record,
    replying,
    run,
    undisturbed,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, Arrays, make

FIRST = record(initial_model())


@pytest.mark.parametrize("name", KINDS)
def test_flowers_own_loop_gives_the_same_model(name: str) -> None:
    ours, _ = undisturbed(name)
    strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
    theirs = Strategy.start(strategy, MemoryGrid(quadratics(6)), FIRST, num_rounds=4)
    assert bits(theirs.arrays) == bits(ours.arrays), name
    assert dict(theirs.train_metrics_clientapp[4]) == dict(ours.train_metrics_clientapp[4]), name


def test_decay_in_another_loop_is_an_error_with_a_remedy() -> None:
    strategy = FedMGDA(decay=0.5)
    with pytest.raises(ValueError, match="decay needs the number of rounds"):
        Strategy.start(strategy, MemoryGrid(quadratics(2)), FIRST, num_rounds=1)


@pytest.mark.parametrize("method", [FedAvg, FedMGDA])
def test_a_foreign_client_with_flowers_usual_metrics_takes_part(method: type) -> None:
    def halve(model: Arrays, number: int) -> Arrays:
        return {name: (0.5 * array).astype(array.dtype) for name, array in model.items()}

    numbers = MetricRecord(
        {"eval_loss": 0.5, "eval_acc": 0.9, "num-examples": 10, "train_loss": 1.5}
    )
    client = answering(
        replying("", halve, numbers), query=lambda message: error(message, message)[0]
    )
    result, (finished,) = run(method(buffers=BUFFERS), dict.fromkeys("abc", client), rounds=1)
    assert finished.refused == {}
    assert finished.metrics["train_loss"] == pytest.approx(1.5)
    assert finished.evaluations[finished.participants[0]]["eval_acc"] == 0.9
    np.testing.assert_allclose(flat(unpack(result.arrays)), 0.5 * flat(initial_model()), rtol=1e-6)


def test_a_grid_that_only_sends_and_receives_is_enough() -> None:
    class Bare(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise NotImplementedError

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            return MemoryGrid.pull_messages(self, self.push_messages(messages))

    _, rounds = run(FedAvg(), Bare(quadratics(3), faults={("site-1", 1): no_reply}), 2)
    assert [r.participants for r in rounds] == [
        ("site-0", "site-1", "site-2"),
        ("site-0", "site-2"),
    ]


# Hooks --------------------------------------------------------------------------------------------


def test_a_subclass_may_change_what_is_sent_and_used() -> None:
    class Choosy(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config = ConfigRecord({**config, "phase": f"round {server_round}"})
            return list(super().configure_train(server_round, arrays, config, grid))[1:]

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            heard.append(sorted(grid.nodes[reply.metadata.src_node_id] for reply in replies))
            kept = [
                reply for reply in replies if grid.nodes[reply.metadata.src_node_id] != "site-3"
            ]
            arrays, numbers = super().aggregate_train(server_round, kept)
            return arrays, MetricRecord({**(numbers or {}), "heard": len(heard[-1])})

        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return list(super().configure_evaluate(server_round, arrays, config, grid))[:2]

        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            return MetricRecord(
                {**(super().aggregate_evaluate(server_round, replies) or {}), "mine": 1.0}
            )

    heard: list[list[str]] = []
    grid = MemoryGrid(quadratics(4))
    result, rounds = run(Choosy(buffers=BUFFERS), grid, rounds=2)
    assert (
        heard == [["site-1", "site-2", "site-3"]] * 2
    )  # no reply is expected for one that was held back
    first, last = rounds
    assert list(first.coefficients) == ["site-1", "site-2"]
    assert first.missing == ("site-0", "site-3")
    assert first.metrics["heard"] == 3
    assert [
        message.content.config_records["config"]["phase"]
        for _, message in grid.sent_to(MessageType.TRAIN)
    ] == (["round 1"] * 3 + ["round 2"] * 3)
    assert len(grid.sent_to(MessageType.EVALUATE)) == 4
    assert result.evaluate_metrics_clientapp[2]["mine"] == 1.0
    assert bits(result.arrays) == bits(last.arrays)


def test_a_subclass_may_return_the_arrays_of_the_next_round(subtests: pytest.Subtests) -> None:
    class Still(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            return FIRST, super().aggregate_train(server_round, replies)[1]

    grid = MemoryGrid(quadratics(3))
    result, rounds = run(Still(buffers=BUFFERS), grid, rounds=3)
    sent = [
        message.content.array_records["arrays"] for _, message in grid.sent_to(MessageType.TRAIN)
    ]
    for arrays in (*(each.arrays for each in rounds), *sent, result.arrays):
        with subtests.test(arrays=arrays):
            assert bits(arrays) == bits(FIRST)


def test_replies_to_no_messages_of_ours_say_what_to_call() -> None:
    class WrittenOut(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            return [Message(content, node_id, MessageType.TRAIN) for node_id in grid.get_node_ids()]

    with pytest.raises(RuntimeError, match="call configure_train first"):
        FedAvg().aggregate_train(1, [])
    with pytest.raises(RuntimeError, match=r"super\(\).configure_train"):
        run(WrittenOut(), MemoryGrid(quadratics(2)), rounds=1)


def test_the_hooks_stop_a_run_that_learns_nothing_too() -> None:
    grid = MemoryGrid(dict.fromkeys("abc", lambda message: error(message, message)[0]))
    with pytest.raises(
        NothingLearnedError, match="for 3 rounds: in round 3, 3 of 3 replies were refused"
    ):
        Strategy.start(FedAvg(), grid, FIRST, num_rounds=8)


# Flower's wrappers for differential privacy -------------------------------------------------------


def completes(strategy: Strategy, mod: Callable[..., Message] | None = None) -> bool:
    """Return whether a run of two rounds uses each reply, with one of Flower's mods on its
    training."""
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    clients: dict[str, Answer] = dict(quadratics(3))
    if mod is not None:
        for name, client in quadratics(3).items():
            through = lambda message, client=client: mod(  # noqa: E731
                message, context, lambda sent, _: client(sent)
            )
            clients[name] = answering(client, train=through)
    try:
        result = strategy.start(MemoryGrid(clients), FIRST, num_rounds=2)
    except (NothingLearnedError, QuorumError, ValueError, ZeroDivisionError):
        return False
    means = result.train_metrics_clientapp.values()
    return len(means) == 2 and all(
        each["replies-refused"] == each["replies-missing"] == 0 for each in means
    )


CLIPPING: dict[str, Any] = {
    "noise_multiplier": 0.01,
    "clipping_norm": 1.0,
    "num_sampled_clients": 3,
}


def test_flowers_noise_works_with_the_methods_of_the_page(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    # An error of a mod answers the client's reply instead of the message, so that the client seems
    # silent.
    monkeypatch.setattr("fairbloom.rounds.flower.PATIENCE_SECONDS", 0.0)
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=15.0, delta=1e-5)
    central = partial(DifferentialPrivacyServerSideFixedClipping, **CLIPPING)
    of_clients = partial(DifferentialPrivacyClientSideFixedClipping, **CLIPPING)
    for wrapper, mods, fails in (
        (lambda strategy: strategy, mod, {"scaffold", "drfa", "fcfl", "local"}),
        (central, None, {"fcfl", "local"}),
        (of_clients, fixedclipping_mod, {"scaffold", "drfa", "fcfl", "local"}),
    ):
        with subtests.test(wrapper=wrapper, mods=mods):
            made = {name: wrapper(make(name, ARGUMENTS[name][0])) for name in (*KINDS, "local")}
            assert {
                name for name, strategy in made.items() if not completes(strategy, mods)
            } == fails


# Arguments of Flower's FedAvg ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameter"), inspect.signature(FlowersFedAvg).parameters.items())
def test_flowers_fedavg_arguments_have_flowers_defaults(name: str, parameter: Any) -> None:
    for method in (FedAvg, FedMGDA):
        assert getattr(method(**{name: parameter.default}), name) == parameter.default


def test_own_aggregation_is_not_called_without_usable_replies() -> None:
    def never(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        raise AssertionError("there is nothing to aggregate")

    faults = {(site, 1): error for site in quadratics(6)}
    result, _ = run(FedAvg(train_metrics_aggr_fn=never, unused_rounds=0), rounds=1, faults=faults)
    assert result.train_metrics_clientapp[1]["replies-used"] == 0
    own = FedMGDA(
        train_metrics_aggr_fn=lambda contents, weighted_by_key: MetricRecord({"mine": 1.0})
    )
    result, _ = run(own, rounds=1)
    # what the method reports stays
    assert {"mine", *FedMGDA.reports} <= set(result.train_metrics_clientapp[1])


# Flower's log lines -------------------------------------------------------------------------------


def steps_of(strategy: Strategy, caplog: pytest.LogCaptureFixture, start: Any) -> list[str]:
    """Return what a run of two rounds logs, without its numbers, the method's options and the
    summary."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "flwr"):
        start(strategy, MemoryGrid(quadratics(3)), FIRST, num_rounds=2)
    steps = (
        "Starting",
        "[ROUND",
        "configure_",
        "aggregate_",
        "Strategy execution",
        "Final results:",
    )
    lines = [line.strip() for line in caplog.messages]
    return [line.partition(":")[0].partition(" in ")[0] for line in lines if line.startswith(steps)]


def test_flowers_loop_and_ours_log_the_same_steps(caplog: pytest.LogCaptureFixture) -> None:
    flowers = steps_of(FlowersFedAvg(), caplog, FlowersFedAvg.start)
    assert "[ROUND 2/2]" in flowers
    assert (
        steps_of(FedAvg(), caplog, FedAvg.start)
        == steps_of(FedAvg(), caplog, Strategy.start)
        == flowers
    )
