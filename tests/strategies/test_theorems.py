"""What the papers prove, on quadratics: it holds, or a counterexample shows which part does not."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import FedFV, FedMGDA, FedMGDAPlus, GiFair, QFedAvg, SemiVRed, VRed
from tests.federation import Bowl, descend

from .helpers import cohort_of, step_of as step
from .reference import min_norm_point

CURVATURE = 2.0
"""L: the largest curvature of each loss."""

ROUNDING = 1.0 + 1e-9


# FedFV --------------------------------------------------------------------------------------------


def conflicting(count: int, m: int | None = None) -> Iterator[FloatArray]:
    """Yield sets of gradients, the rows, of which all pairs conflict."""
    random = np.random.default_rng(0)
    for _ in range(count):
        size = m or int(random.integers(2, 6))
        G = random.normal(size=(size, 12))
        G -= 1.05 * G.mean(axis=0)
        products = G @ G.T
        if (products[~np.eye(size, dtype=bool)] < 0.0).all():
            yield G


def projected(G: FloatArray) -> tuple[FloatArray, list[list[FloatArray]]]:
    """Return each gradient after all projections, in ascending order, and each on its way there."""
    ways = [[g.copy()] for g in G]
    for k, target in enumerate(G):
        for i, way in enumerate(ways):
            product = way[-1] @ target
            if i != k and product < 0.0:
                way.append(way[-1] - product / (target @ target) * target)
    return np.array([way[-1] for way in ways]), ways


def products_with_others(G: FloatArray) -> FloatArray:
    """Return ⟨g_k, the others' part of the mean of the projected gradients⟩ of each k."""
    P, _ = projected(G)
    losses = np.arange(1.0, len(G) + 1.0)
    d = step(FedFV(alpha=0.0, tau=0, rescale=False), G, losses=losses)
    np.testing.assert_allclose(d, P.mean(axis=0), atol=1e-9)
    return G @ d - np.einsum("kj,kj->k", P, G) / len(G)


def test_fedfv_theorem_1_later_targets_have_fewer_conflicts() -> None:
    """The bound is of the other clients' part: the last target has no conflict with it."""
    found = [
        np.abs(products_with_others(G)) / np.linalg.norm(G, axis=1) for G in conflicting(1000, m=5)
    ]
    assert len(found) > 20
    means = np.mean(found, axis=0)
    assert (np.diff(means) < 0.0).all()
    assert means[-1] < 1e-12


def bounds_of_theorem_2(G: FloatArray) -> FloatArray:
    _, ways = projected(G)
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
    assert bounds_of_theorem_2(G)[-1] == 0.0
    assert G[-1] @ d == pytest.approx(0.5)


@pytest.mark.parametrize("rescale", [False, True])
def test_fedfv_theorem_4_holds_where_its_condition_does(rescale: bool) -> None:
    """cos(ḡ, ḡ′) ≥ ½ and ‖ḡ′‖ ≤ ‖ḡ‖, with or without line 10: the mean loss does not rise."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        optima = 2.0 * random.normal(size=(4, 3))
        clients = [
            Bowl(str(k), np.diag(random.uniform(0.1, CURVATURE, 3)), a)
            for k, a in enumerate(optima)
        ]
        w = 3.0 * random.normal(size=3)
        G = np.array([client.gradient(w) for client in clients])
        F = [client.loss(w) for client in clients]
        method = FedFV(alpha=0.0, tau=0, rescale=rescale)
        d = step(method, G / CURVATURE, losses=F)
        mean = G.mean(axis=0) / CURVATURE
        norms = np.linalg.norm(d) * np.linalg.norm(mean)
        if d @ mean >= 0.5 * norms and np.linalg.norm(d) <= np.linalg.norm(mean) * ROUNDING:
            held += 1
            after = np.mean([client.loss(w - d) for client in clients])
            assert after <= np.mean(F) * ROUNDING
    assert held > 50


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


def mgda(
    clients: list[Bowl], rounds: int, rate: Rates, local: Rates = lambda t: 0.0, steps: int = 1
) -> list[FloatArray]:
    """Return the models of FedMGDA: a local gradient step, and further ones of the rate `local`.

    This is the accumulated update of the paper's proof of Theorem 1b.
    """
    w = np.full(3, 4.0)
    path = [w]
    for t in range(rounds):
        updates = []
        for client in clients:
            own = w - client.gradient(w)
            for _ in range(steps - 1):
                own = own - local(t) * client.gradient(own)
            updates.append(w - own)
        w = w - rate(t) * step(FedMGDA(epsilon=1.0), np.array(updates))
        path.append(w)
    return path


def stationarity(clients: list[Bowl], w: FloatArray) -> float:
    """Return the norm of the shortest combination of the gradients."""
    return float(np.linalg.norm(min_norm_point([client.gradient(w) for client in clients])))


@pytest.mark.parametrize("seed", range(5))
def test_fedmgda_theorem_1a_bounds_the_stationarity(seed: int) -> None:
    """Inequality 37 without noise, for each client; the printed norm is a squared one."""
    clients = quadratics(seed)
    rate = 0.5 / CURVATURE
    path = mgda(clients, 60, lambda t: rate)
    for T in (1, 5, 20, 59):
        least = min(stationarity(clients, w) ** 2 for w in path[: T + 1])
        for client in clients:
            fallen = client.loss(path[0]) - client.loss(path[T + 1])
            assert least <= 2.0 * fallen / (rate * (T + 1)) * ROUNDING + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_fedmgda_raises_no_participants_loss(seed: int) -> None:
    clients = quadratics(seed)
    for before, after in pairwise(mgda(clients, 30, lambda t: 0.5 / CURVATURE)):
        for client in clients:
            assert client.loss(after) <= client.loss(before) + 1e-12


def test_fedmgda_theorem_1b_needs_local_rates_that_vanish() -> None:
    """Of clients with unlike curvatures: else the model rests where it is not stationary."""
    clients = quadratics(5, spread=0.05)
    rounds = 400

    def rate(t: int) -> float:
        return float(0.25 / (1.0 + t / 20.0) ** 0.6)

    ends = {
        name: stationarity(clients, mgda(clients, rounds, rate, local, steps=6)[-1])
        for name, local in (
            ("vanishing", lambda t: 0.4 / (1.0 + t / 20.0)),
            ("constant", lambda t: 0.4),
        )
    }
    assert ends["vanishing"] < 0.05
    assert ends["constant"] > 0.2


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
    starts = (np.ones(len(clients)), *(np.eye(len(clients)) + 0.05))
    return min(
        minimize(to_combination, start, method="Nelder-Mead", options=exactly).fun
        for start in starts
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


@pytest.mark.parametrize("method", [FedMGDA, FedMGDAPlus])
def test_fedmgda_theorem_2_the_distance_vanishes(method: Callable[..., FedMGDA]) -> None:
    """With curvatures from c = 0.5 to 2. A constant step, and one that freezes, keep the bound
    itself in most seeds, and stay further away."""
    inverse = method(server_schedule="inverse", server_lr=2.0)
    constant = method(server_lr=1.0 / CURVATURE)
    ends = {
        name: np.mean([distance_after(each, seed, rounds) for seed in range(8)])
        for name, each, rounds in (
            ("inverse", inverse, 1_000),
            ("constant", constant, 1_000),
            ("frozen", inverse, 2),
        )
    }
    assert ends["inverse"] <= 0.2 * ends["constant"]
    assert ends["inverse"] <= 0.2 * ends["frozen"]


# q-FFL --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qffl_lemma_3_bounds_the_curvature(q: float) -> None:
    """And it is what q-FedAvg divides the gradient of F^(q+1)/(q+1) by."""
    random = np.random.default_rng(2)
    for _ in range(50):
        A = np.diag(random.uniform(0.1, CURVATURE, 3))
        client = Bowl("a", A, random.normal(size=3), b=0.2)
        w = 3.0 * random.normal(size=3)
        g = client.gradient(w)
        f = client.loss(w)
        hessian = f**q * A + q * f ** (q - 1.0) * np.outer(g, g)
        bound = CURVATURE * f**q + q * f ** (q - 1.0) * (g @ g)
        assert np.linalg.norm(hessian, 2) <= bound * ROUNDING
        d = step(QFedAvg(q=q, lipschitz=CURVATURE), g[None, :] / CURVATURE, losses=[f])
        np.testing.assert_allclose(d, f**q * g / bound, rtol=1e-9)


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


def test_vreds_weights_are_positive_below_its_largest_beta() -> None:
    F = np.array([0.5, 1.0, 3.0])
    largest = 1.0 / (2.0 * (F.mean() - F.min()))
    for factor, positive in ((0.99, True), (1.01, False)):
        method = VRed(beta=factor * largest, weighting="uniform")
        d = step(method, np.eye(3), losses=F)
        assert bool((d > 0.0).all()) is positive
        reported = method.own_metrics(cohort_of(np.eye(3), losses=F), d)
        assert reported["largest-beta"] == pytest.approx(largest)
        equal = cohort_of(np.eye(3), losses=np.ones(3))
        assert "largest-beta" not in method.own_metrics(equal, d)


def gifair_of(F: FloatArray, beta: float) -> float:
    """Return the right side of equation 6: sums over clients, and over pairs of them."""
    gaps = np.abs(F[:, None] - F)
    return float(F.sum() + 2.0 * beta / len(F) * gaps.sum() / 2.0)


def test_semivred_equation_6_needs_losses_below_one() -> None:
    """GiFair's objective is then above VRed's; with larger losses it is not."""
    random = np.random.default_rng(4)

    def vred_sum(F: FloatArray, beta: float) -> float:
        return float(F.sum() + beta * np.sum((F - F.mean()) ** 2))

    for _ in range(200):
        F = random.uniform(0.0, 1.0, 7)
        assert vred_sum(F, 0.5) <= gifair_of(F, 0.5) * ROUNDING
    far = np.array([0.0, 10.0])
    assert vred_sum(far, 0.5) > gifair_of(far, 0.5)


def test_gifair_weighs_by_the_signs_of_its_objective() -> None:
    F = np.array([0.1, 0.4, 0.9])
    d = step(GiFair(strength=0.6, weighting="uniform"), np.eye(3), losses=F)
    signs = np.sign(F[:, None] - F).sum(axis=1)
    np.testing.assert_allclose(d, 1.0 / 3.0 + 0.6 / 6.0 * signs)


@pytest.mark.parametrize(("first", "second", "factor"), [(2.0, 0.5, 25), (0.5, 2.0, 5)])
def test_semivred_example_1_holds_for_a_harder_minority(
    first: float, second: float, factor: int
) -> None:
    """Equation 21 has client 1 alone above the mean; else the factor is (n − 1)(1 − α)²/n³."""
    n, alpha, beta = 6, 0.2, 0.7
    shares = np.full((n, 2), [alpha / 2.0, 1.0 - alpha / 2.0])
    shares[0] = [1.0 - alpha / 2.0, alpha / 2.0]
    F = shares @ [first, second]
    expected = F.mean() + beta * factor * (1.0 - alpha) ** 2 / n**3 * (first - second) ** 2
    assert semivred_of(F, beta) == pytest.approx(expected)
