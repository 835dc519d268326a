"""The moments of the noise that is charged, where it comes from, and the lattice it lies on."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fairbloom.client.private import noise
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.mechanism import Mechanism
from fairbloom.client.private.noise import draw_noise, lattice, normal_of, release
from fairbloom.client.private.rows import CLIP, Rows
from fairbloom.tasks import Examples

COUNT = 200_000


def test_draws_are_standard_normal() -> None:
    draws = draw_noise(COUNT)
    assert abs(draws.mean()) < 5.0 / math.sqrt(COUNT)
    assert draws.var() == pytest.approx(1.0, abs=5.0 * math.sqrt(2.0 / COUNT))
    assert (draws**4).mean() == pytest.approx(3.0, abs=0.1)
    assert (np.abs(draws) > 1.959964).mean() == pytest.approx(0.05, abs=0.004)


def test_the_ends_of_the_bits_are_finite_and_symmetric() -> None:
    draws = normal_of(np.array([0, 1, 2**64 - 1, 2**64 - 2, 2**63], np.uint64))
    assert np.isfinite(draws).all()
    assert draws[0] == -draws[1]
    assert abs(draws[0]) > 8.0


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_released_variance_is_what_is_charged(epsilon: float) -> None:
    """Within 1 %: half of the noise, or that of another clip, is far off."""
    sigma = Budget(epsilon, 1e-5).sigma
    released = release(np.zeros(COUNT), sigma, 1.0, draw_noise)
    charged = (sigma * (1.0 + lattice(sigma) * math.sqrt(COUNT))) ** 2
    assert released.var() == pytest.approx(charged, rel=0.016)


def test_the_rounding_of_both_parts_is_paid_for() -> None:
    """With many numbers the lattice's part of the sensitivity is in the noise."""
    seen = list[float]()

    def ones(count: int) -> np.ndarray:
        seen.append(count)
        return np.ones(count)

    sigma = 2.0
    spacing = lattice(sigma)
    released = release(np.zeros(10_000), sigma, 1.0, ones)
    assert seen == [10_000]
    np.testing.assert_allclose(released, sigma * (1.0 + spacing * 100.0), atol=spacing)


@given(st.floats(1e-6, 1e6))
def test_spacing_is_a_power_of_two_up_to_the_deviation(deviation: float) -> None:
    spacing = lattice(deviation)
    assert math.frexp(spacing)[0] == 0.5
    assert spacing <= deviation * 2.0**-20 < 2.0 * spacing


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_releases_lie_on_the_lattice(numbers: list[float]) -> None:
    places = release(np.array(numbers), 3.0, 1.0, draw_noise) / lattice(3.0)
    assert (places == np.rint(places)).all()


def test_a_sum_and_its_noise_are_rounded_apart() -> None:
    part = 0.4 * lattice(1.0)
    assert release(np.array([part]), 1.0, 1.0, lambda _: np.array([part])) == 0.0


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


def test_no_generator_of_a_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(noise.os, "urandom", urandom)
    assert (draw_noise(3) == draw_noise(3)).all()
    assert asked == [24, 24]


@pytest.mark.parametrize("count", [10, 37])
def test_a_mechanism_adds_what_is_charged_over_n_rows(count: int) -> None:
    """Half of the noise, a doubled clip or another number of rows is beyond these intervals."""
    model = nn.Sequential(nn.Linear(50, 800), nn.ReLU(), nn.Linear(800, 10))
    random = torch.Generator().manual_seed(count)
    targets = torch.randint(0, 10, (count,), generator=random)
    rows = Rows(model, Examples(torch.randn(count, 50, generator=random), targets), 10)
    budget = Budget(3.0, 1e-5)
    mechanism = Mechanism(budget, draw_noise)
    noise = mechanism.mean_gradient(rows) - (rows.clipped_sum() / count)
    assert float(noise.std()) == pytest.approx(budget.sigma * CLIP / count, rel=0.02)
    losses = [mechanism.mean_loss(rows) for _ in range(2000)]
    assert min(losses) >= 0.0
    assert max(losses) <= rows.bound
    wide = Mechanism(Budget(100.0, 1e-5), draw_noise)
    losses = [wide.mean_loss(rows) for _ in range(2000)]
    charged = wide.budget.loss_sigma * rows.bound / count
    assert np.std(losses) == pytest.approx(charged, rel=0.1)
    reports = [wide.test(rows)["loss"] for _ in range(2000)]
    charged = wide.budget.test_sigma * math.sqrt(2.0) * rows.bound / count
    assert np.std(reports) == pytest.approx(charged, rel=0.1)
