"""DRFA: the weighted draw, the second exchange of a round and the ascent of λ, replayed from the
messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType
from hypothesis import given, strategies as st

from fairbloom.protocol.streams import generator
from fairbloom.strategies import DRFA, Round
from tests import federation
from tests.federation import (
    BUFFERS,
    Answer,
    Fault,
    MemoryGrid,
    answering,
    error,
    flat,
    initial_model,
    metrics,
    no_reply,
    quadratics,
    unflat,
    unpack,
)

from .helpers import recall, work_config
from .reference import nearest_in_simplex


def run(
    strategy: DRFA, clients: Mapping[str, Answer] | None = None, rounds: int = 5
) -> tuple[list[Round], list[dict[str, float]], MemoryGrid]:
    """Return the finished rounds, λ after each, and the grid with all that was sent."""
    weights = list[dict[str, float]]()
    grid = MemoryGrid(clients or quadratics(6))

    def note(number: int, arrays: ArrayRecord) -> None:
        weights.append(dict(strategy.past.memory.get("weights", {})))

    _, finished = federation.run(strategy, grid, rounds, evaluate_fn=note)
    return finished, weights[1:], grid


def config_of(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records["config"])


def asked_for_losses(grid: MemoryGrid, number: int | None = None) -> dict[str, Message]:
    """The second exchange of a round, by client name."""
    return {
        name: message
        for name, message in grid.sent_to(MessageType.EVALUATE)
        if "measure" in config_of(message) and number in (None, config_of(message)["server-round"])
    }


# The whole algorithm ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fraction", "seed"),
    [
        ({"gamma": 0.0002}, 0.5, 0),
        ({"gamma": 0.01, "local_steps": 3}, 1.0, 7),
        ({"gamma": 0.001, "local_steps": 1}, 0.34, 7),
    ],
)
def test_a_run_goes_as_in_the_definition(
    arguments: dict[str, Any], fraction: float, seed: int
) -> None:
    """Draws by λ, the mean of the draws, the snapshot at a random step, losses of a second sample,
    and the ascent."""
    finished, weights, grid = run(
        DRFA(fraction_train=fraction, seed=seed, buffers=BUFFERS, **arguments)
    )
    clients = quadratics(6)
    gamma = arguments["gamma"]
    K = arguments.get("local_steps", 10)
    w = {k: a.astype(np.float64) for k, a in initial_model().items()}
    lam = dict.fromkeys(sorted(clients), 1 / 6)
    wanted = int(np.ceil(fraction * 6 - 1e-9))
    for number, (one, after) in enumerate(zip(finished, weights, strict=True), start=1):
        p = np.array([*lam.values()])
        draws = Counter(
            generator(seed, "weighted draw", number).choice([*lam], wanted, p=p / p.sum()).tolist()
        )
        assert one.participants == tuple(sorted(draws))
        configs = [
            config_of(m)
            for _, m in grid.sent_to(MessageType.TRAIN)
            if config_of(m)["server-round"] == number
        ]
        (step,) = {config["snapshot-step"] for config in configs}
        assert {config["local-steps"] for config in configs} == {K}
        assert 1 <= step <= K

        most = max(draws, key=lambda name: clients[name].examples)
        counted = w["norm.steps"] + clients[most].examples  # never averaged
        mean = sum(n * flat(clients[c].trained(w, K)) for c, n in draws.items()) / wanted
        snapshot = sum(n * flat(clients[c].trained(w, step)) for c, n in draws.items()) / wanted
        asked = asked_for_losses(grid, number)
        assert len(asked) == wanted
        F = {}
        for name, message in asked.items():
            assert set(message.content) == {"arrays", "config"}
            assert config_of(message) == {"server-round": number, "measure": ["train-loss"]}
            arrays = unpack(message.content.array_records["arrays"])
            assert {k: (a.dtype, a.shape) for k, a in arrays.items()} == {
                k: (a.dtype, a.shape) for k, a in initial_model().items()
            }
            np.testing.assert_allclose(flat(arrays), snapshot, rtol=2e-5, atol=2e-5)
            assert arrays["norm.steps"] == counted
            F[name] = 0.5 * float(clients[name].curvature @ (snapshot - clients[name].target) ** 2)
        lam = nearest_in_simplex({c: lam[c] + K * gamma * 6 / wanted * F.get(c, 0.0) for c in lam})
        assert after == pytest.approx(lam, abs=1e-4)
        lam = {c: after[c] for c in lam}  # so that rounding does not grow into another draw

        w |= unflat(mean, w) | {"norm.steps": counted}
        np.testing.assert_allclose(flat(unpack(one.arrays)), mean, rtol=2e-5, atol=2e-5)


def test_after_one_step_snapshots_are_the_updates() -> None:
    """The probed model is the global one after the step."""
    finished, _, grid = run(
        DRFA(gamma=0.01, local_steps=1, fraction_train=1.0, buffers=BUFFERS),
        rounds=1,
    )
    for message in asked_for_losses(grid, 1).values():
        probed = unpack(message.content.array_records["arrays"])
        np.testing.assert_allclose(
            flat(probed), flat(unpack(finished[0].arrays)), rtol=1e-6, atol=1e-6
        )


# The draw -----------------------------------------------------------------------------------------


def test_clients_are_drawn_with_replacement_by_lambda(subtests: pytest.Subtests) -> None:
    strategy = DRFA(gamma=1.0, seed=5)
    rounds = 3000
    lam = {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0}
    recall(strategy, weights=lam)
    draws = [strategy.choose(list(lam), 3, number) for number in range(rounds)]
    assert all(len(drawn) == 3 and drawn == sorted(drawn) for drawn in draws)
    counted = Counter(name for drawn in draws for name in drawn)
    for name, p in lam.items():
        with subtests.test(name=name, p=p):
            assert abs(counted[name] - 3 * rounds * p) <= 4 * np.sqrt(3 * rounds * p * (1 - p))
    assert sum(len(set(drawn)) < 3 for drawn in draws) > rounds / 2


@given(seed=st.integers(0, 1000), number=st.integers(1, 1000), names=st.permutations("abcdef"))
def test_the_draw_depends_on_names_weights_seed_and_round_alone(
    seed: int, number: int, names: Sequence[str]
) -> None:
    one = DRFA(gamma=1.0, seed=seed)
    other = DRFA(gamma=0.5, seed=seed)
    for strategy in (one, other):
        recall(strategy, weights={"b": 0.5, "a": 0.5})
    assert one.choose(names, 4, number) == other.choose(sorted(names), 4, number)


def test_newcomers_are_drawn_by_prior_and_only_free_ones_train() -> None:
    strategy = DRFA(gamma=1.0)
    recall(strategy, weights={"a": 1.0, "b": 0.0})
    draws = Counter(
        name for number in range(600) for name in strategy.choose(["b", "c"], 2, number)
    )
    assert set(draws) == {"c"}
    draws = Counter(
        name for number in range(600) for name in strategy.choose(["a", "b", "c"], 2, number)
    )
    assert set(draws) == {"a", "c"}
    assert abs(draws["c"] - 400) <= 4 * np.sqrt(1200 * 2 / 9)


def test_without_mass_on_free_clients_the_draw_is_uniform() -> None:
    strategy = DRFA(gamma=1.0)
    recall(strategy, weights={"a": 1.0, "b": 0.0, "c": 0.0})
    draws = Counter(
        name for number in range(600) for name in strategy.choose(["b", "c"], 1, number)
    )
    assert abs(draws["b"] - 300) <= 4 * np.sqrt(150)


def test_the_snapshot_step_is_uniform_over_the_local_steps() -> None:
    steps = Counter(
        work_config(DRFA(gamma=1.0, local_steps=4, seed=2), number)["snapshot-step"]
        for number in range(2000)
    )
    assert set(steps) == {1, 2, 3, 4}
    assert all(abs(times - 500) <= 4 * np.sqrt(2000 * 0.25 * 0.75) for times in steps.values())
    assert work_config(DRFA(gamma=1.0, local_steps=1), 3) == {"local-steps": 1, "snapshot-step": 1}


# What is refused ----------------------------------------------------------------------------------


def failing(fault: Fault) -> dict[str, Answer]:
    """Six clients; site-2 answers the second exchange of round 1 differently."""
    good = quadratics(6)["site-2"]

    def answer(message: Message) -> Message | None:
        second = "measure" in config_of(message) and config_of(message)["server-round"] == 1
        return next(iter(fault(message, good(message))), None) if second else good(message)

    return {**quadratics(6), "site-2": answering(good, evaluate=answer)}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (metrics({"train-loss": None}), "metric 'train-loss' is missing or no finite number"),
        (metrics({"train-loss": np.nan}), "metric 'train-loss' is missing or no finite number"),
        (error, "out of memory"),
        (metrics({"train-loss": 1e30}), "'train-loss' is 1e+30"),
    ],
)
def test_an_unusable_loss_is_left_out_and_its_sender_named(fault: Any, reason: str) -> None:
    (_,), (whole,), _ = run(DRFA(gamma=0.001, fraction_evaluate=0.0), rounds=1)
    (one,), (lam,), grid = run(DRFA(gamma=0.001, fraction_evaluate=0.0), failing(fault), rounds=1)
    assert "site-2" in asked_for_losses(grid)
    assert one.refused["site-2"].startswith("loss at the snapshot: ")
    assert reason in one.refused["site-2"]
    assert set(one.coefficients) == set(one.participants)
    assert lam["site-2"] == min(lam.values()) < whole["site-2"]
    assert sum(lam.values()) == pytest.approx(1.0)


def test_a_client_that_does_not_tell_its_loss_owes_it(subtests: pytest.Subtests) -> None:
    finished, _, grid = run(DRFA(gamma=0.001, fraction_evaluate=0.0), failing(no_reply), rounds=4)
    assert "site-2" in asked_for_losses(grid, 1)
    for one in finished[1:]:
        with subtests.test(one=one):
            assert "site-2" not in one.participants
            assert "site-2" not in asked_for_losses(grid, one.number)


def test_without_any_loss_lambda_stays() -> None:
    clients = {
        name: answering(each, evaluate=lambda m: error(m, m)[0])
        for name, each in quadratics(4).items()
    }
    finished, weights, _ = run(DRFA(gamma=1.0, unused_rounds=0), clients, rounds=2)
    for lam in weights:
        np.testing.assert_allclose(list(lam.values()), 0.25, rtol=1e-12)
    assert all(one.coefficients for one in finished)


def test_no_second_exchange_in_a_skipped_round() -> None:
    grid = MemoryGrid(quadratics(3), faults={(name, 1): error for name in quadratics(3)})
    strategy = DRFA(gamma=0.1, fraction_evaluate=0.0, unused_rounds=0)
    federation.run(strategy, grid, rounds=1)
    assert asked_for_losses(grid) == {}
    assert strategy.past.memory == {}
