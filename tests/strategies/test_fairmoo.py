"""FairMOO: the constraint on the variance, by hand and by its conditions of optimality."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.protocol.parameters import SettingsError
from fairbloom.server.settings import Settings
from fairbloom.strategies import FairMOO, FedMGDA
from fairbloom.strategies.fairmoo import shortest_without_rise

from .helpers import step_of as step

# A tolerance that no variance exceeds.
ANY = 1e9


@pytest.mark.parametrize(("tolerance", "expected"), [(1.9, [-1.0, 1.0]), (2.0, [1.0, 1.0])])
def test_above_the_tolerance_the_variance_falls(tolerance: float, expected: list[float]) -> None:
    """F = (1, 3): V = 2 and v = −u_1 + u_2."""
    d = step(FairMOO(tolerance=tolerance), np.eye(2), losses=[1.0, 3.0])
    np.testing.assert_allclose(d, np.array(expected) / np.sqrt(2.0), rtol=1e-9)


def test_the_constraint_by_hand() -> None:
    """u = (1, 0) and (0, 2), F = (3, 1): v = (1, −2), and c_1 = 4 c_2."""
    d = step(FairMOO(tolerance=ANY, length=1.0), np.diag([1.0, 2.0]), losses=[3.0, 1.0])
    np.testing.assert_allclose(d, np.array([2.0, 1.0]) / np.sqrt(5.0), rtol=1e-6)
    np.testing.assert_allclose(
        step(FedMGDA(epsilon=1.0), np.diag([1.0, 2.0])), [0.8, 0.4], rtol=1e-6
    )


def test_updates_that_all_raise_the_variance_are_left() -> None:
    """u = (1, 0.1) and (2, −0.1), F = (1, 0): v = (−1, 0.2)."""
    d = step(
        FairMOO(tolerance=ANY, length=1.0), np.array([[1.0, 0.1], [2.0, -0.1]]), losses=[1.0, 0.0]
    )
    np.testing.assert_allclose(d, np.array([-1.0, 0.2]) / np.sqrt(1.04), rtol=1e-9)


def test_no_update_is_no_step() -> None:
    assert not step(FairMOO(), np.zeros((3, 4)), losses=[1.0, 2.0, 3.0]).any()


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 8))
def test_the_step_has_its_length(seed: int, m: int) -> None:
    random = np.random.default_rng(seed)
    U = random.normal(size=(m, 12))
    F = random.random(m)
    mean = np.linalg.norm(U, axis=1).mean()
    for length, expected in ((None, mean), (0.0, mean), (0.2, 0.2)):
        d = step(FairMOO(tolerance=ANY, length=length, server_lr=0.5), U, losses=F)
        np.testing.assert_allclose(np.linalg.norm(d), 0.5 * expected, rtol=1e-9)


@pytest.mark.parametrize("t", [1, 1500, 3000])
def test_the_authors_length_falls_by_a_thousandth(t: int) -> None:
    method = FairMOO(length=0.2, decay=0.0497, server_schedule="exponential")
    d = step(method, np.eye(2), losses=[1.0, 3.0], round=t, num_rounds=3000)
    np.testing.assert_allclose(np.linalg.norm(d), 0.2 * 0.999**t, rtol=1e-3)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 12))
def test_weights_meet_the_conditions_of_optimality(seed: int, m: int) -> None:
    """With multipliers ν of the constraint and μ_k of the bounds: Gc − νb − μ is constant."""
    random = np.random.default_rng(seed)
    U = random.normal(size=(m, 20)) * np.exp(random.normal(size=(m, 1)))
    F = random.random(m)
    G = U @ U.T
    slope = 2.0 / m * (F - F.mean())
    b = G @ slope
    c = shortest_without_rise(G, slope)
    if c is None:
        assert b.max() < 0.0
        return
    scale = c @ G @ c
    assert c.min() >= -1e-9
    assert abs(c.sum() - 1.0) < 1e-9
    assert c @ b >= -1e-9 * np.abs(b).max()
    used = c > 1e-6
    multiplier = 0.0
    if c @ b <= 1e-9 * np.abs(b).max() and used.sum() > 1:
        multiplier = float((G @ c - scale)[used] @ b[used] / (b[used] @ b[used]))
    gradient = G @ c - multiplier * b
    assert multiplier >= -1e-6
    np.testing.assert_allclose(gradient[used], scale, rtol=1e-5, atol=1e-6 * scale)
    assert (gradient >= scale * (1.0 - 1e-5)).all()


@pytest.mark.parametrize("m", [5, 7])
def test_equal_losses_are_mgda(m: int) -> None:
    """The mean of seven times 0.7 is not 0.7, by rounding."""
    U = np.random.default_rng(3).normal(size=(m, 30))
    d = step(FairMOO(), U, losses=[0.7] * m)
    shortest = step(FedMGDA(epsilon=1.0), U)
    np.testing.assert_allclose(d / np.linalg.norm(d), shortest / np.linalg.norm(shortest))


@given(seed=st.integers(0, 2**32 - 1))
def test_equal_updates_are_the_step(seed: int) -> None:
    """v is zero, up to rounding, whatever the losses are."""
    random = np.random.default_rng(seed)
    u = random.normal(size=8) * 10.0 ** random.integers(-3, 3)
    np.testing.assert_allclose(
        step(FairMOO(tolerance=ANY), np.array([u, u]), losses=random.random(2)), u, rtol=1e-6
    )


def test_a_negative_length_is_refused(subtests: pytest.Subtests) -> None:
    with subtests.test("python"), pytest.raises(ValueError, match="length"):
        FairMOO(length=-1.0)
    with subtests.test("settings"), pytest.raises(SettingsError, match=r"fairmoo\.length"):
        Settings.of({"method": "fairmoo", "fairmoo.length": -1.0})
