"""Every method: finite in extremes, the same to the bit again, and blind to names."""

from dataclasses import replace

import numpy as np
import pytest

from fairbloom.client.generators import all_seeded
from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import METHODS, FairStrategy

from .helpers import ARGUMENTS, make
from .replies import (
    TAKING_PART,
    extreme_replies,
    iterate_rounds,
    ordinary_replies,
    report_in_pairs,
    weigh,
)


def fresh(name: str) -> FairStrategy:
    return make(name, ARGUMENTS[name][0])


def is_same(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two arrays are the same: some methods solve a program for them."""
    return bool(np.abs(one - other).max() <= 1e-3 * max(np.abs(one).max(), np.abs(other).max()))


@pytest.mark.parametrize("name", METHODS)
def test_coefficients_and_steps_are_finite(name: str) -> None:
    """One number for each row, with any number of clients, in extremes and with kept rows."""
    for replies in [*map(ordinary_replies, (1, 2, 3, 10, 50)), *extreme_replies()]:
        coefficients, step = weigh(fresh(name), replies)
        assert np.isfinite(coefficients).all(), replies.description
        assert np.isfinite(step).all(), replies.description
    assert len([*iterate_rounds(fresh(name), len(TAKING_PART))]) == len(TAKING_PART)


@pytest.mark.parametrize("name", METHODS)
def test_equal_replies_get_equal_coefficients(name: str) -> None:
    """To the bit, whatever else the process has drawn."""
    found = []
    for seed in (1, 2):
        with all_seeded(seed):
            found.append(weigh(fresh(name), ordinary_replies(5, seed=4))[0].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", METHODS)
def test_a_coefficient_goes_with_the_reply(name: str) -> None:
    """Whatever the client is called, and so in any order; ties by pairs, too."""
    several = [
        ordinary_replies(m, seed=1, common=common)
        for m, common in ((3, 1.0), (5, 0.0), (8, 0.3), (50, 1.0))
    ]
    for replies in [*several, *map(report_in_pairs, several)]:
        # neighbours change places: a sort that is stable would keep the order of ties
        order = np.roll(np.arange(len(replies.names))[::-1], 2)
        renamed = replace(replies.select(order), names=replies.names)
        given, step = weigh(fresh(name), replies)
        after, step_after = weigh(fresh(name), renamed)
        lengths = np.linalg.norm(renamed.updates, axis=1) + np.linalg.norm(renamed.seconds, axis=1)
        moved = np.abs(after - given[:, order]).max(axis=0) @ lengths
        same_step = np.linalg.norm(step_after - step) <= 0.01 * moved
        assert is_same(after, given[:, order]) or same_step, replies.description
