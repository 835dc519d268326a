import numpy as np

from fairbloom.strategies import FedFV

from .helpers import cohort_of
from .helpers import step_of as step

# Closed forms -------------------------------------------------------------------------------------------------------


def test_a_step_of_three_clients_may_raise_a_loss_by_hand() -> None:
    """So its page promises no common descent: a projection off one update brings back a conflict with another."""
    # u'_1 = 0, u'_2 = (0, 4/5), u'_3 = (1/5, 0), and ⟨u_1, (1/5, 4/5)⟩ < 0
    U = np.array([[-2.0, -1.0], [0.0, 1.0], [1.0, 0.0]])
    g = step(FedFV(alpha=0.0, tau=0), U, losses=[1.0, 2.0, 3.0])
    np.testing.assert_allclose(g / g.sum(), [0.2, 0.8], rtol=1e-12)
    assert U[0] @ g < 0.0


def test_so_many_top_loss_clients_keep_their_update() -> None:
    for m, alpha, kept in (
        *((5, 0.0, 0), (5, 0.1, 1), (5, 0.25, 2), (5, 0.5, 3), (5, 0.99, 4), (5, 1.0, 5)),
        *((11, 0.3, 4), (1, 0.1, 1), (1, 0.0, 1)),
    ):
        common = np.ones((m, m)) * -0.1 + np.eye(m)  # every pair conflicts
        A = FedFV(alpha=alpha, tau=0)._projected(cohort_of(common, losses=np.arange(m)))
        assert [k for k in range(m) if np.array_equal(A[k], np.eye(m)[k])] == list(range(m - kept, m))


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_opposite_clients_take_no_step() -> None:
    U = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert step(FedFV(alpha=0.0, tau=0), U).tolist() == [0.0, 0.0]
    assert step(FedFV(alpha=1.0, tau=0), U).tolist() == [0.0, 0.0]


def test_what_is_rounding_of_the_mean_norm_is_no_step() -> None:
    for left, moves in ((0.9e-3, False), (1.1e-3, True)):
        U = np.array([[1.0, left], [-1.0, left]])
        assert bool(np.any(step(FedFV(alpha=1.0, tau=0), U))) is moves


def test_random_order_depends_on_seed_and_round_alone() -> None:
    U = np.random.default_rng(0).normal(size=(5, 8)) + np.eye(5, 8) * 2.0 - 0.8 * np.eye(5, 8, 1)
    steps = {
        (seed, round): step(FedFV(alpha=0.0, tau=0, order="random", seed=seed), U, round=round).tobytes()
        for seed in range(4)
        for round in range(1, 5)
    }
    assert len(set(steps.values())) > 8
    again = step(FedFV(alpha=0.0, tau=0, order="random", seed=2), U, round=3).tobytes()
    assert again == steps[2, 3]
