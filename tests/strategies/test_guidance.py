import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies.guidance import Guidance, guidance


def guided(losses: list[float] | FloatArray) -> Guidance:
    found = guidance(np.asarray(losses, np.float64))
    assert found is not None
    return found


@st.composite
def unequal_losses(draw: st.DrawFn) -> FloatArray:
    """Losses of two to eight clients, well apart, some of them zero."""
    m = draw(st.integers(2, 8))
    losses = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).uniform(0.0, 5.0, size=m)
    losses[: draw(st.integers(0, m - 1))] = 0.0
    assume(np.ptp(losses) > 1e-3)
    return losses


def test_two_losses_by_hand() -> None:
    # F = (1, 3)/√10, cos = 4/√20; cos F − p = (0.4, 1.2)/√2 − (1, 1)/√2 = (−0.6, 0.2)/√2, along
    # (−3, 1)
    found = guided([1.0, 3.0])
    np.testing.assert_allclose(found.direction, np.array([-3.0, 1.0]) / np.sqrt(10.0), rtol=1e-12)
    assert np.cos(np.deg2rad(found.angle)) == pytest.approx(4.0 / np.sqrt(20.0))
    assert found.angle == pytest.approx(np.degrees(np.arctan(0.5)))


def test_a_negative_loss_is_used_as_it_is_by_hand() -> None:
    # F = (−1, 3)/√10, cos = 2/√20; cos F − p = (−0.2, 0.6)/√2 − (1, 1)/√2 = (−1.2, −0.4)/√2
    np.testing.assert_allclose(
        guided([-1.0, 3.0]).direction, np.array([-3.0, -1.0]) / np.sqrt(10.0), rtol=1e-12
    )


@given(F=unequal_losses())
def test_a_step_along_it_turns_the_losses_towards_equal_ones(F: FloatArray) -> None:
    """The losses fall by what h says: the cosine rises, the fastest of all directions."""
    found = guided(F)
    step = 1e-4 * np.linalg.norm(F)

    def cosine(losses: FloatArray) -> float:
        return float(losses.sum() / np.sqrt(len(losses)) / np.linalg.norm(losses))

    after = cosine(F - step * found.direction)
    assert after > cosine(F)
    for seed in range(4):
        other = np.random.default_rng(seed).normal(size=len(F))
        assert cosine(F - step * other / np.linalg.norm(other)) <= after + 1e-7


@given(F=unequal_losses(), factor=st.sampled_from((1e-200, 1e-3, 7.0, 1e200)))
def test_the_unit_of_the_losses_changes_nothing(F: FloatArray, factor: float) -> None:
    here = guided(F)
    there = guided(factor * F)
    np.testing.assert_allclose(there.direction, here.direction, atol=1e-9)
    assert there.angle == pytest.approx(here.angle, abs=1e-6)


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [0.0],
        [3.0],
        [0.0, 0.0],
        [2.5, 2.5, 2.5],
        [1.0, 1.0 + 1e-6],
        [1e300, 1e300],
        [1e-310, 1e-310],
    ],
)
def test_only_equal_losses_give_no_guidance(losses: list[float]) -> None:
    assert guidance(np.array(losses)) is None
    assert guided([1.0, 1.0 + 1e-5]).angle < 0.001
