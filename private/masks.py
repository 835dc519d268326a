"""Masks of vectors, which follow from secrets; apart from the keys, which operators' commands load without NumPy."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

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
