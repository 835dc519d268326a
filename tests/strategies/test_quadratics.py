"""Federated quadratics with a known solution: every method reaches the point that its objective
defines.

F_k(x) = ½ (x − a_k)ᵀ A_k (x − a_k) + b_k. Clients take one exact full-batch gradient step a round
and report F_k exactly; scipy.optimize computes the targets from the objectives. The rounds are the
real ones, without messages.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import METHODS, FromTorchJD
from tests.federation import Bowl, descend

DIM = 3
# The clients' learning rate; the largest curvature is 2, so that every step descends.
RATE = 0.2


def bowls(
    m: int, seed: int = 0, *, rate: Callable[[np.random.Generator], float] = lambda rng: RATE
) -> list[Bowl]:
    """m clients with curvatures in [0.5, 2], optima about 1.7 apart from the origin and losses
    there in [0.2, 1]."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(m):
        Q = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
        A = Q @ np.diag(rng.uniform(0.5, 2.0, DIM)) @ Q.T
        own = rate(rng)
        optimum = rng.normal(size=DIM)
        clients.append(
            Bowl(f"c{k}", A, optimum, rng.uniform(0.2, 1.0), int(rng.integers(10, 50)), [own])
        )
    return clients


def end(name: str, clients: list[Bowl], rounds: int, **arguments: Any) -> FloatArray:
    return descend(METHODS[name](fraction_evaluate=0.0, **arguments), clients, rounds)[-1]


def losses(clients: list[Bowl], x: FloatArray) -> FloatArray:
    return np.array([client.loss(x) for client in clients])


def gradients(clients: list[Bowl], x: FloatArray) -> FloatArray:
    return np.array([client.gradient(x) for client in clients])


def minimiser(objective: Callable[[FloatArray], float]) -> FloatArray:
    """The minimum of a smooth function of DIM variables."""
    found = np.zeros(DIM)
    for _ in range(3):
        found = minimize(objective, found, method="BFGS", options={"gtol": 1e-10}).x
        found = minimize(
            objective, found, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14}
        ).x
    return found


def minimax(clients: list[Bowl]) -> FloatArray:
    """The point with the least largest loss: min t subject to F_k(x) ≤ t."""
    constraints = [
        {
            "type": "ineq",
            "fun": lambda z, c=client: z[-1] - c.loss(z[:-1]),
            "jac": lambda z, c=client: np.append(-c.gradient(z[:-1]), 1.0),
        }
        for client in clients
    ]
    begin = np.append(np.zeros(DIM), max(losses(clients, np.zeros(DIM))))
    options = {"ftol": 1e-14, "maxiter": 500}
    up = np.append(np.zeros(DIM), 1.0)
    return minimize(
        lambda z: z[-1],
        begin,
        jac=lambda z: up,
        constraints=constraints,
        method="SLSQP",
        options=options,
    ).x[:-1]


def least_norm(rows: FloatArray) -> float:
    """How short a convex combination of the rows can be, by scipy: 0 at a Pareto-stationary
    point."""
    scale = np.linalg.norm(rows, axis=1).max()
    G = rows @ rows.T / scale**2
    ones = np.ones(len(G))
    solved = minimize(
        lambda lam: lam @ G @ lam,
        ones / len(G),
        jac=lambda lam: 2.0 * G @ lam,
        bounds=[(0.0, 1.0)] * len(G),
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1.0, "jac": lambda lam: ones},
        method="SLSQP",
        options={"ftol": 1e-18, "maxiter": 500},
    )
    return float(np.sqrt(max(solved.fun, 0.0)) * scale)


# Methods with a smooth objective ------------------------------------------------------------------

# Of the losses F and the prior p.
Objective = Callable[[FloatArray, FloatArray], float]


def apart() -> list[Bowl]:
    """Return clients with losses that differ near the solution, so that objectives of ranks are
    smooth there."""
    clients = bowls(4)
    for level, client in enumerate(clients):
        client.b = 0.2 + 10.0 * level
    return clients


four = partial(bowls, 4)
unlike = partial(bowls, 4, rate=lambda rng: RATE * rng.uniform(0.5, 1.0))
# Clients with short steps, for objectives that are more curved than the losses.
slow = partial(bowls, 4, rate=lambda rng: 0.1)

SMOOTH: list[tuple[str, dict[str, Any], Callable[[], list[Bowl]], Objective]] = [
    *(
        ("fedavg", {"weighting": each}, four, lambda F, p: float(p @ F))
        for each in ("examples", "uniform")
    ),
    *(
        (
            name,
            {"q": q, "lipschitz": lipschitz},
            clients,
            lambda F, p, q=q: float(np.mean(F ** (q + 1.0))),
        )
        # q-FedSGD also where the clients' learning rates differ, which q-FedAvg's one L can't know
        for name, clients, lipschitz in (("qfedavg", four, 1.0 / RATE), ("qfedsgd", unlike, 2.0))
        for q in (0.0, 1.0, 5.0)
    ),
    *(
        (
            "term",
            {"tilt": t, "weighting": w},
            slow,
            lambda F, p, t=t: float(np.log(p @ np.exp(t * F)) / t),
        )
        for t, w in ((1.0, "uniform"), (2.0, "examples"), (-0.2, "examples"))
    ),
    # the client at the quantile counts in full, so the superquantile is that of the tail's share
    *(
        (
            "deltafl",
            {"theta": theta, "weighting": "uniform"},
            apart,
            lambda F, p, k=tail: float(np.mean(F[-k:])),
        )
        for theta, tail in ((1.0, 4), (0.6, 3), (0.1, 1))
    ),
    *(
        (
            "gifair",
            {"strength": 0.6, "weighting": w},
            apart,
            lambda F, p: float(p @ F + 0.6 * p.min() / 3 * np.abs(F[:, None] - F).sum() / 2),
        )
        for w in ("examples", "uniform")
    ),
    *(
        (
            name,
            {"beta": 0.3, "weighting": w},
            four,
            lambda F, p, low=low: float(p @ F + 0.3 * p @ np.maximum(F - p @ F, low) ** 2),
        )
        for name, low in (("vred", -np.inf), ("semivred", 0.0))
        for w in ("examples", "uniform")
    ),
    ("fedfa", {}, four, lambda F, p: float(np.mean(F))),
    (
        "propfair",
        {"baseline": 8.0},
        four,
        lambda F, p: float(-p @ np.log(np.maximum(8.0 - F, 1e-3))),
    ),
]


@pytest.mark.parametrize(("name", "arguments", "made", "objective"), SMOOTH)
def test_a_method_reaches_the_minimiser_of_its_objective(
    name: str, arguments: dict[str, Any], made: Any, objective: Any
) -> None:
    clients = made()
    n = (
        np.ones(4)
        if arguments.get("weighting") == "uniform"
        else np.array([float(c.examples) for c in clients])
    )
    p = n / n.sum()
    target = minimiser(lambda x, c=clients, p=p, f=objective: f(losses(c, x), p))
    found = end(name, clients, {"propfair": 400, "term": 200}.get(name, 150), **arguments)
    assert np.linalg.norm(found - target) <= 1e-5, (name, arguments)


def test_fedavgn_ends_where_the_unit_gradients_cancel() -> None:
    clients = bowls(4, seed=1)
    # the optima are about the corners of a tetrahedron, so that no client's gradient vanishes near
    # the solution
    for client, corner in zip(
        clients, ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)), strict=True
    ):
        client.a = 1.5 * np.array(corner) + 0.3 * client.a
    g = gradients(clients, end("fedavgn", clients, 250, server_lr=0.6))
    assert np.linalg.norm((g / np.linalg.norm(g, axis=1, keepdims=True)).mean(axis=0)) <= 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_afl_reaches_the_minimax_point(seed: int) -> None:
    clients = bowls(4, seed)
    target = minimax(clients)
    x = end("afl", clients, 600, gamma=0.05)
    assert np.linalg.norm(x - target) <= 1e-3
    assert losses(clients, x).max() <= losses(clients, target).max() + 1e-3


def test_drfa_reaches_the_minimax_point_on_average() -> None:
    """Constant steps keep the noise of the draw: the mean of the second half of the rounds comes
    near."""
    clients = bowls(4)
    target = minimax(clients)
    best = losses(clients, minimax(clients)).max()
    strategy = METHODS["drfa"](gamma=0.04, local_steps=2, fraction_evaluate=0.0)
    mean = descend(strategy, clients, 400)[150:].mean(axis=0)
    plain = losses(clients, end("fedavg", clients, 100, weighting="uniform")).max()
    assert losses(clients, mean).max() <= best + 0.15 * (plain - best)
    assert np.linalg.norm(mean - target) <= 0.1


# Common descent directions ------------------------------------------------------------------------


def assert_no_loss_rises(clients: list[Bowl], path: FloatArray, tolerance: float = 1e-10) -> None:
    for before, after in pairwise(path):
        assert (losses(clients, after) <= losses(clients, before) + tolerance).all()


def test_fedmgda_is_pareto_stationary_and_no_loss_rises() -> None:
    clients = bowls(6, 2)
    path = descend(METHODS["fedmgda"](fraction_evaluate=0.0), clients, 150)
    assert least_norm(gradients(clients, path[0])) > 0.1
    assert least_norm(gradients(clients, path[-1])) <= 1e-4
    assert_no_loss_rises(clients, path)


def test_fedmgdaplus_is_pareto_stationary_while_steps_are_small() -> None:
    """Small: server_lr ≤ 2 min ‖∇F_k‖ / L. Where a client is at its optimum, no constant step is
    small."""
    clients = bowls(4)
    server_lr = 0.05
    path = descend(METHODS["fedmgdaplus"](server_lr=server_lr, fraction_evaluate=0.0), clients, 300)
    shortest = min(np.linalg.norm(gradients(clients, x), axis=1).min() for x in path)
    assert server_lr <= 2.0 * shortest / 2.0
    assert least_norm(gradients(clients, path[0])) > 1.0
    assert least_norm(gradients(clients, path[-1])) <= 5e-3
    assert_no_loss_rises(clients, path)


def test_torchjds_upgrad_is_pareto_stationary_and_no_loss_rises() -> None:
    aggregation = pytest.importorskip("torchjd.aggregation")
    clients = bowls(3, 1)
    path = descend(FromTorchJD(aggregation.UPGradWeighting(), fraction_evaluate=0.0), clients, 100)
    assert least_norm(gradients(clients, path[-1])) <= 1e-2
    assert_no_loss_rises(clients, path, 1e-4)


@pytest.mark.parametrize(("m", "seed", "gamma"), [(2, 0, 0.0), (2, 0, 1.0), (3, 1, 1.0)])
def test_adafed_is_pareto_stationary_before_a_loss_rises(m: int, seed: int, gamma: float) -> None:
    clients = bowls(m, seed)
    path = descend(METHODS["adafed"](gamma=gamma, fraction_evaluate=0.0), clients, 110)
    rises = (np.diff([losses(clients, x) for x in path], axis=0) > 1e-10).any(axis=1)
    # the rounds before a client's loss rises for the first time
    until = int(np.argmax(np.append(rises, True)))
    assert until > 50
    assert least_norm(gradients(clients, path[until])) <= 1e-4


def test_fedfv_of_two_clients_never_steps_against_either(subtests: pytest.Subtests) -> None:
    """For more clients, or alpha > 0, the paper's projections don't promise it."""
    clients = bowls(2, 0)
    for before, after in pairwise(
        descend(METHODS["fedfv"](alpha=0.0, tau=0, fraction_evaluate=0.0), clients, 60)
    ):
        with subtests.test(before=before, after=after):
            g = gradients(clients, before)
            step = before - after
            assert (g @ step >= -1e-9 * np.linalg.norm(g, axis=1) * np.linalg.norm(step)).all()
