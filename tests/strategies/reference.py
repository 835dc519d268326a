"""The methods written out a second time, in float64 and on whole vectors, as their papers print them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from strategies.cohort import FloatArray, generator

Vectors = Mapping[str, FloatArray]


class Seen(NamedTuple):
    """The usable replies of one round by client name."""

    round: int
    rounds: int
    updates: Vectors
    losses: Mapping[str, float]
    counts: Mapping[str, float]


Reference = Callable[..., FloatArray]
"""From all rounds so far, this one last, to the step d of w ← w − d."""


def prior(seen: Seen, weighting: str) -> dict[str, float]:
    total = sum(seen.counts.values()) if weighting == "examples" else len(seen.updates)
    return {name: (seen.counts[name] if weighting == "examples" else 1) / total for name in seen.updates}


def combined(weights: Mapping[str, float], vectors: Vectors) -> FloatArray:
    return np.sum([weights[name] * vectors[name] for name in vectors], axis=0)


# Averages -----------------------------------------------------------------------------------------------------------


def fedavg(history: Sequence[Seen], weighting: str = "examples") -> FloatArray:
    return combined(prior(history[-1], weighting), history[-1].updates)


def fedprox(history: Sequence[Seen], mu: float, weighting: str = "examples") -> FloatArray:
    return fedavg(history, weighting)


def eta(seen: Seen, server_lr: float, decay: float) -> float:
    if decay == 0:
        return server_lr
    beta = decay ** (100 / seen.rounds)
    return server_lr * beta ** (seen.round // 100)


def normalised(seen: Seen) -> Seen:
    """Unit updates; a client with a zero update takes no part."""
    unit = {name: u / np.linalg.norm(u) for name, u in seen.updates.items() if np.any(u != 0)}
    return seen._replace(updates=unit, counts={name: seen.counts[name] for name in unit})


def fedavgn(
    history: Sequence[Seen], server_lr: float = 1.0, decay: float = 0.0, weighting: str = "uniform"
) -> FloatArray:
    return fedmgdaplus(history, 0.0, server_lr, decay, weighting)


# Reweighting by loss ------------------------------------------------------------------------------------------------


def qfedavg(history: Sequence[Seen], q: float, lipschitz: float) -> FloatArray:
    seen, L = history[-1], lipschitz
    F = {name: max(loss, 1e-10) for name, loss in seen.losses.items()}
    delta = [F[name] ** q * L * u for name, u in seen.updates.items()]
    h = [q * F[name] ** (q - 1) * np.sum((L * u) ** 2) + L * F[name] ** q for name, u in seen.updates.items()]
    return np.sum(delta, axis=0) / np.sum(h)


# Common descent directions ------------------------------------------------------------------------------------------


def shortest(U: FloatArray, p: FloatArray, epsilon: float) -> FloatArray:
    """The shortest Σ λ_k u_k over the simplex with |λ_k − p_k| ≤ epsilon, by trying every face of that polytope."""
    lower, upper = np.maximum(p - epsilon, 0.0), np.minimum(p + epsilon, 1.0)
    best, length = p, np.linalg.norm(p @ U)
    for state in product((0, 1, 2), repeat=len(p)):
        free = [int(k) for k in np.argsort(np.linalg.norm(U, axis=1)) if state[k] == 2]
        lam = np.where(np.array(state) == 0, lower, upper)
        if free:  # what the fixed ones leave goes to the shortest row, then is shared out with the longer ones
            first, others = free[0], free[1:]
            lam[free] = 0.0
            lam[first] = 1.0 - lam.sum()
            lam[others] = np.linalg.lstsq((U[others] - U[first]).T, -(lam @ U), rcond=None)[0]
            lam[first] -= lam[others].sum()
            if (lam[others] < lower[others]).any() or (lam[others] > upper[others]).any():
                continue
            if not lower[first] - 1e-12 <= lam[first] <= upper[first] + 1e-12:
                continue
        if abs(lam.sum() - 1.0) < 1e-9 and np.linalg.norm(lam @ U) < length:
            best, length = lam, np.linalg.norm(lam @ U)
    return best @ U


def fedmgda(
    history: Sequence[Seen],
    epsilon: float = 1.0,
    server_lr: float = 1.0,
    decay: float = 0.0,
    weighting: str = "uniform",
) -> FloatArray:
    seen = history[-1]
    U, p = np.array(list(seen.updates.values())), np.array(list(prior(seen, weighting).values()))
    scale = np.abs(U).max() or 1.0
    return eta(seen, server_lr, decay) * scale * shortest(U / scale, p, epsilon)


def fedmgdaplus(
    history: Sequence[Seen],
    epsilon: float = 1.0,
    server_lr: float = 1.0,
    decay: float = 0.0,
    weighting: str = "uniform",
) -> FloatArray:
    moving = normalised(history[-1])
    if not moving.updates:
        return np.zeros_like(next(iter(history[-1].updates.values())))
    return fedmgda([moving], epsilon, server_lr, decay, weighting)


def fedfv(history: Sequence[Seen], alpha: float = 0.1, tau: int = 1, order: str = "loss", seed: int = 0) -> FloatArray:
    kept: dict[str, tuple[int, FloatArray]] = {}
    for past in history:
        kept |= {name: (past.round, u) for name, u in past.updates.items()}

    seen = history[-1]
    u, t, m = seen.updates, seen.round, len(seen.updates)
    ascending = sorted(u, key=lambda name: (seen.losses[name], name))
    top = set(ascending[int(np.ceil((m - 1) * (1 - alpha) - 1e-9)) :]) if alpha > 0 else set()
    shuffled = [sorted(u)[i] for i in generator(seed, "order", t).permutation(m)]
    in_order = {"loss": ascending, "reverse": ascending[::-1], "random": shuffled}[order]

    projected = []
    for k in u:
        uk = u[k].copy()
        for j in in_order:
            if k not in top and j != k and uk @ u[j] < 0:
                uk = uk - (uk @ u[j]) / (u[j] @ u[j]) * u[j]
        projected.append(uk)
    g = np.mean(projected, axis=0)

    if t > tau:
        for i in range(tau, 0, -1):
            con = np.zeros_like(g)
            for past, update in kept.values():
                if past == t - i and g @ update < 0:
                    con = con + update
            if g @ con < 0:
                g = g - (g @ con) / (con @ con) * con

    if g @ g <= 1e-6 * np.mean([uk @ uk for uk in u.values()]):
        return np.zeros_like(g)
    return g / np.linalg.norm(g) * np.linalg.norm(np.mean(list(u.values()), axis=0))


REFERENCES: dict[str, Reference] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedavgn": fedavgn,
    "qfedavg": qfedavg,
    "fedmgda": fedmgda,
    "fedmgdaplus": fedmgdaplus,
    "fedfv": fedfv,
}

WEIGHTING = {
    "fedavg": "examples",
    "fedprox": "examples",
    "fedavgn": "uniform",
    "qfedavg": None,
    "fedmgda": "uniform",
    "fedmgdaplus": "uniform",
    "fedfv": None,
}
"""The prior of each method by default; None where it has none."""


def expected_step(name: str, arguments: Mapping[str, Any], history: Sequence[Seen]) -> FloatArray:
    return REFERENCES[name](history, **arguments)
