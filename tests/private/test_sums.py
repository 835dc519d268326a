"""Private rounds: the sums are those of the methods, clients may get lost, and too few are never unmasked."""

import contextlib
from typing import Any

import numpy as np
import pytest

from fairbloom.private.errors import SkippedError
from fairbloom.private.packing import pack
from fairbloom.private.weighing import (
    AccuracyWeighing,
    DeviationWeighing,
    MeanWeighing,
    NormalisedWeighing,
    PowerWeighing,
    PriorWeighing,
    TiltedWeighing,
    Weighing,
)

from .federation import Federation

NAMES = [f"client-{number:03}" for number in range(8)]

WEIGHINGS: dict[str, Weighing] = {
    "prior": PriorWeighing(prior="examples"),
    "uniform": PriorWeighing(),
    "normalised": NormalisedWeighing(prior="examples", step_size=0.5),
    "tilted": TiltedWeighing(prior="examples", tilt=1.0),
    "tilted down": TiltedWeighing(tilt=-2.0),
    "power": PowerWeighing(q=1.0),
    "power of five": PowerWeighing(q=5.0),
    "power of a gradient": PowerWeighing(q=1.0, lipschitz=10.0, by_rate=True),
    "deviation": DeviationWeighing(prior="examples"),
    "deviation above": DeviationWeighing(prior="examples", above_only=True),
    "accuracy": AccuracyWeighing(rounds={f"client-{number:03}": 3.0 for number in range(100)}),
}


def coefficients(name: str, federation: Federation, names: list[str]) -> np.ndarray[Any, Any]:
    """Return the coefficients of some clients, written down once more from the papers."""
    column = lambda key: np.array([federation.metrics[each][key] for each in names])  # noqa: E731
    n, F, A = column("num-examples"), column("loss-before"), column("accuracy-after")
    squares = np.array([(federation.updates[each] ** 2).sum() for each in names])
    p, m = n / n.sum(), len(names)
    if name.startswith("tilted"):
        raw = p * np.exp(F) if name == "tilted" else np.exp(-2.0 * F)
        return raw / raw.sum()
    if name.startswith("power"):
        q, L, g = (5.0, 1.0, 1.0) if "five" in name else (1.0, 10.0, 10.0) if "gradient" in name else (1.0, 1.0, 1.0)
        return g * F**q / (q * F ** (q - 1) * g**2 * squares + L * F**q).sum()
    if name == "deviation above":
        above = np.maximum(F - p @ F, 0.0)
        return p * (1.0 + above - p @ above)
    if name == "accuracy":
        rare = -np.log2(A / A.sum())
        return 0.5 * rare / rare.sum() + 0.5 / m
    return {
        "prior": p,
        "uniform": np.full(m, 1.0 / m),
        "normalised": 0.5 * p / np.sqrt(squares),
        "deviation": p * (1.0 + F - p @ F),
    }[name]


def error(name: str, federation: Federation, step: np.ndarray[Any, Any], names: list[str]) -> float:
    """Return how far a step is from the one over these clients, relative to C."""
    c, updates = coefficients(name, federation, names), np.array([federation.updates[each] for each in names])
    return float(np.linalg.norm(step - c @ updates) / (np.abs(c) @ np.linalg.norm(updates, axis=1)))


@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_step_is_that_of_the_method(name: str) -> None:
    federation = Federation(8, 2000)
    opened = federation.run(WEIGHINGS[name])
    assert (opened.capped, opened.beyond) == (0, 0)
    assert error(name, federation, opened.step, NAMES) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "most"), [(30, 2e-5), (100, 1e-4)])
@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_step_of_many_is_that_of_the_method(name: str, clients: int, most: float) -> None:
    federation = Federation(clients, 2000)
    opened = federation.run(WEIGHINGS[name])
    c = coefficients(name, federation, federation.names)
    lengths = np.array([np.linalg.norm(federation.updates[each]) for each in federation.names])
    shares = np.abs(c) * lengths / (np.abs(c) @ lengths)
    assert opened.capped == (shares > 5.0 / clients).sum()
    if not opened.capped:
        assert error(name, federation, opened.step, federation.names) < most


def test_vectors_of_a_round_are_uniform_and_say_nothing() -> None:
    """Bounds are those of p = 1e-6, as the operating system's random numbers differ from run to run."""
    federation = Federation(8, 50_000)
    federation.run()
    vectors = {client: reply["vector"] for exchange, client, reply in federation.replies if exchange == "vector"}
    assert len(vectors) == 8
    for client, vector in vectors.items():
        words = np.frombuffer(vector, "<u4")[:50_000]
        counts = np.bincount(words >> np.uint32(24), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 376.0
        assert abs(np.corrcoef(words.astype(np.float64), federation.updates[client])[0, 1]) < 5.0 / 50_000**0.5


@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_vectors_of_any_size_add_up(size: int) -> None:
    federation = Federation(12, size)
    assert error("prior", federation, federation.run().step, federation.names) < 2e-5


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "vector", "unmask"])
def test_two_of_eight_clients_may_get_lost_at_any_exchange(exchange: str) -> None:
    federation = Federation(8, 500)
    gone = {"client-001", "client-006"}
    federation.forge = lambda asked, client, request: None if asked == exchange and client in gone else request
    opened = federation.run(TiltedWeighing(prior="examples"))
    left = [name for name in NAMES if name not in gone]
    if exchange == "keys":  # a cohort of six is complete
        assert list(opened.cohort) == left
    expected = NAMES if exchange == "unmask" else left
    assert list(opened.alive) == expected
    assert error("tilted", federation, opened.step, expected) < 1e-4
    assert federation.server.missing == gone


@pytest.mark.parametrize("name", ["prior", "normalised", "tilted", "power"])
def test_a_loss_at_the_vector_is_exact_over_the_others(name: str) -> None:
    federation = Federation(8, 500)
    federation.forge = lambda asked, client, request: None if (asked, client) == ("vector", NAMES[2]) else request
    opened = federation.run(WEIGHINGS[name])
    left = [each for each in NAMES if each != NAMES[2]]
    assert error(name, federation, opened.step, left) < 1e-4


def test_a_loss_between_two_steps_skips_the_round() -> None:
    federation = Federation(8, 50)
    federation.forge = lambda asked, client, request: None if (asked, client) == ("share", NAMES[2]) else request
    with pytest.raises(SkippedError, match="share"):
        federation.run(DeviationWeighing())
    assert "vector" not in {exchange for exchange, _, _ in federation.replies}


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "vector", "unmask"])
def test_fewer_than_needed_skip_the_round_and_unmask_nothing(exchange: str) -> None:
    federation = Federation(8, 50)
    gone = set(NAMES[:4] if exchange == "keys" else NAMES[:3])
    federation.forge = lambda asked, client, request: None if asked == exchange and client in gone else request
    with pytest.raises(SkippedError, match="nothing was unmasked"):
        federation.run()
    if exchange != "unmask":
        assert "unmask" not in {asked for asked, _, _ in federation.replies}


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "vector", "unmask"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"7", pack({"seeds": dict.fromkeys(NAMES, 10**12)})])
def test_a_hostile_answer_never_ends_the_run(exchange: str, content: bytes) -> None:
    federation = Federation(8, 50)
    answer = federation.clients[NAMES[2]].answer

    def hostile(asked: str, *others: Any) -> dict[str, bytes]:
        reply = answer(asked, *others)
        return {**reply, "body": content, "vector": content} if asked == exchange else reply

    federation.clients[NAMES[2]].answer = hostile  # type: ignore[method-assign]
    with contextlib.suppress(SkippedError):
        federation.run()


def test_a_sum_that_a_hostile_client_made_negative_moves_nothing() -> None:
    federation = Federation(8, 50)
    federation.metrics[NAMES[2]]["num-examples"] = -1e6
    opened = federation.run(PriorWeighing(prior="examples"))
    assert not np.any(opened.step)


def test_with_five_clients_none_may_be_lost() -> None:
    federation = Federation(5, 50)
    federation.forge = lambda asked, client, request: None if (asked, client) == ("open", NAMES[0]) else request
    with pytest.raises(SkippedError, match="4 clients answered"):
        federation.run()


@pytest.mark.parametrize(("clients", "words"), [(4, "needs 5"), (101, "at most 100")])
def test_rounds_of_too_few_or_too_many_are_skipped(clients: int, words: str) -> None:
    federation = Federation(1, 5)
    federation.names = [f"client-{number}" for number in range(clients)]
    with pytest.raises(SkippedError, match=words):
        federation.run()


def test_a_share_beyond_the_cap_is_scaled_down_once() -> None:
    federation = Federation(30, 200)
    federation.metrics["client-004"]["num-examples"] = 1500.0
    opened = federation.run(PriorWeighing(prior="examples"))
    assert opened.capped == 1
    c = coefficients("prior", federation, federation.names)
    lengths = np.array([np.linalg.norm(federation.updates[each]) for each in federation.names])
    c = np.minimum(c, (c @ lengths) / 6.0 / lengths)
    expected = c @ np.array([federation.updates[each] for each in federation.names])
    assert opened.step == pytest.approx(expected, abs=1e-4)


def test_a_loss_beyond_its_bound_counts_as_it_and_is_recorded() -> None:
    federation = Federation(8, 50)
    federation.metrics["client-004"]["loss-before"] = 99.0
    opened = federation.run(TiltedWeighing(tilt=0.1, loss_bound=16.0))
    assert opened.beyond == 1
    federation.metrics["client-004"]["loss-before"] = 16.0
    bounded = federation.run(TiltedWeighing(tilt=0.1, loss_bound=16.0), number=2)
    assert opened.sums["tilted"] == bounded.sums["tilted"]


def test_an_evaluation_opens_counts_and_sums_alone() -> None:
    federation = Federation(8, 0)
    opened = federation.run(MeanWeighing(scores=("loss-before",)), vectors=False)
    losses = [federation.metrics[name]["loss-before"] for name in NAMES]
    assert opened.sums["loss-before/sum"] == pytest.approx(sum(losses), rel=1e-14)
    assert opened.sums["loss-before/squares"] == pytest.approx(sum(x * x for x in losses), rel=1e-14)


def test_secrets_of_a_round_are_gone_after_it() -> None:
    federation = Federation(8, 50)
    federation.run()
    for client in federation.clients.values():
        assert client._store.load() == {"journal": {"train run": [1, 1, 1]}, "weights": {}}


@pytest.mark.parametrize("weighing", [lambda: TiltedWeighing(tilt=1000.0), lambda: PowerWeighing(q=100.0)])
def test_a_method_that_needs_too_many_digits_is_refused(weighing: Any) -> None:
    with pytest.raises(ValueError, match="more digits than a private sum has"):
        weighing()
