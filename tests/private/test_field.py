"""Shamir's secret sharing: closed forms and properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.private.field import PRIME, add, agree, combine, multiply, random_words, share

NUMBER = st.integers(0, PRIME - 1)


def word(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


@given(NUMBER, NUMBER)
@settings(max_examples=300, deadline=None)
def test_products_and_sums_are_those_of_whole_numbers(a: int, b: int) -> None:
    assert int(multiply(word(a)[None], word(b)[None])[0, 0]) == a * b % PRIME
    assert int(add(word(a), word(b))[0]) == (a + b) % PRIME


@pytest.mark.parametrize("a", [0, 1, PRIME - 1, 1 << 31, (1 << 31) - 1, 1 << 60])
@pytest.mark.parametrize("terms", [1, 2047, 2048, 2049, 5000])
def test_products_at_the_edges(a: int, terms: int) -> None:
    row, column = np.full((1, terms), a, np.uint64), np.full((terms, 1), PRIME - 1, np.uint64)
    assert int(multiply(row, column)[0, 0]) == a * (PRIME - 1) * terms % PRIME


def test_products_of_matrices_are_those_of_whole_numbers() -> None:
    a, b = random_words((3, 2100)), random_words((2100, 4099))
    product = multiply(a, b)
    for row, column in ((0, 0), (2, 4095), (1, 4096), (2, 4098)):
        exact = sum(int(x) * int(y) for x, y in zip(a[row], b[:, column], strict=True)) % PRIME
        assert int(product[row, column]) == exact


@given(st.lists(NUMBER, min_size=1, max_size=4), st.integers(2, 9), st.data())
@settings(max_examples=50, deadline=None)
def test_any_threshold_of_shares_opens_the_secrets(secrets: list[int], holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    shares = share(np.array(secrets, np.uint64), holders, threshold)
    chosen = data.draw(st.permutations(range(1, holders + 1)))[:threshold]
    opened = combine(chosen, shares[[place - 1 for place in chosen]])
    assert opened.tolist() == secrets


def test_sums_of_shares_are_shares_of_sums() -> None:
    first, second = (np.array([value], np.uint64) for value in (PRIME - 3, 10))
    shares = add(share(first, 5, 4), share(second, 5, 4))
    assert combine([1, 2, 4, 5], shares[[0, 1, 3, 4]]).tolist() == [7]


def test_one_share_less_says_nothing() -> None:
    shares = np.array([share(word(5), 5, 4)[0, 0] for _ in range(200)], np.float64)
    assert 0.4 < shares.mean() / PRIME < 0.6  # of one secret, a holder's shares are uniform


def test_surplus_shares_must_lie_on_the_polynomial() -> None:
    shares = share(random_words((3,)), 6, 4)
    places = [1, 2, 3, 4, 5, 6]
    assert agree(places, shares, 4)
    shares[5, 1] ^= np.uint64(1)
    assert not agree(places, shares, 4)
