"""Server optimizers: their formulas, rounds that leave them unchanged, and continued runs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds import arrays
from fairbloom.rounds.arrays import CHUNK_COLUMNS, FloatArray
from fairbloom.rounds.server_optimizer import Moments, ServerOptimizer
from fairbloom.strategies import FairStrategy, FedAvg
from tests.federation import (
    BUFFERS,
    OPTIONS,
    MemoryGrid,
    assert_resumes,
    bits,
    error,
    flat,
    initial_model,
    quadratics,
    run,
    undisturbed,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make

from .test_norms import Leap, always, rounds_of

ADAPTIVE = ("adagrad", "adam", "yogi")
EACH: dict[str, dict[str, Any]] = {
    "avgm": {"server_optimizer": "avgm", "server_optimizer_lr": 0.7, "server_optimizer_beta1": 0.5},
    "adagrad": {
        "server_optimizer": "adagrad",
        "server_optimizer_lr": 0.3,
        "server_optimizer_beta1": 0.0,
    },
    "adam": {"server_optimizer": "adam", "server_optimizer_lr": 0.1},
    "yogi": {"server_optimizer": "yogi", "server_optimizer_lr": 0.1, "server_optimizer_tau": 0.05},
}
PLAIN_MOMENTUM: dict[str, Any] = {
    "server_optimizer": "avgm",
    "server_optimizer_lr": 1.0,
    "server_optimizer_beta1": 0.0,
}


def moments_in(strategy: FairStrategy) -> Any:
    return strategy.state_dict()["moments"]


# Reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedfv", "drfa", "scaffold", "fcfl"])
def test_momentum_of_zero_is_the_method_to_the_bit(name: str) -> None:
    expected, rounds = undisturbed(name)
    result, ours = run(make(name, ARGUMENTS[name][0], **OPTIONS, **PLAIN_MOMENTUM))
    assert bits(result.arrays) == bits(expected.arrays), name
    assert [bits(each.arrays) for each in ours] == [bits(each.arrays) for each in rounds], name
    assert [each.coefficients for each in ours] == [each.coefficients for each in rounds], name


# The formulas, by a second hand -------------------------------------------------------------------


class Reference:
    """The formulas of Hsu et al. and of Reddi et al., Algorithm 2, on whole vectors in float64."""

    def __init__(
        self, name: str, lr: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        self.name = name
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.tau = tau
        self.a: Any = 0.0
        self.v: Any = 0.0 if name == "avgm" else tau**2

    def step(self, w: FloatArray, delta: FloatArray) -> FloatArray:
        if self.name == "avgm":
            self.v = self.beta1 * self.v - delta
            return np.asarray(w - self.lr * self.v)
        self.a = self.beta1 * self.a + (1 - self.beta1) * delta
        self.v = {
            "adagrad": lambda: self.v + delta**2,
            "adam": lambda: self.beta2 * self.v + (1 - self.beta2) * delta**2,
            "yogi": lambda: self.v - (1 - self.beta2) * delta**2 * np.sign(self.v - delta**2),
        }[self.name]()
        return np.asarray(w + self.lr * self.a / (np.sqrt(self.v) + self.tau))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_squares_that_float16_cannot_hold_scale_its_steps(name: str) -> None:
    optimizer = ServerOptimizer(name, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-4)
    reference = Reference(name, lr=0.1, tau=1e-4)
    moments = None
    w = np.zeros(3, np.float16)
    down = np.array([1.3e-4, -2e-4, 4e-4])
    for _ in range(5):
        after, moments = optimizer.step(w, down, moments)
        np.testing.assert_allclose(after - w, reference.step(np.zeros(3), -down), rtol=2e-3)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("fedavg", "adagrad"),
        ("fedfv", "adam"),
        ("fedmgdaplus", "yogi"),
        ("afl", "avgm"),
    ],
)
def test_a_run_takes_the_steps_of_the_reference(name: str, optimizer: str) -> None:
    """The method's step comes from the coefficients that a round reports, and from the clients' own
    training."""
    _, rounds = run(make(name, ARGUMENTS[name][0], buffers=BUFFERS, **EACH[optimizer]), rounds=6)
    options = {
        key.removeprefix("server_optimizer_"): value for key, value in EACH[optimizer].items()
    }
    clients = quadratics(6)
    reference = Reference(options.pop("server_optimizer"), **options)
    before = initial_model()
    for finished in rounds:
        d = sum(
            c * (flat(before) - flat(clients[k].trained(before)))
            for k, c in finished.coefficients.items()
        )
        after = unpack(finished.arrays)
        np.testing.assert_allclose(
            flat(after), reference.step(flat(before), -np.asarray(d)), rtol=1e-5, atol=1e-6
        )
        before = after


@given(
    name=st.sampled_from(["avgm", *ADAPTIVE]),
    lr=st.floats(1e-3, 10.0),
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.0, 0.999),
    tau=st.sampled_from([1e-8, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    chunk=st.sampled_from([2, CHUNK_COLUMNS]),
)
def test_every_step_in_float64_is_the_formula(
    name: str,
    lr: float,
    beta1: float,
    beta2: float,
    tau: float,
    seed: int,
    scale: float,
    chunk: int,
) -> None:
    rng = np.random.default_rng(seed)
    optimizer = ServerOptimizer(name, lr, beta1, beta2, tau)
    reference = Reference(name, lr, beta1, beta2, tau)
    w = rng.normal(size=5)
    moments = None
    expected = w.copy()
    for _ in range(4):
        d = scale * rng.normal(size=5) * rng.integers(0, 2, 5)
        if not d.any():
            continue
        expected = reference.step(expected, -d)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
            w, moments = optimizer.step(w, d, moments)
        np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-9 * scale)


# What leaves it alone -----------------------------------------------------------------------------


def equal(one: Any, other: Any) -> bool:
    return all(
        (one[key] is None and other[key] is None) or one[key].tobytes() == other[key].tobytes()
        for key in ("first", "second")
    )


@pytest.mark.parametrize("options", EACH.values())
def test_a_round_without_a_step_leaves_model_and_moments(options: dict[str, str | float]) -> None:
    failing = {(f"site-{k}", 2): error for k in range(3)}
    courses = []
    for strategy, faults in (
        (FedAvg(buffers=BUFFERS, **options), failing),
        (Leap(factors={2: 0.0}, buffers=BUFFERS, **options), {}),
    ):
        kept = list[Any]()
        _, rounds = run(
            strategy,
            MemoryGrid(quadratics(3), faults=faults),
            rounds=3,
            evaluate_fn=lambda number, arrays, s=strategy, k=kept: k.append(moments_in(s)),
        )
        courses.append([flat(unpack(each.arrays)).tobytes() for each in rounds])
        assert set(rounds[1].coefficients.values()) <= {0.0}
        assert courses[-1][1] == courses[-1][0]
        assert equal(kept[2], kept[1])
        assert not equal(kept[3], kept[2])
    assert courses[0] == courses[1]


# Limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_a_healthy_adaptive_run_is_never_refused(optimizer: str) -> None:
    """From a model of zeros, updates of 1e-7 move each number by up to the step size: 10^5 times as
    far."""
    options = {
        "server_optimizer": optimizer,
        "server_optimizer_lr": 1.0,
        "server_optimizer_tau": 1e-9,
    }
    finished = rounds_of(FedAvg(**options), {name: always(1e-7) for name in "abc"}, 5)
    assert all(each.coefficients and not each.refused for each in finished)
    (w,) = unpack(finished[0].arrays).values()
    assert np.abs(w).max() > 0.01


@pytest.mark.parametrize("options", EACH.values())
def test_a_refused_step_leaves_the_moments(options: dict[str, str | float]) -> None:
    plans = {"a": always(1.0), "b": always(3.0)}
    without = Leap(factors={}, **options)
    leaping = Leap(factors={2: 1e5}, **options)
    one, two = rounds_of(leaping, plans, 2)
    assert two.coefficients == {}
    assert bits(two.arrays) == bits(one.arrays)
    rounds_of(without, plans, 1)
    assert equal(moments_in(leaping), moments_in(without))


def test_the_limit_compares_with_the_methods_longest_step() -> None:
    """The server's steps are 0.01 times the method's: its third step is 90 times its second, as the
    limit allows."""
    leaping = Leap(
        factors={3: 90.0},
        server_optimizer="avgm",
        server_optimizer_lr=0.01,
        server_optimizer_beta1=0.0,
    )
    assert all(
        each.coefficients for each in rounds_of(leaping, {"a": always(1.0), "b": always(1.0)}, 3)
    )
    assert leaping.run_state.norms.longest_step == pytest.approx(90.0)


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_a_step_whose_square_is_beyond_the_range_is_not_taken(
    said: pytest.LogCaptureFixture, optimizer: str
) -> None:
    """Its square is beyond float32: v would be infinite, and these numbers would never move
    again."""
    strategy = Leap(factors={2: 1e25}, update_limit=np.inf, **EACH[optimizer])
    one, two, three = rounds_of(strategy, {"a": always(1.0), "b": always(1.0)}, 3)
    assert two.coefficients == {}
    assert bits(two.arrays) == bits(one.arrays)
    assert three.coefficients
    assert np.isfinite(moments_in(strategy)["second"]).all()
    assert f"the server optimizer {optimizer} keeps" in said.text


# State --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "optimizer"), [*zip(("fedfv", "afl", "drfa", "ditto"), EACH, strict=True)]
)
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(name: str, optimizer: str) -> None:
    assert_resumes(
        lambda: make(name, ARGUMENTS[name][0], **OPTIONS, **EACH[optimizer]), 4, (1, 3, 4)
    )


@pytest.mark.parametrize(("other", "words"), [(EACH["yogi"], "'yogi'"), ({}, "'none'")])
def test_a_state_without_an_optimizer_continues_without_one(
    other: dict[str, str | float], words: str
) -> None:
    plain = FedAvg(buffers=BUFFERS, server_optimizer="none")
    adam = FedAvg(buffers=BUFFERS, **EACH["adam"])
    result, _ = run(plain, rounds=2)
    assert plain.server_optimizer is None
    assert moments_in(plain) is None
    run(FedAvg(buffers=BUFFERS), rounds=3, initial_arrays=result.arrays, resume=plain.state_dict())
    with pytest.raises(ValueError, match="server_optimizer = 'none', got 'adam'"):
        run(adam, rounds=3, initial_arrays=result.arrays, resume=plain.state_dict())
    result, _ = run(adam, rounds=2)
    with pytest.raises(ValueError, match=f"server_optimizer = 'adam', got {words}"):
        run(
            FedAvg(buffers=BUFFERS, **other),
            rounds=3,
            initial_arrays=result.arrays,
            resume=adam.state_dict(),
        )


@pytest.mark.parametrize("options", EACH.values())
def test_a_step_changes_nothing_that_it_is_given(options: dict[str, str | float]) -> None:
    """A checkpoint may be written later than the next round begins."""
    optimizer = FedAvg(**options).server_optimizer
    assert optimizer is not None
    w = np.ones(3)
    d = np.full(3, 0.5)
    _, moments = optimizer.step(w, d, None)
    assert isinstance(moments, Moments)
    before = [None if each is None else each.copy() for each in vars(moments).values()]
    optimizer.step(w, d, moments)
    for one, other in zip(before, vars(moments).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(w, 1.0)
    np.testing.assert_array_equal(d, 0.5)


# Options ------------------------------------------------------------------------------------------


# The first option is the one that is named.
IMPOSSIBLE: list[dict[str, Any]] = [
    {"server_optimizer": "adamw"},
    {"server_optimizer_lr": 0.0, "server_optimizer": "avgm"},
    *({"server_optimizer": each} for each in ADAPTIVE),  # which need a step size
    *({f"server_optimizer_{each}": 0.1} for each in ("lr", "beta1", "beta2", "tau")),
    *({f"server_optimizer_{each}": 0.5, "server_optimizer": "avgm"} for each in ("beta2", "tau")),
    {"server_optimizer_beta2": 0.5, **EACH["adagrad"]},
]


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_an_impossible_option_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        FedAvg(**options)
