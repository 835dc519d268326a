"""Masks and sketches of vectors, which follow from secrets; operators' commands load the keys without NumPy."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from .keys import derive
from .numbers import Masked

CHUNK = 1 << 18
"""Words that are masked at once, so that they stay in the processor's cache."""


def add_mask(words: Masked, secret: bytes, *info: bytes | str, subtract: bool = False) -> None:
    """Add to words, or subtract, the mask that follows from a secret: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(derive(secret, *info)), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(4 * min(CHUNK, words.size))
    for start in range(0, words.size, CHUNK):
        part = words[start : start + CHUNK]
        mask = np.frombuffer(stream.update(zeros[: 4 * part.size]), np.uint32)
        (np.subtract if subtract else np.add)(part, mask, out=part)


def sketch(values: NDArray[np.float64], size: int, seed: bytes) -> NDArray[np.float64]:
    """Return a count sketch: each value is added to one of `size` numbers, with a sign; both follow from the seed.

    Source: Charikar et al., Finding Frequent Items in Data Streams, ICALP 2002.
    """
    words = np.zeros(values.size, np.uint32)
    add_mask(words, seed, "sketch")
    signed = np.where(words & np.uint32(1), values, -values)
    return np.bincount((words >> np.uint32(1)) % np.uint32(size), signed, size).astype(np.float64, copy=False)
