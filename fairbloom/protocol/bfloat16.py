"""Rounding to bfloat16 for messages. NumPy has no such type: the bits travel as uint16."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]

# The dtype of the bits.
BITS = np.dtype(np.uint16)
BITS_PER_NUMBER = 16

NAN = 0x7FC0

# Numbers that are rounded at once: they and their temporaries fit into the processor's cache.
CACHED_NUMBERS = 65536


def narrow(values: NDArray[Any]) -> Bits:
    """Return the bits of numbers rounded to the nearest bfloat16, ties to even."""
    with np.errstate(over="ignore"):
        flat = np.asarray(values, np.float32, order="C").ravel()
    bits = np.empty(flat.shape, BITS)
    for start in range(0, flat.size, CACHED_NUMBERS):
        part = flat[start : start + CACHED_NUMBERS]
        rounded = bits[start : start + CACHED_NUMBERS]
        whole = part.view(np.uint32)
        # Half a unit of the last bit that stays, and 1 more if that bit is set.
        rounded[...] = (whole + (0x7FFF + ((whole >> 16) & 1))) >> 16
        rounded[np.isnan(part)] = NAN
    return bits.reshape(values.shape)


def widen(bits: Bits) -> NDArray[np.float32]:
    """Return the numbers with these bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
