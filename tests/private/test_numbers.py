"""Fixed-point scalars, quantised vectors and masks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.private.keys import RoundKey
from fairbloom.private.masks import add_mask
from fairbloom.private.numbers import (
    FIELD_LIMB,
    WORD_LIMB,
    FixedPoint,
    bound_of,
    from_field,
    levels,
    quantise,
    restore,
    signed,
    to_field,
    to_words,
)


@given(st.floats(-1e12, 1e12), st.sampled_from([FIELD_LIMB, WORD_LIMB]))
@settings(max_examples=200, deadline=None)
def test_limbs_join_to_the_scalar(value: float, bits: int) -> None:
    fixed = FixedPoint(60, 60)
    limbs = fixed.split(value, bits)
    assert all(abs(limb) < 1 << bits for limb in limbs)
    assert fixed.value(fixed.join(limbs, bits)) == pytest.approx(value, rel=1e-15, abs=2.0**-59)


def test_limbs_survive_the_field_and_words_with_their_signs() -> None:
    limbs = [5, -7, (1 << 20) - 1, -(1 << 20) + 1]
    assert from_field(to_field(limbs)) == limbs
    assert signed(to_words(limbs)).tolist() == limbs


def test_a_scalar_beyond_its_bound_counts_as_the_bound() -> None:
    fixed = FixedPoint(4, 8)
    for value in (16.0, 1e300, math.inf):
        assert fixed.integer(value) == (1 << 12) - 1
        assert fixed.integer(-value) == 1 - (1 << 12)


@given(st.floats(1e-12, 1e12), st.integers(1, 10**7))
def test_the_bound_is_a_power_of_two_and_at_most_doubled(total: float, size: int) -> None:
    exact, bound = 0.5 * total * min(1.0, 64.0 / math.sqrt(size)), bound_of(0.5, total, size)
    assert exact <= bound <= 2.0 * exact
    assert math.frexp(bound)[0] == 0.5


def test_quantised_vectors_add_up_without_bias() -> None:
    random = np.random.default_rng(0)
    vectors = random.uniform(-1.0, 1.0, (10, 5000))
    words = sum((quantise(each, 1.0, 10, random) for each in vectors), np.zeros(5000, np.uint32))
    error = restore(words, 1.0, 10) - vectors.sum(axis=0)
    assert np.abs(error).max() < 10.0 / levels(10)
    assert abs(error.mean()) < 0.1 / levels(10)


def test_values_beyond_the_bound_are_clipped() -> None:
    words = quantise(np.array([5.0, -5.0]), 1.0, 10, np.random.default_rng(0))
    assert restore(words, 1.0, 10).tolist() == [1.0, -1.0]


def test_masks_of_a_pair_cancel_and_those_of_others_do_not() -> None:
    one, other = RoundKey.new(), RoundKey.new()
    words = np.arange(600_000, dtype=np.uint32)
    before = words.copy()
    add_mask(words, one.exchange(other.public), b"round", "mask")
    assert (words != before).mean() > 0.999
    told_otherwise = words.copy()
    add_mask(words, other.exchange(one.public), b"round", "mask", subtract=True)
    add_mask(told_otherwise, other.exchange(one.public), b"another round", "mask", subtract=True)
    assert (words == before).all()
    assert (told_otherwise != before).mean() > 0.999


def test_masked_words_are_uniform_and_say_nothing_of_updates() -> None:
    update = np.random.default_rng(1).normal(size=100_000)
    words = quantise(update, 4.0, 10, np.random.default_rng(2))
    add_mask(words, bytes(32), "a key that is always the same, so that this test is")
    for shift in (0, 8, 16, 24):
        counts = np.bincount((words >> np.uint32(shift)) & np.uint32(255), minlength=256)
        chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert chi_square < 330.5  # p > 1e-3 with 255 degrees of freedom
    assert abs(np.corrcoef(words.astype(np.float64), update)[0, 1]) < 4.0 / math.sqrt(update.size)
