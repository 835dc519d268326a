"""Defences and attacks equal those of ByzFL, where it is installed: `pip install --no-deps --group
byzfl`.

It is in no lock file, because it is of use here alone; what these functions import is installed
already. They take updates in d numbers; ours take their Gram matrix.
"""

from collections.abc import Callable

import numpy as np
import pytest

from fairbloom.protocol.streams import generator
from fairbloom.rounds import defences
from fairbloom.rounds.arrays import FloatArray
from fairbloom.simulation.adversaries import UPDATES, Sight

aggregators = pytest.importorskip("byzfl.aggregators", reason="needs ByzFL", exc_type=ImportError)
attacks = pytest.importorskip("byzfl.attacks", reason="needs ByzFL", exc_type=ImportError)

# Clients of a round, and how many may be hostile.
ROUNDS = [(4, 1), (7, 2), (10, 3), (9, 4)]


def updates(clients: int) -> FloatArray:
    """Return updates of which the first is long."""
    drawn = np.random.default_rng(clients).normal(size=(clients, 50)) + 0.5
    drawn[0] *= 10.0
    return np.asarray(drawn)


@pytest.mark.parametrize(("clients", "tolerance"), ROUNDS)
def test_a_defence_on_the_gram_matrix_is_byzfls(clients: int, tolerance: int) -> None:
    rows = updates(clients)
    expected = aggregators.NNM(tolerance)(rows.copy())
    np.testing.assert_allclose(
        defences.nearest_neighbours(rows @ rows.T, tolerance) @ rows, expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("sign-flip", lambda: attacks.SignFlipping()),
        ("alie", lambda: attacks.ALittleIsEnough(tau=1.0)),
        ("ipm", lambda: attacks.InnerProductManipulation(tau=1.0)),
    ],
)
@pytest.mark.parametrize("clients", [4, 10])
def test_an_attack_is_byzfls(
    clients: int, ours: str, theirs: Callable[[], Callable[[FloatArray], FloatArray]]
) -> None:
    """ByzFL's attackers have no update of their own: it turns the mean of the honest ones, which is
    given here."""
    honest = updates(clients)
    found = UPDATES[ours](
        Sight(honest.mean(axis=0), honest, 1.0, 1, generator(1, "attack", 1, "a"))
    )
    np.testing.assert_allclose(found, theirs()(honest), rtol=0, atol=1e-12)
