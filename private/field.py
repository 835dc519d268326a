"""Shamir's secret sharing over the prime field of 2^61 − 1, for many secrets at once."""

import secrets
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PRIME = (1 << 61) - 1

Words = NDArray[np.uint64]
"""Numbers of the field, each below PRIME."""

_P, _LOW31, _LOW30 = np.uint64(PRIME), np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
_1, _30, _31, _61 = (np.uint64(each) for each in (1, 30, 31, 61))


def reduce(values: Words) -> Words:
    """Return values below 2^64 modulo PRIME."""
    folded = (values & _P) + (values >> _61)
    return np.where(folded >= _P, folded - _P, folded)


def add(a: Words, b: Words) -> Words:
    """Return a + b in the field."""
    return reduce(a + b)


def total(rows: Words) -> Words:
    """Return the sum of rows in the field, by halves of 32 bits, which do not overflow."""
    low, high = (rows & np.uint64((1 << 32) - 1)).sum(axis=0), (rows >> np.uint64(32)).sum(axis=0)
    return add(reduce(low), multiply(high, np.full_like(high, 1 << 32)))


def multiply(a: Words, b: Words) -> Words:
    """Return a · b in the field, by halves of 31 bits; no intermediate result exceeds 2^63."""
    high_a, low_a, high_b, low_b = a >> _31, a & _LOW31, b >> _31, b & _LOW31
    middle = high_a * low_b + low_a * high_b
    # 2^62 is 2 in the field, and 2^61 is 1.
    folded = ((high_a * high_b) << _1) + (middle >> _30) + ((middle & _LOW30) << _31)
    return reduce(reduce(folded) + reduce(low_a * low_b))


def random_words(shape: tuple[int, ...]) -> Words:
    """Return uniform numbers of the field from the operating system."""
    size = int(np.prod(shape))
    drawn = np.frombuffer(secrets.token_bytes(8 * size), np.uint64) & _P
    while (beyond := drawn == _P).any():
        drawn = np.where(beyond, np.frombuffer(secrets.token_bytes(8 * size), np.uint64) & _P, drawn)
    return drawn.reshape(shape)


def share(values: Words, holders: int, threshold: int) -> Words:
    """Return the shares of secrets, one row for each holder 1, 2, …: any `threshold` rows determine the secrets."""
    coefficients = random_words((threshold - 1, values.size))
    places = np.arange(1, holders + 1, dtype=np.uint64)[:, None]
    shares = np.zeros((holders, values.size), np.uint64)
    for row in coefficients[::-1]:
        shares = multiply(add(shares, row[None, :]), places)
    return add(shares, values[None, :])


def combine(places: Sequence[int], shares: Words, at: int = 0) -> Words:
    """Return the secrets, or with `at` their shares of that holder, from shares of the holders at these places."""
    factors = np.array(_factors(tuple(places), at), np.uint64)[:, None]
    return total(multiply(factors, shares))


def agree(places: Sequence[int], shares: Words, threshold: int) -> bool:
    """Return whether all shares lie on one polynomial of degree `threshold` − 1."""
    first = places[:threshold]
    rows = zip(places[threshold:], shares[threshold:], strict=True)
    return all((combine(first, shares[:threshold], place) == row).all() for place, row in rows)


@lru_cache(maxsize=4096)
def _factors(places: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return Lagrange's factors of shares at these places for the polynomial's value `at` another."""
    factors = []
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above, below = above * (at - other) % PRIME, below * (one - other) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
