"""What quantising and masking a vector costs a client of a private round: the median of twenty calls.

python -m benchmarks.private [numbers] [neighbours]
"""

import statistics
import sys
import time

import numpy as np

from fairbloom.private.keys import RoundKey
from fairbloom.private.masks import add_mask
from fairbloom.private.numbers import quantise

CALLS = 20


def measure(size: int, neighbours: int) -> float:
    """Return the milliseconds of a core that one client takes for its masked vector."""
    update = np.random.default_rng(0).normal(size=size)
    mine, others = RoundKey.new(), [RoundKey.new().public for _ in range(neighbours)]
    random, times = np.random.Generator(np.random.SFC64(0)), list[float]()
    for _ in range(CALLS):
        began = time.process_time()
        words = quantise(update, 8.0, neighbours + 1, random)
        add_mask(words, bytes(32), b"round", "self")
        for other in others:
            add_mask(words, mine.exchange(other), b"round", "mask")
        times.append(time.process_time() - began)
    return 1000.0 * statistics.median(times)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]] + [1_000_000, 9][len(sys.argv) - 1 :]
    print(f"{given[0]} numbers, {given[1]} neighbours: {measure(*given):.1f} ms")
