"""What the papers prove, on quadratics: it holds, or a counterexample shows which part does not."""

from itertools import pairwise

import numpy as np

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import FedFV
from tests.federation import Bowl, descend

CURVATURE = 2.0
"""L: the largest curvature of each loss."""


def opposed(seed: int) -> list[Bowl]:
    """Return two convex quadratics with step size 1/L; their gradients mostly oppose each other."""
    random = np.random.default_rng(seed)
    clients = []
    for name in ("a", "b"):
        Q = np.linalg.qr(random.normal(size=(3, 3)))[0]
        A = Q @ np.diag([CURVATURE, *random.uniform(0.1, CURVATURE, 2)]) @ Q.T
        optimum = 3.0 * random.normal(size=3)
        clients.append(Bowl(name, A, optimum, 0.1, 10, [1.0 / CURVATURE]))
    return clients


def mean_losses(clients: list[Bowl], path: list[FloatArray]) -> list[float]:
    return [float(np.mean([client.loss(x) for client in clients])) for x in path]


def count_rises(rescale: bool) -> tuple[int, int]:
    """Return in how many rounds the mean loss rises, and how many rounds there are."""
    rises = 0
    rounds = 0
    for seed in range(20):
        clients = opposed(seed)
        method = FedFV(alpha=0.0, tau=0, rescale=rescale, fraction_evaluate=0.0)
        means = mean_losses(clients, descend(method, clients, 30))
        rises += sum(after > before * (1.0 + 1e-9) for before, after in pairwise(means))
        rounds += len(means) - 1
    return rises, rounds


def test_fedfv_theorem_3_holds_without_rescaling() -> None:
    """Two convex L-smooth losses and steps of at most 1/L: the mean loss never rises."""
    assert count_rises(rescale=False)[0] == 0


def test_fedfv_theorem_3_fails_for_algorithm_1_as_printed() -> None:
    """Line 10 makes the step as long as the mean gradient; the proof leaves that out."""
    rises, rounds = count_rises(rescale=True)
    assert 0.2 * rounds < rises < 0.8 * rounds


def test_fedfv_without_rescaling_ends_pareto_stationary() -> None:
    clients = opposed(0)
    method = FedFV(alpha=0.0, tau=0, rescale=False, fraction_evaluate=0.0)
    end = descend(method, clients, 3000)[-1]
    first, second = (client.gradient(end) for client in clients)
    # the shortest vector between the two gradients
    share = np.clip(second @ (second - first) / ((second - first) @ (second - first)), 0.0, 1.0)
    assert np.linalg.norm(share * first + (1.0 - share) * second) < 0.01
