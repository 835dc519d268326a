"""Numbers are rounded to bfloat16 as PyTorch rounds them."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fairbloom.protocol.bfloat16 import CACHED_NUMBERS, narrow, widen

RANDOM = np.random.default_rng(0)
CASES = {
    "any bits": RANDOM.integers(0, 2**32, 3 * CACHED_NUMBERS + 7, np.uint32).view(np.float32),
    "ties": (np.arange(2**16, dtype=np.uint32) << 16 | 0x8000).view(np.float32),
    "next to ties": (np.arange(2**17, dtype=np.uint32) << 15 | 1).view(np.float32),
    "subnormals": np.arange(1 << 16, dtype=np.uint32).view(np.float32),
    "the largest, infinite, none": np.float32([3.4028235e38, np.inf, -np.inf, np.nan, -0.0, 0.0]),
    "float64": RANDOM.normal(size=(7, 5)) * 10.0 ** RANDOM.integers(-60, 60, (7, 5)),
    "columns first": np.asfortranarray(RANDOM.normal(size=(4, 3)).astype(np.float32)),
    "one number": np.array(1 / 3, np.float32),
    "nothing": np.empty((0, 3), np.float32),
}


def rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers rounded to bfloat16, in their own dtype."""
    return widen(narrow(values)).astype(values.dtype)


@pytest.mark.parametrize("case", CASES)
def test_rounding_is_that_of_pytorch(case: str) -> None:
    values: NDArray[np.float32] = CASES[case]
    with np.errstate(over="ignore"):
        ours = narrow(values)
    due = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape)).to(torch.bfloat16)
    is_number = ~np.isnan(values)
    assert np.array_equal(ours[is_number], due.view(torch.uint16).numpy()[is_number])
    assert np.array_equal(np.isnan(widen(ours)), ~is_number)
    assert np.array_equal(narrow(widen(ours)), ours)
    assert rounded(values).dtype == values.dtype
