"""The methods written out a second time, in float64 and on whole vectors, as their papers print
them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog, nnls

from fairbloom.protocol.streams import generator
from fairbloom.rounds.arrays import FloatArray

Vectors = Mapping[str, FloatArray]


class Seen(NamedTuple):
    """The usable replies of one round by client name."""

    round: int
    rounds: int
    updates: Vectors
    losses: Mapping[str, float]
    counts: Mapping[str, float]
    accuracies: Mapping[str, float] = {}
    rates: Mapping[str, float] = {}
    draws: Mapping[str, float] = {}
    groups: Mapping[str, Mapping[str, float]] = {}
    # The training clients that the server has known up to then, with their first counts; none:
    # those of the round.
    roster: Mapping[str, float] = {}
    baselines: Mapping[str, float] = {}
    seconds: Mapping[str, FloatArray] = {}
    disparities: Mapping[str, float] = {}


# From all rounds so far, this one last, to the step d of w ← w − d.
Reference = Callable[..., FloatArray]


def prior(seen: Seen, weighting: str) -> dict[str, float]:
    total = sum(seen.counts.values()) if weighting == "examples" else len(seen.updates)
    return {
        name: (seen.counts[name] if weighting == "examples" else 1) / total for name in seen.updates
    }


def combined(weights: Mapping[str, float], vectors: Vectors) -> FloatArray:
    return np.sum([weights[name] * vectors[name] for name in vectors], axis=0)


# Between groups -----------------------------------------------------------------------------------


def fairfed(history: Sequence[Seen], beta: float = 1.0) -> FloatArray:
    """With ω after the last round; `accuracies` are those of the received model."""
    omega: dict[str, float] = {}
    for seen in history:
        names = list(seen.updates)
        of = seen.groups
        total = sum((seen.roster or seen.counts).values())
        gaps: dict[str, float] = {}
        for name in names:
            if of["positives-0"][name] > 0 and of["positives-1"][name] > 0:
                first = of["hits-0"][name] / of["positives-0"][name]
                gaps[name] = of["hits-1"][name] / of["positives-1"][name] - first
        sums = {metric: sum(by_name.values()) for metric, by_name in of.items()}
        n = sum(seen.counts.values())
        accuracy = sum(seen.counts[name] * seen.accuracies[name] for name in names) / n
        delta = {}
        for name in names:
            if name in gaps:
                gap = sums["hits-1"] / sums["positives-1"] - sums["hits-0"] / sums["positives-0"]
                delta[name] = abs(gaps[name] - gap)
            else:
                delta[name] = abs(seen.accuracies[name] - accuracy)
        mean = sum(delta.values()) / len(names)
        for name in names:
            omega[name] = omega.get(name, seen.counts[name] / total) - beta * (delta[name] - mean)
    total = sum(omega[name] for name in seen.updates)
    if total <= 0.0:
        return fedavg(history)
    return combined({name: omega[name] / total for name in seen.updates}, seen.updates)


# Averages -----------------------------------------------------------------------------------------


def fedavg(history: Sequence[Seen], weighting: str = "examples") -> FloatArray:
    return combined(prior(history[-1], weighting), history[-1].updates)


def scaffold(
    history: Sequence[Seen], server_lr: float = 1.0, weighting: str = "examples"
) -> FloatArray:
    """The control variates change what clients do; test_corrections.py tests them."""
    return server_lr * fedavg(history, weighting)


def feddyn(history: Sequence[Seen], alpha: float = 0.01) -> FloatArray:
    seen = history[-1]
    total = sum(u for past in history for u in past.updates.values())
    return fedavg(history, "uniform") + np.asarray(total) / len(seen.roster or seen.updates)


# Reweighting by loss ------------------------------------------------------------------------------


def qfedavg(history: Sequence[Seen], q: float, lipschitz: float) -> FloatArray:
    """The gradients are L u_k: as if each client's learning rate were 1 / L."""
    rates = dict.fromkeys(history[-1].updates, 1.0 / lipschitz)
    return qfedsgd([history[-1]._replace(rates=rates)], q, lipschitz)


def qfedsgd(history: Sequence[Seen], q: float, lipschitz: float) -> FloatArray:
    seen = history[-1]
    L = lipschitz
    F = {name: max(loss, 1e-10) for name, loss in seen.losses.items()}
    gradient = {name: u / seen.rates[name] for name, u in seen.updates.items()}
    h = [q * F[name] ** (q - 1) * np.sum(g**2) + L * F[name] ** q for name, g in gradient.items()]
    return np.sum([F[name] ** q * g for name, g in gradient.items()], axis=0) / np.sum(h)


def term(history: Sequence[Seen], tilt: float, weighting: str = "examples") -> FloatArray:
    seen = history[-1]
    tilted = {
        name: p * np.exp(tilt * seen.losses[name]) for name, p in prior(seen, weighting).items()
    }
    return combined(tilted, seen.updates) / sum(tilted.values())


def nearest_in_simplex(point: Mapping[str, float]) -> dict[str, float]:
    """The Euclidean projection on the simplex: max(v − θ, 0), with θ bisected until it sums to
    1."""
    v = np.array(list(point.values()))
    v = v - v.max()
    low = -1.0
    high = 0.0
    for _ in range(200):
        theta = 0.5 * (low + high)
        if np.maximum(v - theta, 0.0).sum() > 1.0:
            low = theta
        else:
            high = theta
    return dict(zip(point, np.maximum(v - high, 0.0), strict=True))


def afl(history: Sequence[Seen], gamma: float, weighting: str = "examples") -> FloatArray:
    """With λ before the ascent of the last round."""
    lam: dict[str, float] = {}
    before: dict[str, float] = {}
    examples: dict[str, float] = {}
    for seen in history:
        examples |= seen.counts
        known = examples if weighting == "examples" else dict.fromkeys(examples, 1.0)
        priors = {name: n / sum(known.values()) for name, n in known.items()}
        # newcomers at their prior, others less
        room = 1.0 - sum(p for name, p in priors.items() if name not in lam)
        before = {name: lam[name] * room if name in lam else p for name, p in priors.items()}
        lam = nearest_in_simplex(
            {name: lam_k + gamma * seen.losses.get(name, 0.0) for name, lam_k in before.items()}
        )
    present = {name: before[name] for name in seen.updates}
    mass = sum(present.values())
    if mass == 0:
        return combined(prior(seen, weighting), seen.updates)
    return combined(present, seen.updates) / mass


def drfa(history: Sequence[Seen], gamma: float, local_steps: int = 10) -> FloatArray:
    """The mean over the draws; who is drawn, and the ascent of λ, are tested in test_drfa.py."""
    seen = history[-1]
    drawn = [seen.updates[name] for name, times in seen.draws.items() for _ in range(int(times))]
    return np.mean(drawn, axis=0)


def deltafl(history: Sequence[Seen], theta: float, weighting: str = "examples") -> FloatArray:
    seen = history[-1]
    p = prior(seen, weighting)
    F = seen.losses
    Q = min(f for f in F.values() if sum(p[k] for k in F if F[k] <= f) >= 1 - theta - 1e-9)
    tail = {name: u for name, u in seen.updates.items() if F[name] >= Q}
    return combined(p, tail) / sum(p[name] for name in tail)


def gifair(history: Sequence[Seen], strength: float, weighting: str = "examples") -> FloatArray:
    seen = history[-1]
    p = prior(seen, weighting)
    F = seen.losses
    m = len(seen.updates)
    if m == 1:
        return fedavg(history, weighting)
    r = {k: sum(np.sign(F[k] - F[j]) for j in F if j != k) for k in F}
    lam = strength * min(p.values()) / (m - 1)
    return combined({k: p[k] + lam * r[k] for k in F}, seen.updates)


def vred(history: Sequence[Seen], beta: float, weighting: str = "examples") -> FloatArray:
    seen = history[-1]
    p = prior(seen, weighting)
    F = seen.losses
    mean = sum(p[j] * F[j] for j in F)
    return combined({k: p[k] * (1 + 2 * beta * (F[k] - mean)) for k in F}, seen.updates)


def semivred(history: Sequence[Seen], beta: float, weighting: str = "examples") -> FloatArray:
    """VRed of what the losses are above their mean."""
    seen = history[-1]
    p = prior(seen, weighting)
    F = seen.losses
    mean = sum(p[j] * F[j] for j in F)
    return vred([seen._replace(losses={k: max(F[k] - mean, 0.0) for k in F})], beta, weighting)


def eagle(history: Sequence[Seen], lam: float, weighting: str = "uniform") -> FloatArray:
    """VRed of the losses less those that the clients reach alone."""
    seen = history[-1]
    gaps = {k: seen.losses[k] - seen.baselines[k] for k in seen.losses}
    return vred([seen._replace(losses=gaps)], lam, weighting)


# Decisions by past losses -------------------------------------------------------------------------

RESPONSES: dict[str, Callable[[float], float]] = {
    "weibull": lambda x: 1 - math.exp(-(x**2)),
    "exponential": lambda x: 1 - math.exp(-x),
    "frechet": lambda x: math.exp(-1 / x) if x > 0 else 0.0,
    "normal": lambda x: 0.5 * (1 + math.erf((x - 1) / math.sqrt(2))),
    "gumbel": lambda x: math.exp(-math.exp(-(x - 1))),
    "logistic": lambda x: 1 / (1 + math.exp(-(x - 1))),
}


def aaggff_responses(seen: Seen, cdf: str) -> dict[str, float]:
    F = {name: max(loss, 0.0) for name, loss in seen.losses.items()}
    mean = sum(F.values()) / len(F)
    return {name: RESPONSES[cdf](loss / mean if mean > 0 else 1.0) for name, loss in F.items()}


def aaggff(history: Sequence[Seen], rule: str = "ons", cdf: str = "weibull") -> FloatArray:
    """With the decision of all known clients, restricted to those of the last round."""
    p = (online_newton if rule == "ons" else regularised_leader)(history, cdf)
    return combined(p, history[-1].updates) / sum(p[name] for name in history[-1].updates)


def online_newton(history: Sequence[Seen], cdf: str = "weibull") -> dict[str, float]:
    """AAggFF-S: the decision after the last round's losses, from the gradients g and ⟨g, q⟩ of all
    rounds."""
    past: list[tuple[dict[str, float], float]] = []

    def decide(names: Sequence[str]) -> dict[str, float]:
        g = np.array([[each[name] for name in names] for each, _ in past]).reshape(-1, len(names))
        s = np.array([product for _, product in past])
        K = len(names)
        Q = 4 * np.eye(K) + K / 4 * g.T @ g
        return dict(zip(names, least_on_simplex(Q, g.sum(axis=0) - K / 4 * s @ g), strict=True))

    known: list[str] = []
    for seen in history:
        names = sorted({*known, *seen.updates})
        for g, _ in past:  # a newcomer has the mean client's past
            mean = sum(g.values()) / len(g)
            g.update({name: mean for name in names if name not in known})
        known = names
        rho = aaggff_responses(seen, cdf)
        q = decide(names)
        mean = sum(rho.values()) / len(rho)
        r = {name: rho.get(name, mean) / len(names) for name in names}
        got = sum(q[name] * r[name] for name in names)
        g = {name: -r[name] / (1 + got) for name in names}
        past.append((g, sum(q[name] * g[name] for name in names)))
    return decide(known)


def least_on_simplex(Q: FloatArray, b: FloatArray) -> FloatArray:
    """argmin ½ pᵀQp + bᵀp over the simplex, by trying every support."""
    K = len(b)
    best = np.full(len(b), 1.0 / len(b))
    value = math.inf
    for support in product((False, True), repeat=K):
        on = np.array(support)
        if not on.any():
            continue
        size = int(on.sum())
        system = np.block(
            [[Q[np.ix_(on, on)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]]
        )
        p = np.zeros(K)
        p[on] = np.linalg.solve(system, np.append(-b[on], 1.0))[:size]
        if (p >= -1e-15).all() and (of := 0.5 * p @ Q @ p + b @ p) < value:
            best = p
            value = of
    return best


def regularised_leader(history: Sequence[Seen], cdf: str = "weibull") -> dict[str, float]:
    """AAggFF-D over all N clients: entropy, and doubly robust responses in [0, C]."""
    sums: dict[str, float] = {}
    absent = 0.0  # of every client that was never seen
    p: dict[str, float] = {}
    for t, seen in enumerate(history, start=1):
        N = len(seen.roster) or len(seen.updates)
        C = len(seen.updates) / N
        r = {name: C * rho for name, rho in aaggff_responses(seen, cdf).items()}
        mean = sum(r.values()) / len(r)
        for name in seen.updates:
            sums.setdefault(name, absent)
        for name in sums:
            sums[name] -= (mean + (r[name] - mean) / C if name in r else mean) / (1 + mean)
        absent -= mean / (1 + mean)
        rate = math.sqrt(math.log(N)) / ((2 + C) * math.sqrt(t + 1))
        everybody = {**sums, **{f"unseen {k}": absent for k in range(N - len(sums))}}
        weights = {name: math.exp(-rate * total) for name, total in everybody.items()}
        p = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return p


def fedfa(
    history: Sequence[Seen],
    alpha: float = 0.5,
    beta: float = 0.5,
    server_momentum: float = 0.5,
    **of_clients: float,
) -> FloatArray:
    times: dict[str, int] = {}
    velocity: Any = 0.0
    for seen in history:
        for name in seen.updates:
            times[name] = times.get(name, 0) + 1
        A = {name: max(seen.accuracies[name], 1e-6) for name in seen.updates}
        total = sum(times[name] for name in A)
        if len(A) == 1:
            c = dict.fromkeys(A, 1.0)
        else:
            a = {name: -np.log2(A[name] / sum(A.values())) for name in A}
            f = {name: -np.log2(1 - times[name] / total) for name in A}
            c = {
                name: alpha * a[name] / sum(a.values()) + beta * f[name] / sum(f.values())
                for name in A
            }
            c = {name: c[name] / sum(c.values()) for name in A}
        velocity = server_momentum * velocity + combined(c, seen.updates)
    return velocity


def fedpw(history: Sequence[Seen], beta: float = 0.3) -> FloatArray:
    """On vectors: an update's agreement is its inner product with the sum of all."""
    p, q, delta, epsilon = (
        {name: 0.0 for seen in history for name in seen.updates} for _ in "1234"
    )
    first: tuple[float, float] | None = None
    for seen in history:
        S = list(seen.updates)
        total = np.sum([*seen.updates.values()], axis=0)
        r = {name: seen.updates[name] @ total for name in S}
        L0, r0 = first = first or (sum(seen.losses.values()) / len(S), total @ total / len(S))
        of_losses = min(1.0, beta * sum(seen.losses.values()) / len(S) / L0) if L0 else 0.0
        of_updates = min(1.0, beta * (total @ total) / len(S) / r0) if r0 else 0.0
        s = over_sum(seen.losses)
        t = over_sum(r) if total.any() else dict.fromkeys(S, 1.0 / len(S))
        for name in S:
            delta[name] = (1.0 - of_losses) * delta[name] + of_losses * s[name]
            epsilon[name] = (1.0 - of_updates) * epsilon[name] + of_updates * t[name]
        p |= over_sum({name: p[name] + delta[name] for name in S})
        q |= over_sum({name: q[name] + epsilon[name] for name in S})
    a, b = (np.std([of[name] for name in S], ddof=1) if len(S) > 1 else 0.0 for of in (p, q))
    a, b = (a, b) if a + b else (1.0, 1.0)
    return combined({name: (a * p[name] + b * q[name]) / (a + b) for name in S}, seen.updates)


def over_sum(values: Mapping[str, float]) -> dict[str, float]:
    total = sum(values.values())
    return {name: value / total if total else 1.0 / len(values) for name, value in values.items()}


# Common descent directions ------------------------------------------------------------------------


def shortest(U: FloatArray, p: FloatArray, epsilon: float) -> FloatArray:
    """The shortest Σ λ_k u_k over the simplex with |λ_k − p_k| ≤ epsilon, by trying every face of
    that polytope."""
    lower = np.maximum(p - epsilon, 0.0)
    upper = np.minimum(p + epsilon, 1.0)
    best = p
    length = np.linalg.norm(p @ U)
    for state in product((0, 1, 2), repeat=len(p)):
        free = [int(k) for k in np.argsort(np.linalg.norm(U, axis=1)) if state[k] == 2]
        lam = np.where(np.array(state) == 0, lower, upper)
        # what the fixed ones leave goes to the shortest row, then is shared out with the longer
        # ones
        if free:
            first = free[0]
            others = free[1:]
            lam[free] = 0.0
            lam[first] = 1.0 - lam.sum()
            lam[others] = np.linalg.lstsq((U[others] - U[first]).T, -(lam @ U), rcond=None)[0]
            lam[first] -= lam[others].sum()
            if (lam[others] < lower[others]).any() or (lam[others] > upper[others]).any():
                continue
            if not lower[first] - 1e-12 <= lam[first] <= upper[first] + 1e-12:
                continue
        if abs(lam.sum() - 1.0) < 1e-9 and np.linalg.norm(lam @ U) < length:
            best = lam
            length = np.linalg.norm(lam @ U)
    return best @ U


def fedmgda(
    history: Sequence[Seen],
    epsilon: float = 1.0,
    server_lr: float = 1.0,
    decay: float = 0.0,
    weighting: str = "uniform",
) -> FloatArray:
    seen = history[-1]
    U = np.array(list(seen.updates.values()))
    p = np.array(list(prior(seen, weighting).values()))
    scale = np.abs(U).max() or 1.0
    decayed = decay ** (100 / seen.rounds * (seen.round // 100)) if decay else 1.0
    return server_lr * decayed * scale * shortest(U / scale, p, epsilon)


def fedmgdaplus(history: Sequence[Seen], epsilon: float = 1.0, **others: Any) -> FloatArray:
    """FedMGDA of unit updates; a client with a zero update takes no part."""
    seen = history[-1]
    unit = {name: u / np.linalg.norm(u) for name, u in seen.updates.items() if np.any(u != 0)}
    if not unit:
        return np.zeros_like(next(iter(seen.updates.values())))
    moving = seen._replace(updates=unit, counts={name: seen.counts[name] for name in unit})
    return fedmgda([moving], epsilon, **others)


def fedfv(
    history: Sequence[Seen],
    alpha: float = 0.1,
    tau: int = 1,
    order: str = "loss",
    rescale: bool = True,
    seed: int = 0,
) -> FloatArray:
    kept: dict[str, tuple[int, FloatArray]] = {}
    for past in history:
        kept |= {name: (past.round, u) for name, u in past.updates.items()}

    seen = history[-1]
    u = seen.updates
    t = seen.round
    m = len(seen.updates)
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
    if not rescale:
        return g
    return g / np.linalg.norm(g) * np.linalg.norm(np.mean(list(u.values()), axis=0))


def adafed(history: Sequence[Seen], gamma: float = 1.0, server_lr: float = 1.0) -> FloatArray:
    seen = history[-1]
    v = []
    for name, u in seen.updates.items():
        numerator = u
        denominator = seen.losses[name] ** gamma
        for v_i in v:
            share = (u @ v_i) / (v_i @ v_i)
            numerator = numerator - share * v_i
            denominator = denominator - share
        if np.linalg.norm(numerator) > 1e-6 * np.linalg.norm(u):
            v.append(numerator / denominator)
    if not v:
        return np.zeros_like(u)
    inverse = np.array([1.0 / (v_k @ v_k) for v_k in v])
    return server_lr * np.sum((inverse / inverse.sum())[:, None] * np.array(v), axis=0)


def min_norm_shares(rows: Sequence[FloatArray]) -> FloatArray:
    """The weights of the shortest vector in the convex hull: by scaling, min ‖Σ λ q‖² + (Σ λ − 1)²
    over λ ≥ 0 points at it."""
    V = np.array(rows) / (np.max(np.abs(rows)) or 1.0)
    lam, _ = nnls(
        np.vstack([V.T, np.ones(len(V))]), np.append(np.zeros(V.shape[1]), 1.0), maxiter=1000
    )
    return np.asarray(lam / lam.sum())


def min_norm_point(rows: Sequence[FloatArray]) -> FloatArray:
    """The shortest vector in the convex hull."""
    return np.asarray(min_norm_shares(rows) @ np.array(rows))


def fairmoo(
    history: Sequence[Seen],
    tolerance: float = 0.006,
    length: float | None = None,
    server_lr: float = 1.0,
) -> FloatArray:
    """The constraint cuts the simplex: its corners are clients, and points between two of them."""
    updates = [*history[-1].updates.values()]
    losses = np.array([*history[-1].losses.values()])
    live = [np.linalg.norm(u) for u in updates if u.any()]
    if not live:
        return np.zeros_like(updates[0])
    apart = losses - losses.mean()
    v = 2.0 * np.mean([each * u for each, u in zip(apart, updates, strict=True)], axis=0)
    slopes = np.array([u @ v for u in updates])
    corners = [u for u, slope in zip(updates, slopes, strict=True) if slope >= 0.0]
    for i, j in itertools.permutations(range(len(updates)), 2):
        if slopes[i] < 0.0 < slopes[j]:
            share = slopes[j] / (slopes[j] - slopes[i])
            corners.append(share * updates[i] + (1.0 - share) * updates[j])
    variance = np.var(losses, ddof=1) if len(losses) > 1 else 0.0
    d, least = v, 1e-12
    if variance <= tolerance and corners:
        d, least = min_norm_point(corners), 1e-3
    if np.linalg.norm(d) <= least * np.mean(live):
        return np.zeros_like(v)
    return server_lr * (length or np.mean(live)) * d / np.linalg.norm(d)


def falls_of(losses: Sequence[float]) -> tuple[FloatArray, float] | None:
    """The gradient of −cos(1, F) with respect to F, by FedLF's equation 5, at length 1; and the
    angle in degrees."""
    F = np.array(losses)
    root = np.sqrt(len(losses))
    if not F.any():
        return None
    length = np.linalg.norm(F)
    gradient = F.sum() * F / (root * length**3) - 1 / (root * length)
    if np.linalg.norm(gradient) * length <= 1e-6:
        return None
    angle = np.degrees(np.arccos(np.clip(F.sum() / (root * length), -1, 1)))
    return gradient / np.linalg.norm(gradient), float(angle)


def fedmdfg(
    rounds: Sequence[Seen],
    /,
    angle: float = 11.25,
    history: bool = True,
    guidance: str = "scaled",
    server_lr: float = 1.0,
) -> FloatArray:
    expected: dict[str, float] = {}
    used: dict[str, int] = {}
    last: dict[str, FloatArray] = {}
    for seen in rounds:
        rose = {name for name in seen.updates if seen.losses[name] > expected.get(name, np.inf)}
        for name in seen.updates.keys() - rose:
            n = used.get(name, 0)
            expected[name] = (expected.get(name, 0.0) * n + seen.losses[name]) / (n + 1)
        used |= {name: used.get(name, 0) + 1 for name in seen.updates}

        d = np.zeros_like(next(iter(seen.updates.values())))
        live = {name: u for name, u in seen.updates.items() if u.any()}
        if not live:
            continue
        s = np.mean([np.linalg.norm(u) for u in live.values()])
        v = {name: s * u / np.linalg.norm(u) for name, u in live.items()}
        rows = list(v.values())
        found = falls_of([seen.losses[name] for name in live])
        if found and (found[1] > angle or 0 < len(rose) < len(seen.updates)):
            guided = v if guidance == "scaled" else live
            rows.append(
                np.sum([h * u for h, u in zip(found[0], guided.values(), strict=True)], axis=0)
            )
        rows += [old for name, old in last.items() if history and name not in seen.updates]
        last = v
        shortest = min_norm_point(rows)
        if np.linalg.norm(shortest) > 1e-3 * s:
            length = np.linalg.norm(np.mean(list(v.values()), axis=0))
            d = server_lr * length * shortest / np.linalg.norm(shortest)
    return d


def fedlf(
    rounds: Sequence[Seen],
    /,
    history: bool = True,
    guidance: str = "scaled",
    server_lr: float = 1.0,
    layers: Sequence[Sequence[int]] = (),
) -> FloatArray:
    """`layers` has the columns of each group; by default all are one."""
    d = np.zeros_like(next(iter(rounds[-1].updates.values())))
    groups = fedlf_groups(rounds, history, guidance, layers or [range(len(d))])
    if len(groups) == 1 and np.linalg.norm(groups[0].direction) <= 1e-3 * groups[0].length:
        return d
    for group in groups:
        d[group.columns] = group.direction
    mean = np.mean(list(rounds[-1].updates.values()), axis=0)
    return server_lr * np.linalg.norm(mean) * d / (np.linalg.norm(d) or 1.0)


class Group(NamedTuple):
    """A group of FedLF: its columns, μ, its direction and the rows of which that is the shortest
    combination."""

    columns: list[int]
    length: float
    direction: FloatArray
    rows: list[FloatArray]


def fedlf_groups(
    rounds: Sequence[Seen], history: bool, guidance: str, layers: Sequence[Sequence[int]]
) -> list[Group]:
    """The groups of Algorithm 1 once they are merged."""
    *earlier, seen = rounds
    last = {name: (old.round, u) for old in earlier for name, u in old.updates.items()}
    tau = len(last) // len(seen.updates)
    absent = [
        u
        for name, (t, u) in last.items()
        if history and name not in seen.updates and t >= seen.round - tau
    ]
    found = falls_of(list(seen.losses.values()))
    h = dict(zip(seen.losses, found[0], strict=True)) if found else {}

    def solved(columns: list[int]) -> Group | None:
        part = {name: u[columns] for name, u in seen.updates.items() if u[columns].any()}
        if not part:
            return None
        mu = float(np.mean([np.linalg.norm(u) for u in part.values()]))
        unit = {name: u / np.linalg.norm(u) for name, u in part.items()}
        rows = [mu * u for u in unit.values()]
        if h:
            guided, least = (unit, 1e-6) if guidance == "scaled" else (part, 1e-6 * mu)
            q = np.sum([h[name] * u for name, u in guided.items()], axis=0)
            rows += [mu * q / np.linalg.norm(q)] if np.linalg.norm(q) > least else []
        rows += [mu * u[columns] / np.linalg.norm(u[columns]) for u in absent if u[columns].any()]
        return Group(columns, mu, min_norm_point(rows), rows)

    groups = [group for columns in layers if (group := solved(list(columns)))]
    while len(groups) > 1:
        stationary = [
            i
            for i, group in enumerate(groups)
            if np.linalg.norm(group.direction) <= 1e-3 * group.length
        ]
        if not stationary:
            break
        i = stationary[0]
        here, there = (i, i + 1) if i + 1 < len(groups) else (i - 1, i)
        merged = solved(groups[here].columns + groups[there].columns)
        assert merged is not None
        groups[here : there + 1] = [merged]
    return groups


# Groups -------------------------------------------------------------------------------------------


def softmax(values: Sequence[float], delta: float) -> FloatArray:
    weights = np.exp((np.array(values) - max(values)) / delta)
    return weights / weights.sum()


def fcfl(
    history: Sequence[Seen],
    budget: float = 0.05,
    budgets: Mapping[str, float] | None = None,
    stage1_rounds: int = 800,
    delta: float = 0.5,
    delta_decay: float = 0.01,
    delta_factor: float = 0.1,
    delta_min: float = 1e-4,
    disparity: str = "",
) -> FloatArray:
    """On the gradients themselves; a step is as long as the smallest rate makes it."""
    of_losses = of_disparities = delta
    for seen in history:
        L, Q = (
            [each[name] / seen.rates[name] for name in seen.updates]
            for each in (seen.updates, seen.seconds)
        )
        v = [
            abs(seen.disparities[name]) - (budgets or {}).get(name, budget) for name in seen.updates
        ]
        g_l = softmax(list(seen.losses.values()), of_losses) @ np.array(L)
        g_g = softmax(v, of_disparities) @ np.array(Q)
        if seen.round > stage1_rounds:
            d = pareto([*L, *([g_g] if max(v) >= 0.0 and g_g.any() else [])], np.mean(L, axis=0))
            continue
        p = g_l @ g_l
        q = g_l @ g_g
        beyond = 1.0 if q >= (g_g @ g_g) else 0.0 if q >= 0.0 else -q / (p - q)
        x = beyond if max(v) > 0.0 else float(p >= q)
        d = x * g_l + (1.0 - x) * g_g
        if of_losses > delta_min and delta_factor * np.linalg.norm(g_l) <= of_losses:
            of_losses *= delta_decay
        if of_disparities > delta_min and delta_factor * np.linalg.norm(g_g) <= of_disparities:
            of_disparities *= delta_decay
    return min(seen.rates.values()) * d


def pareto(rows: Sequence[FloatArray], mean: FloatArray) -> FloatArray:
    """The combination of the rows with the most along `mean` that points up none of them."""
    R = np.array(rows) / max(np.abs(rows).max(), 1e-300)
    found = linprog(
        -R @ (mean / max(np.abs(mean).max(), 1e-300)),
        A_ub=-R @ R.T,
        b_ub=np.zeros(len(R)),
        A_eq=np.ones((1, len(R))),
        b_eq=[1.0],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return np.asarray(found.x @ np.array(rows))


def local(history: Sequence[Seen]) -> FloatArray:
    return np.zeros_like(next(iter(history[-1].updates.values())))


# The methods that are FedAvg on the server, with the parameters of what their clients do.
ON_CLIENTS = {
    "fedprox": ("mu",),
    "propfair": ("baseline", "epsilon"),
    "ditto": ("lam", "personal_epochs"),
}

OTHERS: dict[str, Reference] = {
    "mgdaprox": lambda history, mu, **others: fedmgdaplus(history, **others),
    "fedavgn": lambda history, **others: fedmgdaplus(history, 0.0, **others),
}

# The prior of each method by default; None where it has none.
WEIGHTING = {
    **dict.fromkeys(
        ("fedavg", "fedprox", "term", "afl", "deltafl", "propfair", "gifair", "ditto"), "examples"
    ),
    **dict.fromkeys(("vred", "semivred", "scaffold"), "examples"),
    **dict.fromkeys(("eagle", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox"), "uniform"),
    **dict.fromkeys(
        (
            "qfedavg",
            "qfedsgd",
            "drfa",
            "fedfa",
            "aaggff",
            "fedfv",
            "adafed",
            "fedmdfg",
            "fedlf",
            "fairmoo",
            "fedpw",
            "local",
        )
    ),
    **dict.fromkeys(("fairfed", "fcfl", "feddyn")),
}


def expected_step(name: str, arguments: Mapping[str, Any], history: Sequence[Seen]) -> FloatArray:
    if name in ON_CLIENTS:
        return fedavg(
            history,
            **{key: value for key, value in arguments.items() if key not in ON_CLIENTS[name]},
        )
    return np.asarray((OTHERS.get(name) or globals()[name])(history, **arguments))
