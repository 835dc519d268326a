"""The discrete Gaussian and its tail, cell by cell; what is charged for; where its bits are from."""

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.special import log_ndtr
from torch import nn

from fairbloom.client.private import noise
from fairbloom.client.private.budget import Budget, Price
from fairbloom.client.private.mechanism import Mechanism
from fairbloom.client.private.noise import (
    MOST_ROWS,
    Lattice,
    bernoulli_exp,
    draw_gaussian,
    draw_noise,
    release,
    system_words,
)
from fairbloom.client.private.rows import Rows
from fairbloom.errors import ReportableError
from fairbloom.tasks import Examples

COUNT = 200_000


def seeded_words(seed: int = 0) -> noise.Words:
    random = np.random.default_rng(seed)
    return lambda count: random.integers(0, 2**64, count, np.uint64)


def law(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers up to 40 deviations, and their probabilities."""
    places = np.arange(-40 * scale, 40 * scale + 1)
    weights = np.exp(-(places.astype(float) ** 2) / (2.0 * scale**2))
    return places, weights / weights.sum()


def misfit(draws: np.ndarray, scale: int) -> float:
    """Return χ² of the cells that expect ten draws, in its standard deviations above its mean."""
    places, chances = law(scale)
    expected = chances * len(draws)
    cells = expected > 10.0
    counts = np.array([(draws == place).sum() for place in places[cells]])
    squares = float(((counts - expected[cells]) ** 2 / expected[cells]).sum())
    return (squares - cells.sum()) / math.sqrt(2.0 * cells.sum())


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_each_cell_has_its_probability(bits: int) -> None:
    draws = draw_gaussian(COUNT, bits, seeded_words(bits))
    assert draws.dtype == np.int64
    assert abs(misfit(draws, 2**bits)) < 5.0
    assert misfit(np.where(draws == 0, 1, draws), 2**bits) > 20.0
    assert misfit(draws + (draws > 2**bits), 2**bits) > 20.0


@pytest.mark.parametrize("bits", [1, 3])
def test_the_tail_has_no_holes(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """All integers up to 256 deviations are reached on both sides, each once, and none beyond."""
    scale = 2**bits
    of_word = np.arange(257 * scale * 2)
    sizes = of_word // 2

    def words(count: int) -> np.ndarray:
        if count == len(of_word) and not asked:
            asked.append(count)
            return ((sizes % scale).astype(np.uint64) << np.uint64(64 - bits)).astype(np.uint64)
        return (of_word[:count] % 2).astype(np.uint64)

    asked: list[int] = []
    wholes = iter([(sizes // scale).astype(np.uint64), np.full(len(of_word), 2**62, np.uint64)])
    monkeypatch.setattr(noise, "draw_geometric", lambda count, _: next(wholes)[:count])
    monkeypatch.setattr(noise, "bernoulli_exp", lambda n, *_: np.ones(len(n), bool))
    found = noise._draw_some(len(of_word), bits, words)
    most = 256 * scale - 1
    assert sorted(found) == [*range(-most, most + 1)]


@pytest.mark.parametrize("excess", [0, 1, 254 * 2**24, 2**24])
def test_acceptance_is_exact_to_the_last_integer(
    monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    """The exponent (|Y| − s)²/(2 s²) is split into a whole number and 49 bits, as Python's is."""
    asked = list[tuple[int, int]]()
    size = np.uint64(2**24 + excess)

    def bernoulli(numerators: np.ndarray, bits: int, _: object) -> np.ndarray:
        asked.append((int(numerators[0]), bits))
        return np.ones(len(numerators), bool)

    wholes = iter([np.array([size >> np.uint64(24)]), np.array([2**62], np.uint64)])
    monkeypatch.setattr(noise, "draw_geometric", lambda *_: next(wholes))
    monkeypatch.setattr(noise, "bernoulli_exp", bernoulli)
    rest = np.array([(size & np.uint64(2**24 - 1)) << np.uint64(40)])
    noise._draw_some(1, 24, lambda _: rest)
    assert asked[1] == (excess**2 % 2**49, 49)


@pytest.mark.parametrize(("numerator", "bits"), [(0, 3), (1, 1), (3, 2), (7, 3), (2**49, 49)])
def test_events_have_the_probability_of_the_exponential(numerator: int, bits: int) -> None:
    happened = bernoulli_exp(np.full(COUNT, numerator, np.uint64), bits, seeded_words())
    expected = math.exp(-numerator / 2**bits)
    assert happened.mean() == pytest.approx(expected, abs=4.0 / math.sqrt(COUNT))


@pytest.mark.parametrize("number", [3, 5, 2**62 + 1])
def test_words_that_favour_a_remainder_are_drawn_again(number: int) -> None:
    most = 2**63 // number * number
    drawn = iter([[2 * most, 2 * most - 2], [0]])

    def words(count: int) -> np.ndarray:
        return np.array(next(drawn)[:count], np.uint64)

    assert noise._one_in(number, 2, words).tolist() == [True, False]


def delta_of(shift: int, scale: int, epsilon: float) -> float:
    """Return the exact δ of the discrete Gaussian that is moved by a shift."""
    places, chances = law(scale)
    ratio = (-2.0 * places * shift + shift**2) / (2.0 * scale**2)
    return float((chances * np.maximum(0.0, -np.expm1(epsilon - ratio))).sum())


@pytest.mark.parametrize("scale", [8, 64, 256])
@pytest.mark.parametrize("share", [0.1, 0.719, 1.5])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_delta_is_below_that_of_the_smaller_normal(
    scale: int, share: float, epsilon: float
) -> None:
    """The lemma: at most δ of a normal distribution with variance s² − 4."""
    shift = max(1, round(share * scale))
    mu = shift / math.sqrt(scale**2 - 4.0)
    normal = math.exp(log_ndtr(mu / 2.0 - epsilon / mu)) - math.exp(
        epsilon + log_ndtr(-mu / 2.0 - epsilon / mu)
    )
    assert delta_of(shift, scale, epsilon) <= normal * (1.0 + 1e-9)


def test_delta_of_a_known_shift() -> None:
    assert delta_of(184, 256, 3.0) == pytest.approx(9.898180484e-6, rel=1e-9)


@given(st.floats(0.01, 100.0), st.floats(0.1, 10.0), st.integers(1, 10**6))
def test_the_deviation_pays_for_rounding_and_arithmetic(
    sigma: float, sensitivity: float, size: int
) -> None:
    lattice = Lattice(sigma, sensitivity, size)
    paid = sensitivity * (1.0 + 2.0**-16) + lattice.spacing * math.sqrt(size)
    assert lattice.deviation == pytest.approx(sigma * paid, rel=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_releases_lie_on_the_lattice(numbers: list[float]) -> None:
    lattice = Lattice(3.0, 1.0, len(numbers))
    released = release(lattice.places(np.array(numbers)), lattice.spacing, draw_noise)
    assert (lattice.spacing * np.rint(released / lattice.spacing) == released).all()


@pytest.mark.parametrize(
    ("lattice", "rows"),
    [
        (Lattice(100.0, 1.0, 2 * 10**9), 10),
        (Lattice(1.0, 1.0, 10), MOST_ROWS + 1),
        (Lattice(1e-9, 1.0, 10), 1000),
    ],
    ids=["numbers", "rows", "places"],
)
def test_what_is_not_exact_is_refused(lattice: Lattice, rows: int) -> None:
    with pytest.raises(ReportableError, match="exact arithmetic"):
        lattice.check(rows)
    Lattice(100.0, 1.0, 10**9).check(MOST_ROWS)


def test_forks_draw_other_noise(tmp_path: Path) -> None:
    """Neither a seed nor a copied process repeats it."""
    np.random.default_rng(0)
    path = tmp_path / "child"
    child = os.fork()
    if child == 0:
        path.write_bytes(draw_noise(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_bytes() != draw_noise(4).tobytes()


def test_noise_is_of_the_operating_systems_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise.os, "urandom", lambda size: 1 / (size - size))
    with pytest.raises(ZeroDivisionError):
        draw_noise(3)


@pytest.mark.parametrize("count", [1, 4096, 4097])
def test_whole_blocks_are_drawn(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The time of a draw depends on the block, not on the number that is used."""
    tries = list[int]()
    draw = noise._draw_some

    def counted(number: int, bits: int, words: noise.Words) -> np.ndarray:
        tries.append(number)
        return draw(number, bits, words)

    monkeypatch.setattr(noise, "_draw_some", counted)
    assert len(draw_gaussian(count, 4, system_words)) == count
    assert tries[0] >= 2 * 4096 * math.ceil(count / 4096)


@pytest.mark.parametrize("count", [10, 37])
@pytest.mark.parametrize("price", [Price(), Price(36, 9)], ids=["lowest", "higher"])
def test_a_mechanism_adds_what_is_charged_over_n_rows(count: int, price: Price) -> None:
    """Half of the noise, a doubled clip or another number of rows is beyond these intervals."""
    model = nn.Sequential(nn.Linear(50, 800), nn.ReLU(), nn.Linear(800, 10))
    random = torch.Generator().manual_seed(count)
    targets = torch.randint(0, 10, (count,), generator=random)
    rows = Rows(model, Examples(torch.randn(count, 50, generator=random), targets), 10)
    budget = Budget(3.0, 1e-5)
    pool = iter(draw_noise(60_000).tolist())

    def draw(count: int) -> np.ndarray:
        return np.array([*itertools.islice(pool, count)])

    mechanism = Mechanism(budget, draw, price)
    unit = budget.mu**2 / budget.units
    drawn = mechanism.mean_gradient(rows) - (rows.clipped_sum() / count)
    assert float(drawn.std()) == pytest.approx(1.0 / math.sqrt(price.step * unit) / count, rel=0.02)
    exact = float(rows.losses().mean())
    losses = [mechanism.mean_loss(rows) for _ in range(600)]
    deviation = rows.bound / math.sqrt(price.loss * unit) / count
    assert np.std(losses) == pytest.approx(deviation, rel=0.15)
    assert np.mean(losses) == pytest.approx(exact, abs=5.0 * deviation / math.sqrt(600))
    high = Mechanism(budget, lambda count: np.full(count, 2**28), price).mean_loss(rows)
    assert high == pytest.approx(exact + 16.0 * deviation, rel=1e-3)
    reports = [mechanism.test(rows) for _ in range(600)]
    of_mean = math.hypot(1.0, 0.2) / (budget.mu * count)
    assert np.std([each["accuracy"] for each in reports]) == pytest.approx(of_mean, rel=0.15)
    of_loss = of_mean * rows.bound / 0.3
    assert np.std([each["loss"] for each in reports]) == pytest.approx(of_loss, rel=0.15)
