"""Shamir's secret sharing over the prime field of 2^61 − 1, for many secrets at once."""

import secrets
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PRIME = (1 << 61) - 1

Words = NDArray[np.uint64]
"""Numbers of the field, each below PRIME."""

_P, _61 = np.uint64(PRIME), np.uint64(61)

BITS, TERMS, COLUMNS = 21, 2048, 4096
"""Matrices are multiplied by limbs of 21 bits: floats hold sums of 2,048 products of two limbs without rounding.
Columns are taken in blocks that fit the processor's cache."""


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
    return add(reduce(low), _shift(reduce(high), 32))


def multiply(a: Words, b: Words) -> Words:
    """Return the product of two matrices of the field."""
    product = np.zeros((len(a), b.shape[1]), np.uint64)
    for start in range(0, a.shape[1], TERMS):
        rows = _limbs(a[:, start : start + TERMS])
        for column in range(0, b.shape[1], COLUMNS):
            columns = _limbs(b[start : start + TERMS, column : column + COLUMNS])
            part = np.zeros((len(a), columns.shape[2]), np.uint64)
            for place in range(4, -1, -1):  # the limbs' places add up to it
                pairs = [(i, place - i) for i in range(3) if 0 <= place - i < 3]
                sums = np.sum([(rows[i] @ columns[j]).astype(np.uint64) for i, j in pairs], axis=0)
                part = add(_shift(part, BITS), reduce(sums))
            block = product[:, column : column + COLUMNS]
            block[...] = add(block, part)
    return product


def _limbs(values: Words) -> NDArray[np.float64]:
    """Return the three limbs of numbers, the lowest first."""
    mask = np.uint64((1 << BITS) - 1)
    return np.array([values >> np.uint64(BITS * place) & mask for place in range(3)], np.float64)


def _shift(values: Words, bits: int) -> Words:
    """Return values times 2^bits: 2^61 is 1 in the field."""
    return reduce((values << np.uint64(bits) & _P) + (values >> np.uint64(61 - bits)))


def random_words(shape: tuple[int, ...]) -> Words:
    """Return uniform numbers of the field from the operating system."""
    size = int(np.prod(shape))
    drawn = np.frombuffer(secrets.token_bytes(8 * size), np.uint64) & _P
    while (beyond := drawn == _P).any():
        drawn = np.where(beyond, np.frombuffer(secrets.token_bytes(8 * size), np.uint64) & _P, drawn)
    return drawn.reshape(shape)


def share(values: Words, holders: int, threshold: int) -> Words:
    """Return the shares of secrets, one row for each holder 1, 2, …: any `threshold` rows determine the secrets."""
    coefficients = np.concatenate([values[None, :], random_words((threshold - 1, values.size))])
    return multiply(_powers(holders, threshold), coefficients)


def combine(places: Sequence[int], shares: Words) -> Words:
    """Return the secrets from shares of the holders at these places."""
    (opened,) = multiply(np.array([_factors(tuple(places), 0)], np.uint64), shares)
    return np.asarray(opened)


def agree(places: Sequence[int], shares: Words, threshold: int) -> bool:
    """Return whether all shares lie on one polynomial of degree `threshold` − 1."""
    first, others = tuple(places[:threshold]), places[threshold:]
    factors = np.array([_factors(first, place) for place in others], np.uint64).reshape(len(others), threshold)
    return bool((multiply(factors, shares[:threshold]) == shares[threshold:]).all())


@lru_cache(maxsize=64)
def _powers(holders: int, count: int) -> Words:
    """Return the powers 0, 1, … of the holders' places, one row for each."""
    rows = [[pow(place, power, PRIME) for power in range(count)] for place in range(1, holders + 1)]
    return np.array(rows, np.uint64)


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
