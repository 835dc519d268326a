"""What the papers prove, on quadratics: it holds, or a counterexample shows which part does not."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import cross_entropy

from fairbloom.client.training import train
from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import (
    FairStrategy,
    FedAvg,
    FedFV,
    FedMGDA,
    FedMGDAPlus,
    FedProx,
    GiFair,
    QFedAvg,
    SemiVRed,
    VRed,
)
from fairbloom.tasks import Examples
from tests.client.helpers import noise, run_config, task_of, work_of
from tests.federation import Bowl, descend

from .helpers import cohort_of, step_of as step
from .reference import min_norm_point, min_norm_shares

# L: the largest curvature of each loss.
CURVATURE = 2.0

ROUNDING = 1.0 + 1e-9


# FedFV --------------------------------------------------------------------------------------------


def conflicting(count: int, m: int | None = None) -> Iterator[FloatArray]:
    """Yield sets of gradients, the rows, of which all pairs conflict."""
    random = np.random.default_rng(0)
    for _ in range(count):
        size = m or int(random.integers(2, 6))
        G = random.normal(size=(size, 12))
        G -= 1.05 * G.mean(axis=0)
        if ((G @ G.T)[~np.eye(size, dtype=bool)] < 0.0).all():
            yield G


def projected(G: FloatArray) -> FloatArray:
    """Return all gradients before the first target of projections and after each, in ascending
    order, shape (m + 1, m, d)."""
    history = [G]
    for k, target in enumerate(G):
        products = history[-1] @ target
        products[k] = 0.0
        history.append(
            history[-1] - np.outer(np.minimum(products, 0.0) / (target @ target), target)
        )
    return np.array(history)


def products_with_others(G: FloatArray) -> FloatArray:
    """Return ⟨g_k, the others' part of the mean of the projected gradients⟩ of each k."""
    P = projected(G)[-1]
    d = step(FedFV(alpha=0.0, tau=0, rescale=False), G, losses=np.arange(1.0, len(G) + 1.0))
    np.testing.assert_allclose(d, P.mean(axis=0), atol=1e-9)
    return G @ d - np.einsum("kj,kj->k", P, G) / len(G)


def bounds_of_theorem_1(G: FloatArray) -> FloatArray:
    """Return the right side of inequality 5 for each k, with the smallest ε that holds."""
    history = projected(G)
    m = len(G)
    others = ~np.eye(m, dtype=bool)
    lengths = np.linalg.norm(G, axis=1)
    norms = np.linalg.norm(history[:-1], axis=2)
    # [j, i]: gradient i before the projections onto target j
    met = np.abs(np.einsum("jid,jd->ji", history[:-1], G)) / norms / lengths[:, None]
    epsilon = max(met[others].max(), (np.abs(G @ G.T) / np.outer(lengths, lengths))[others].max())
    sums = np.where(others, norms, 0.0).sum(axis=1)
    return np.asarray(epsilon**2 / m * lengths * np.array([sums[k + 1 :].sum() for k in range(m)]))


def all_are_projected(G: FloatArray) -> bool:
    """Return whether each gradient conflicts with each target when its turn comes."""
    products = np.einsum("jid,jd->ji", projected(G)[:-1], G)
    return bool((products[~np.eye(len(G), dtype=bool)] < 0.0).all())


def test_fedfv_theorem_1_bounds_the_others_part() -> None:
    """By inequality 5, whose bound is smaller for later targets and 0 for the last one."""
    sets = [G for G in conflicting(1000, m=4) if all_are_projected(G)]
    assert len(sets) > 20
    for G in sets:
        bounds = bounds_of_theorem_1(G)
        assert (np.abs(products_with_others(G)) <= bounds * ROUNDING + 1e-9).all()
        assert (np.diff(bounds / np.linalg.norm(G, axis=1)) < 0.0).all()
        assert bounds[-1] == 0.0


def bounds_of_theorem_2(G: FloatArray) -> FloatArray:
    ways = projected(G).swapaxes(0, 1)
    cosines = [
        abs(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))
        for i, one in enumerate(ways)
        for other in ways[:i]
        for a in one
        for b in other
    ]
    cosines = [each for each in cosines if each > 1e-9]
    least, most = min(cosines), max(cosines)
    s = np.sqrt(1.0 - least**2)
    m = len(G)
    f = most**2 * s * (1.0 - s ** (m - np.arange(1, m + 1))) / (1.0 - s)
    return np.asarray((m - 1) / m * np.max(np.einsum("kj,kj->k", G, G)) * f)


def test_fedfv_theorem_2_bounds_the_others_part() -> None:
    others = [(np.abs(products_with_others(G)), bounds_of_theorem_2(G)) for G in conflicting(400)]
    assert all((found <= bound * ROUNDING + 1e-9).all() for found, bound in others)


def test_fedfv_theorem_2_does_not_bound_the_whole() -> None:
    """A client's own part is in the mean: the last target would have a product of 0 with it."""
    G = np.array([[1.0, 0.0], [-1.0, 1.0]])
    d = step(FedFV(alpha=0.0, tau=0, rescale=False), G, losses=[1.0, 2.0])
    np.testing.assert_allclose(d, [0.25, 0.75])
    assert bounds_of_theorem_2(G)[-1] == 0.0
    assert G[-1] @ d == pytest.approx(0.5)


@pytest.mark.parametrize("rescale", [False, True])
def test_fedfv_theorem_4_holds_where_its_condition_does(rescale: bool) -> None:
    """cos(ḡ, ḡ′) ≥ ½ and ‖ḡ′‖ ≤ ‖ḡ‖, with or without line 10: the mean loss does not rise."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        clients = [
            Bowl(str(k), np.diag(random.uniform(0.1, CURVATURE, 3)), a)
            for k, a in enumerate(2.0 * random.normal(size=(4, 3)))
        ]
        w = 3.0 * random.normal(size=3)
        G = np.array([client.gradient(w) for client in clients])
        F = [client.loss(w) for client in clients]
        d = step(FedFV(alpha=0.0, tau=0, rescale=rescale), G / CURVATURE, losses=F)
        mean = G.mean(axis=0) / CURVATURE
        expected = projected(G[np.argsort(F)] / CURVATURE)[-1].mean(axis=0)
        if rescale:
            expected *= np.linalg.norm(mean) / np.linalg.norm(expected)
        np.testing.assert_allclose(d, expected, atol=1e-9)
        norms = np.linalg.norm(d) * np.linalg.norm(mean)
        if d @ mean >= 0.5 * norms and np.linalg.norm(d) <= np.linalg.norm(mean) * ROUNDING:
            held += 1
            assert np.mean([client.loss(w - d) for client in clients]) <= np.mean(F) * ROUNDING
    assert held > 50


def opposed(seed: int) -> list[Bowl]:
    """Return two convex quadratics with step size 1/L; their gradients mostly oppose each other."""
    random = np.random.default_rng(seed)
    clients = []
    for name in ("a", "b"):
        Q = np.linalg.qr(random.normal(size=(3, 3)))[0]
        A = Q @ np.diag([CURVATURE, *random.uniform(0.1, CURVATURE, 2)]) @ Q.T
        clients.append(Bowl(name, A, 3.0 * random.normal(size=3), 0.1, 10, [1.0 / CURVATURE]))
    return clients


def mean_losses(clients: list[Bowl], path: list[FloatArray]) -> list[float]:
    return [float(np.mean([client.loss(x) for client in clients])) for x in path]


def count_rises(rescale: bool) -> tuple[int, int]:
    """Return in how many rounds the mean loss rises, and how many rounds there are."""
    rises = 0
    rounds = 0
    for seed in range(20):
        clients = opposed(seed)
        means = mean_losses(
            clients,
            descend(FedFV(alpha=0.0, tau=0, rescale=rescale, fraction_evaluate=0.0), clients, 30),
        )
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
    end = descend(FedFV(alpha=0.0, tau=0, rescale=False, fraction_evaluate=0.0), clients, 1000)[-1]
    first, second = (client.gradient(end) for client in clients)
    # the shortest vector between the two gradients
    share = np.clip(second @ (second - first) / ((second - first) @ (second - first)), 0.0, 1.0)
    assert np.linalg.norm(share * first + (1.0 - share) * second) < 0.01
    assert np.linalg.norm(first + second) > 1.0, "FedAvg ends where the mean gradient vanishes"


# FedMGDA+ -----------------------------------------------------------------------------------------


def quadratics(seed: int, m: int = 3, spread: float = 0.5) -> list[Bowl]:
    """Return strongly convex quadratics with curvatures between `spread` and L."""
    random = np.random.default_rng(seed)
    clients = []
    for k in range(m):
        Q = np.linalg.qr(random.normal(size=(3, 3)))[0]
        A = Q @ np.diag(random.uniform(spread, CURVATURE, 3)) @ Q.T
        clients.append(Bowl(str(k), A, 2.0 * random.normal(size=3)))
    return clients


Rates = Callable[[int], float]


class Taken(NamedTuple):
    """A round: the models before and after, the participants and their updates, and the largest
    norm of all clients' gradients on the way."""

    before: FloatArray
    participants: list[Bowl]
    updates: FloatArray
    after: FloatArray
    largest: float


def mgda(
    method: FedMGDA,
    clients: Sequence[Bowl],
    rate: Rates,
    *,
    rounds: int,
    participants: int = 3,
    local: Sequence[Rates] = (),
) -> list[Taken]:
    """Return the rounds of a method: clients take a gradient step, and further ones of the rates
    in `local`.

    This is the accumulated update of the paper's proof of Theorem 1b.
    """
    random = np.random.default_rng(7)
    w = np.full(3, 4.0)
    taken = []
    for t in range(rounds):
        some = [clients[k] for k in random.choice(len(clients), participants, replace=False)]
        largest = max(float(np.linalg.norm(client.gradient(w))) for client in clients)
        updates = []
        for client in some:
            own = w - client.gradient(w)
            for further in local:
                gradient = client.gradient(own)
                largest = max(largest, float(np.linalg.norm(gradient)))
                own = own - further(t) * gradient
            updates.append(w - own)
        U = np.array(updates)
        taken.append(Taken(w, some, U, w - rate(t) * step(method, U), largest))
        w = taken[-1].after
    return taken


def shortest(clients: Sequence[Bowl], w: FloatArray) -> FloatArray:
    """Return the shortest combination of the clients' gradients."""
    return min_norm_point([client.gradient(w) for client in clients])


def direction(method: type[FedMGDA], U: FloatArray) -> FloatArray:
    """Return the shortest combination of updates, which FedMGDA+ first normalises."""
    if method is FedMGDAPlus:
        U = U / np.linalg.norm(U, axis=1)[:, None]
    return min_norm_point([*U])


def length_of(method: type[FedMGDA], client: Bowl, w: FloatArray) -> float:
    """Return the length that the method leaves out of a gradient: 1 without normalisation."""
    return float(np.linalg.norm(client.gradient(w))) if method is FedMGDAPlus else 1.0


# 1 / (2L), the largest global rate of Theorems 1a and 1b.
HALF = 0.5 / CURVATURE

both = pytest.mark.parametrize("method", [FedMGDA, FedMGDAPlus])


@both
@pytest.mark.parametrize("seed", range(5))
def test_fedmgda_equation_24_participants_losses_fall(method: type[FedMGDA], seed: int) -> None:
    """By η‖d‖²(s − Lη/2) at least, with s = 1, or the length that normalisation takes away."""
    for taken in mgda(method(), quadratics(seed, m=4), lambda t: HALF, rounds=30, participants=3):
        d = direction(method, taken.updates)
        for client in taken.participants:
            length = length_of(method, client, taken.before)
            least = HALF * (d @ d) * (length - 0.5 * CURVATURE * HALF)
            assert client.loss(taken.before) - client.loss(taken.after) >= least - 1e-12


def check_falls(
    method: type[FedMGDA],
    clients: Sequence[Bowl],
    taken: Sequence[Taken],
    rates: FloatArray,
    noise: FloatArray,
) -> None:
    """Check inequality 35 in each round, and without normalisation its sum, inequality 37, of
    which the printed norm is a squared one."""
    squares = []
    for t, each in enumerate(taken):
        d = direction(method, np.array([client.gradient(each.before) for client in clients]))
        squares.append(float(d @ d))
        for client in clients:
            length = length_of(method, client, each.before)
            least = rates[t] * squares[t] * (length - CURVATURE * rates[t]) - noise[t]
            assert client.loss(each.before) - client.loss(each.after) >= least - 1e-9
    if method is FedMGDAPlus:
        return
    for T in (1, 5, 20, len(taken) - 1):
        for client in clients:
            fallen = client.loss(taken[0].before) - client.loss(taken[T].after)
            bound = 2.0 * (fallen + noise[: T + 1].sum()) / rates[: T + 1].sum()
            assert min(squares[: T + 1]) <= bound * ROUNDING + 1e-9


@both
@pytest.mark.parametrize("participants", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_fedmgda_theorem_1a_bounds_the_stationarity(
    method: type[FedMGDA], participants: int, seed: int
) -> None:
    """Up to the deviation that a subset of the clients makes, none if all take part."""
    clients = quadratics(seed)
    taken = mgda(method(), clients, lambda t: HALF, rounds=60, participants=participants)
    noise = []
    for each in taken:
        gradients = np.array([client.gradient(each.before) for client in clients])
        xi = np.linalg.norm(direction(method, each.updates) - direction(method, gradients))
        noise.append(HALF * (each.largest * xi + CURVATURE * HALF * xi**2))
    assert bool(max(noise) < 1e-6) is (participants == 3)
    check_falls(method, clients, taken, np.full(60, HALF), np.array(noise))


@both
@pytest.mark.parametrize("local", [1e-4, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_fedmgda_theorem_1b_bounds_the_stationarity(
    method: type[FedMGDA], seed: int, local: float
) -> None:
    """Inequality 38 of five further local steps, which turn a normalised update by at most twice
    their share of the gradient."""
    clients = quadratics(seed)
    rates = np.array([HALF / (1.0 + t / 20.0) ** 0.6 for t in range(60)])
    further: list[Rates] = [lambda t: local] * 5
    taken = mgda(method(), clients, lambda t: float(rates[t]), rounds=60, local=further)
    noise = []
    for rate, each in zip(rates, taken, strict=True):
        gradients = np.array([client.gradient(each.before) for client in each.participants])
        updates = each.updates
        lengths = np.linalg.norm(gradients, axis=1)
        normalised = method is FedMGDAPlus
        if normalised:
            gradients = gradients / lengths[:, None]
            updates = updates / np.linalg.norm(updates, axis=1)[:, None]
        longest = 1.0 if normalised else each.largest
        turned = 2.0 / lengths.min() if normalised else 1.0
        epsilon = np.linalg.norm(min_norm_shares([*gradients]) - min_norm_shares([*updates]))
        xi = longest * epsilon * np.sqrt(3.0) + 5.0 * local * turned * each.largest
        noise.append(rate * (each.largest * xi + CURVATURE * rate * xi**2))
    check_falls(method, clients, taken, rates, np.array(noise))


@both
def test_fedmgda_theorem_1b_vanishing_rates_end_stationary(method: type[FedMGDA]) -> None:
    """With constant local rates the model rests elsewhere; FedMGDA does so with clients of three
    seeds among eight."""
    clients = quadratics(6, spread=0.05)
    ends = []
    for local in (lambda t: 0.4 / (1.0 + t / 20.0), lambda t: 0.4):
        taken = mgda(
            method(),
            clients,
            lambda t: float(HALF / (1.0 + t / 20.0) ** 0.6),
            rounds=400,
            local=[local] * 5,
        )
        ends.append(float(np.linalg.norm(shortest(clients, taken[-1].after))))
    vanishing, constant = ends
    assert vanishing < 0.05
    assert constant > 0.3


def squared_distance(clients: list[Bowl], w: FloatArray) -> float:
    """Return the squared distance of a model to the nearest stationary one."""

    def to_combination(z: FloatArray) -> float:
        weights = np.abs(z) / np.abs(z).sum()
        A = sum(weight * client.A for weight, client in zip(weights, clients, strict=True))
        b = sum(
            weight * client.A @ client.a for weight, client in zip(weights, clients, strict=True)
        )
        return float(((w - np.linalg.solve(A, b)) ** 2).sum())

    exactly = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000}
    return min(
        minimize(to_combination, start, method="Nelder-Mead", options=exactly).fun
        for start in (np.ones(len(clients)), *(np.eye(len(clients)) + 0.05))
    )


def distance_after(method: FedMGDA, seed: int, rounds: int) -> float:
    """Return the squared distance after rounds in which two of three clients take part."""
    clients = quadratics(seed)
    random = np.random.default_rng(100 + seed)
    w = np.full(3, 4.0)
    for t in range(1, rounds + 1):
        some = random.choice(3, 2, replace=False)
        w = w - step(method, np.array([clients[k].gradient(w) for k in some]), round=t)
    return squared_distance(clients, w)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "many"), [(FedMGDA, 300), (FedMGDAPlus, 1_000)])
def test_fedmgda_theorem_2_the_distance_vanishes(method: Callable[..., FedMGDA], many: int) -> None:
    """With curvatures from c = 0.5 to 2. A constant step, and one that freezes, keep the bound
    itself in most seeds, and stay further away."""
    inverse = method(server_schedule="inverse", server_lr=2.0)
    ends = {
        name: np.mean([distance_after(each, seed, rounds) for seed in range(8)])
        for name, each, rounds in (
            ("inverse", inverse, many),
            ("constant", method(server_lr=1.0 / CURVATURE), many),
            ("frozen", inverse, 2),
        )
    }
    assert ends["inverse"] <= 0.2 * ends["constant"]
    assert ends["inverse"] <= 0.2 * ends["frozen"]


# FedProx ------------------------------------------------------------------------------------------


class Inexact(NamedTuple):
    """γ of a client's model after its local steps, and a bound of it."""

    gamma: float
    bound: float


def inexactness(method: FairStrategy, steps: int, mu: float) -> Inexact:
    """Return ‖∇h(x)‖ / ‖∇h(w)‖, h(x) = F(x) + μ/2 ‖x − w‖², after full-batch steps from w to x.

    h is μ-strongly convex, since F is the cross-entropy of a linear model. A step at a rate η of at
    most 1/(L + μ) then shortens the gradient of h by 1 − ημ at least.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    inputs, targets = noise(40)[:]
    examples = Examples(inputs.double(), targets)
    rows = torch.cat([examples[:][0].flatten(1), torch.ones(40, 1)], dim=1)
    curvature = 0.5 * float(torch.linalg.matrix_norm(rows.T @ rows / 40, 2))
    rate = 1.0 / (curvature + mu)
    received = nn.utils.parameters_to_vector(model.parameters()).detach()

    def gradient() -> torch.Tensor:
        loss = cross_entropy(model(examples[:][0]), targets)
        slope = nn.utils.parameters_to_vector(torch.autograd.grad(loss, [*model.parameters()]))
        moved = nn.utils.parameters_to_vector(model.parameters()).detach() - received
        return slope + mu * moved

    first = gradient().norm()
    config = run_config(batch_size=0, local_epochs=steps, learning_rate=rate)
    train(model, task_of(model), examples, work_of(config, "a", method.terms(1).to_config()))
    return Inexact(float(gradient().norm() / first), (1.0 - rate * mu) ** steps)


@pytest.mark.parametrize("mu", [0.1, 0.3, 3.0])
def test_fedprox_definition_1_inexactness_falls_with_steps(mu: float) -> None:
    found = [inexactness(FedProx(mu=mu), steps, mu) for steps in (1, 5, 20)]
    assert all(0.0 < each.gamma <= each.bound for each in found)
    assert found[2].gamma < 0.2 * found[1].gamma < 0.1 * found[0].gamma


def test_fedprox_definition_1_fails_without_the_term() -> None:
    """Steps down the plain loss solve another problem: their γ rises in the end."""
    few, many = (inexactness(FedAvg(), steps, mu=0.3).gamma for steps in (5, 20))
    assert few < 0.5
    assert many > 0.9


# q-FFL --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qffl_lemma_3_bounds_the_curvature(q: float) -> None:
    """Of F^(q+1)/(q+1), whose Hessian autograd takes; q-FedAvg divides its gradient by the bound.

    The bound is reached where the loss is curved along its gradient.
    """
    random = np.random.default_rng(2)
    tightest = 0.0
    for _ in range(50):
        A = np.diag(random.uniform(0.1, CURVATURE, 3))
        A[0, 0] = CURVATURE
        client = Bowl("a", A, random.normal(size=3), b=0.2)
        w = 3.0 * random.normal(size=3)

        def objective(x: torch.Tensor, client: Bowl = client) -> torch.Tensor:
            apart = x - torch.tensor(client.a)
            loss = 0.5 * apart @ torch.tensor(client.A) @ apart + client.b
            return torch.as_tensor(loss ** (q + 1.0) / (q + 1.0))

        at = torch.tensor(w, requires_grad=True)
        gradient = torch.autograd.grad(objective(at), at)[0].numpy()
        hessian = torch.autograd.functional.hessian(objective, at).numpy()
        f = client.loss(w)
        d = step(
            QFedAvg(q=q, lipschitz=CURVATURE), client.gradient(w)[None, :] / CURVATURE, losses=[f]
        )
        bound = np.linalg.norm(gradient) / np.linalg.norm(d)
        np.testing.assert_allclose(d * bound, gradient, rtol=1e-9)
        curvature = np.linalg.norm(hessian, 2)
        assert curvature <= bound * ROUNDING
        tightest = max(tightest, curvature / bound)
    assert tightest > 0.98


# Semi-VRed ----------------------------------------------------------------------------------------


def vred_of(F: FloatArray, beta: float) -> float:
    return float(F.mean() + beta * np.mean((F - F.mean()) ** 2))


def semivred_of(F: FloatArray, beta: float) -> float:
    return float(F.mean() + beta * np.mean(np.maximum(F - F.mean(), 0.0) ** 2))


def slopes(
    objective: Callable[[FloatArray, float], float], F: FloatArray, beta: float
) -> FloatArray:
    """Return the derivatives by each loss: the weights of the clients' gradients."""
    h = 1e-6
    return np.array(
        [
            (objective(F + h * unit, beta) - objective(F - h * unit, beta)) / (2.0 * h)
            for unit in np.eye(len(F))
        ]
    )


@pytest.mark.parametrize(
    ("method", "objective"),
    [(VRed, vred_of), (SemiVRed, semivred_of)],
    ids=["lemma-1", "lemma-2"],
)
def test_semivred_lemmas_1_and_2_are_the_gradients(
    method: Callable[..., VRed], objective: Callable[[FloatArray, float], float]
) -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        F = random.uniform(0.0, 3.0, 6)
        d = step(method(beta=0.3, weighting="uniform"), np.eye(6), losses=F)
        np.testing.assert_allclose(d, slopes(objective, F, 0.3), atol=1e-6)


@pytest.mark.parametrize(("factor", "positive"), [(0.99, True), (1.01, False)])
def test_vreds_weights_are_positive_below_its_largest_beta(factor: float, positive: bool) -> None:
    F = np.array([0.5, 1.0, 3.0])
    largest = 1.0 / (2.0 * (F.mean() - F.min()))
    method = VRed(beta=factor * largest, weighting="uniform")
    d = step(method, np.eye(3), losses=F)
    assert bool((d > 0.0).all()) is positive
    reported = method.own_metrics(cohort_of(np.eye(3), losses=F), d)
    assert reported["largest-beta"] == pytest.approx(largest)
    assert "largest-beta" not in method.own_metrics(cohort_of(np.eye(3), losses=np.ones(3)), d)


def vred_sum(F: FloatArray, beta: float) -> float:
    """Return the left side of equation 6."""
    return float(F.sum() + beta * np.sum((F - F.mean()) ** 2))


def gifair_sum(F: FloatArray, beta: float) -> float:
    """Return the right side of equation 6: sums over clients, and over pairs of them."""
    return float(F.sum() + 2.0 * beta / len(F) * np.abs(F[:, None] - F).sum() / 2.0)


def test_semivred_equation_6_needs_losses_below_one() -> None:
    """VRed and GiFair descend its two sides; with losses above 1, GiFair's may be the lower one."""
    random = np.random.default_rng(4)
    n, beta = 7, 0.5
    vred = VRed(beta=beta, weighting="uniform")
    gifair = GiFair(strength=2.0 * beta * (n - 1) / n, weighting="uniform")
    for _ in range(50):
        F = random.uniform(0.0, 1.0, n)
        assert vred_sum(F, beta) <= gifair_sum(F, beta) * ROUNDING
        for method, objective in ((vred, vred_sum), (gifair, gifair_sum)):
            np.testing.assert_allclose(
                n * step(method, np.eye(n), losses=F), slopes(objective, F, beta), atol=1e-6
            )
    far = np.array([0.0, 10.0])
    assert vred_sum(far, beta) > gifair_sum(far, beta)


def test_semivred_lemma_3_is_the_objective_under_label_shift() -> None:
    """Equation 13: the method's step, of updates that are the clients' classes, is its gradient."""
    random = np.random.default_rng(6)

    def of_classes(losses: FloatArray, beta: float) -> float:
        mean = shares.mean(axis=0)
        above = np.maximum((shares - mean) @ losses, 0.0)
        return float(mean @ losses + beta / len(shares) * np.sum(above**2))

    for _ in range(20):
        shares = random.dirichlet(np.full(4, 0.3), size=6)
        losses = random.uniform(0.0, 3.0, 4)
        d = step(SemiVRed(beta=0.7, weighting="uniform"), shares, losses=shares @ losses)
        np.testing.assert_allclose(d, slopes(of_classes, losses, 0.7), atol=1e-6)
        assert semivred_of(shares @ losses, 0.7) == pytest.approx(of_classes(losses, 0.7))


@pytest.mark.parametrize(("first", "second", "factor"), [(2.0, 0.5, 25), (0.5, 2.0, 5)])
def test_semivred_example_1_holds_for_a_harder_minority(
    first: float, second: float, factor: int
) -> None:
    """Equation 21 has client 1 alone above the mean; else the factor is (n − 1)(1 − α)²/n³."""
    n, alpha = 6, 0.2
    shares = np.full((n, 2), [alpha / 2.0, 1.0 - alpha / 2.0])
    shares[0] = [1.0 - alpha / 2.0, alpha / 2.0]

    def of_two(losses: FloatArray, beta: float) -> float:
        gap = losses[0] - losses[1]
        return float((shares @ losses).mean() + beta * factor * (1.0 - alpha) ** 2 / n**3 * gap**2)

    losses = np.array([first, second])
    assert semivred_of(shares @ losses, 0.7) == pytest.approx(of_two(losses, 0.7))
    d = step(SemiVRed(beta=0.7, weighting="uniform"), shares, losses=shares @ losses)
    np.testing.assert_allclose(d, slopes(of_two, losses, 0.7), atol=1e-6)
