"""Random streams of server and clients: functions of the seed, the purpose and the place, and of nothing else."""

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray


class _Hashed(ISeedSequence):
    """The words that a stream begins with: a hash of what it is for.

    NumPy's own seeding takes 20 times as long.
    """

    def __init__(self, what: str) -> None:
        self._what = what.encode()

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """Return so many words, of at most 64 bytes in all."""
        kind = np.dtype(dtype)
        words = hashlib.blake2b(self._what, digest_size=n_words * kind.itemsize).digest()
        return np.frombuffer(words, kind.newbyteorder("<")).astype(kind)


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return the stream for one purpose at one place (round, client, …), whatever was drawn before it."""
    seeded = np.random.PCG64(_Hashed(repr((seed, purpose, *where))))  # type: ignore[arg-type]
    return np.random.Generator(seeded)


def seed_of(seed: int, purpose: str, *where: int | str) -> int:
    """Return a seed below 2**63 for one purpose at one place, for what PyTorch draws itself."""
    hashed = hashlib.blake2b(repr((seed, purpose, *where)).encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "little") >> 1
