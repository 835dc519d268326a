"""Why sums without noise are not offered: with its settings, a server reads one client out of them.

Each client computes what it is asked for, correctly, and the server sees only sums of updates.
"""

from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

DIGITS = {"task": "digits", "clients": 5, "partition": "dirichlet", "device": "cpu"}


class Federation:
    """Five clients of digits; `sizes` are their training rows, in their order."""

    def __init__(self) -> None:
        self.asked = {**DIGITS, "batch-size": 0, "learning-rate": 1e-3}
        self.sizes = [len(self.client(place).splits.train) for place in range(5)]

    def client(self, place: int, **settings: Any) -> LocalClient:
        return LocalClient.of(Settings.of({**self.asked, **settings}), place)

    def updates(self, **settings: Any) -> np.ndarray:
        """Return each client's update of one model, shape (5, d); a server gets their sum."""
        found = list[np.ndarray]()
        for place in range(len(self.sizes)):
            client = self.client(place, **settings)
            torch.manual_seed(1)
            received = {
                name: torch.randn(of.shape) for name, of in client.model.state_dict().items()
            }
            arrays = train_client(client, received, Terms(server_round=1)).arrays
            moved = [(of - arrays[name]).double().ravel() for name, of in received.items()]
            found.append(torch.cat(moved).numpy())
        return np.array(found)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_two_batch_sizes_show_the_largest_client(federation: Federation) -> None:
    """With all rows in a batch, and with those of the second largest: one takes two steps."""
    largest = int(np.argmax(federation.sizes))
    second = sorted(federation.sizes)[-2]
    assert second < max(federation.sizes)
    whole = federation.updates()
    split = federation.updates(**{"batch-size": second})
    shown = split.sum(axis=0) - whole.sum(axis=0)
    own = split[largest] - whole[largest]
    assert cosine(shown, own) > 0.9999
    assert cosine(shown, whole[largest]) > cosine(whole.sum(axis=0), whole[largest])


def test_two_clips_show_the_longest_gradient(federation: Federation) -> None:
    """Between the longest gradient and the next, a clip shortens one client's step."""
    exact = federation.updates()
    lengths = np.linalg.norm(exact, axis=1)
    longest = int(lengths.argmax())
    between = float(np.sort(lengths)[-2:].mean()) / 1e-3
    clipped = federation.updates(**{"gradient-clip": between})
    shown = exact.sum(axis=0) - clipped.sum(axis=0)
    assert cosine(shown, exact[longest]) > 0.9999
    assert cosine(exact.sum(axis=0), exact[longest]) < 0.99
