"""Where a client computes."""

import pytest
import torch

from fairbloom.client.device import choose_device
from fairbloom.errors import FairbloomError


def test_a_named_device_is_taken() -> None:
    assert choose_device("cpu") == torch.device("cpu")


def test_auto_takes_the_best_device_there_is() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == best


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused_with_what_would_do(name: str) -> None:
    with pytest.raises(FairbloomError, match=rf"device = '{name}' is not available here: auto takes the best that is"):
        choose_device(name)
