import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import METHODS, FedMGDA, FromTorchJD
from fairbloom.strategies.torchjd import by_name

from .helpers import (
    BUFFERS,
    MemoryGrid,
    check_resumption,
    cohort_of,
    flat,
    generic_updates,
    initial_model,
    quadratics,
    record,
    told,
    unpack,
)

torch = pytest.importorskip("torch")
aggregation = pytest.importorskip("torchjd.aggregation")

NAMES = ("alignedmtl", "cagrad", "dualproj", "fairgrad", "gradvac", "imtlg", "krum", "mgda", "pcd", "pcgrad", "upgrad")
every_name = pytest.mark.parametrize("name", NAMES)
DETERMINISTIC = {
    "alignedmtl": lambda: aggregation.AlignedMTL(),
    "cagrad": lambda: aggregation.CAGrad(c=0.4),
    "dualproj": lambda: aggregation.DualProj(),
    "fairgrad": lambda: aggregation.FairGrad(alpha=1.0),
    "imtlg": lambda: aggregation.IMTLG(),
    "krum": lambda: aggregation.Krum(n_byzantine=1),
    "mgda": lambda: aggregation.MGDA(),
    "upgrad": lambda: aggregation.UPGrad(),
}


# TorchJD's own ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("seed", range(5))
def test_the_step_is_the_one_of_torchjds_aggregator(name: str, seed: int) -> None:
    U = np.random.default_rng(seed).normal(size=(5, 8)) + 0.2
    expected = DETERMINISTIC[name]()(torch.from_numpy(U)).numpy()
    np.testing.assert_allclose(by_name(name).weigh(cohort_of(U)) @ U, expected, rtol=1e-4, atol=1e-5)


def test_every_installed_gram_weighting_has_a_name() -> None:
    with pytest.raises(ValueError, match="torchjd:nothing is unknown; there are ") as refused:
        by_name("nothing")
    there = str(refused.value).split("there are ")[1].split(", ")
    assert there == [f"torchjd:{name}" for name in NAMES]


@given(U=generic_updates(min_size=2))
def test_torchjds_mgda_is_fedmgda_to_its_own_tolerance(U: FloatArray) -> None:
    step, best = by_name("mgda").weigh(cohort_of(U)) @ U, FedMGDA().weigh(cohort_of(U)) @ U
    assert best @ best <= step @ step * (1.0 + 1e-9)
    assert step @ step <= best @ best + 0.05 * np.sum(U**2)


# A round ------------------------------------------------------------------------------------------------------------


@given(U=generic_updates(min_size=4))
def test_weights_are_float64_one_a_client_and_the_same_again(U: FloatArray) -> None:
    for name in NAMES:
        strategy, cohort = by_name(name), cohort_of(U)
        G = cohort.gram.copy()
        c = strategy.weigh(cohort)
        assert c.shape == (len(U),), name
        assert c.dtype == np.float64, name
        assert np.isfinite(c).all(), name
        assert strategy.weigh(cohort).tobytes() == c.tobytes(), name
        assert by_name(name).weigh(cohort).tobytes() == c.tobytes(), name
        np.testing.assert_array_equal(cohort.gram, G, err_msg=name)


@every_name
def test_a_cohort_of_another_size_in_between_leaves_no_trace(name: str) -> None:
    U, V = np.random.default_rng(0).normal(size=(5, 8)), np.random.default_rng(1).normal(size=(6, 8))
    strategy = by_name(name)
    first = strategy.weigh(cohort_of(U))
    strategy.weigh(cohort_of(V))
    assert strategy.weigh(cohort_of(U)).tobytes() == first.tobytes()


@every_name
@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
def test_one_client_alone_is_stepped_along(name: str, length: float) -> None:
    """METHODS.md, edge cases for all: m = 1 is a step along u_1. (CAGrad's norm_eps takes 1e-3 for no update.)"""
    c = by_name(name).weigh(cohort_of(length * np.array([[1.0, -2.0, 2.0]])))
    assert c.shape == (1,)
    assert np.isfinite(c).all()
    assert c[0] > 0.0 or (name, length) == ("cagrad", 1e-3)


@every_name
def test_equal_clients_are_averaged_except_by_sums(name: str) -> None:
    """PCGrad and GradVac add: their step is m times the common update; CAGrad's is 1 + c, FairGrad's goes by length."""
    u = np.array([3.0, 0.0, -4.0])
    total = by_name(name).weigh(cohort_of(np.tile(u, (5, 1)))).sum()
    expected = {"pcgrad": 5.0, "gradvac": 5.0, "cagrad": 1.4, "fairgrad": 5**0.5 / 5.0}
    assert total == pytest.approx(expected.get(name, 1.0), rel=1e-2)


@every_name
def test_zero_equal_and_opposite_updates_give_finite_weights(name: str) -> None:
    u = np.array([3.0, 0.0, -4.0])
    for rows in ([0 * u] * 4, [u] * 4, [u, -u, u, -u], [u, 0 * u, u, -2 * u]):
        assert np.isfinite(by_name(name).weigh(cohort_of(np.array(rows)))).all()


@given(U=generic_updates(min_size=2))
def test_upgrad_opposes_no_update_of_like_length(U: FloatArray) -> None:
    """TorchJD regularises G by 1e-4 of its trace, so that an update a thousand times shorter is not served."""
    c = by_name("upgrad").weigh(cohort_of(U))
    lengths = np.linalg.norm(U, axis=1)
    assert (U @ (c @ U) >= -1e-3 * lengths.max() ** 2).all()


# Randomness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pcgrad", "gradvac"])
def test_random_weightings_draw_from_seed_and_round(name: str) -> None:
    U = np.random.default_rng(3).normal(size=(8, 9)) - 0.3
    of = {
        (seed, t): by_name(name, seed=seed).weigh(cohort_of(U, round=t)).tobytes() for seed in (0, 1) for t in (1, 2, 3)
    }
    assert len({of[0, t] for t in (1, 2, 3)}) > 1
    assert len({of[seed, 1] for seed in (0, 1)}) > 1
    assert by_name(name, seed=1).weigh(cohort_of(U, round=2)).tobytes() == of[1, 2]


@every_name
def test_the_global_generator_of_torch_is_left_alone(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    by_name(name).weigh(cohort_of(np.random.default_rng(0).normal(size=(4, 5))))
    assert torch.equal(torch.get_rng_state(), before)


# A run --------------------------------------------------------------------------------------------------------------


@every_name
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(name: str) -> None:
    assert check_resumption(lambda: by_name(name, buffers=BUFFERS))["method"] == "FromTorchJD"


def test_the_step_of_a_run_is_the_weighted_sum_of_updates() -> None:
    w, clients, finished = initial_model(), quadratics(5), []
    strategy = FromTorchJD(aggregation.UPGradWeighting(), buffers=BUFFERS)
    strategy.start(MemoryGrid(clients), record(w), num_rounds=1, on_round=finished.append)
    U = np.array([flat(w) - flat(client.trained(w)) for client in clients.values()])
    expected = flat(w) - aggregation.UPGrad()(torch.from_numpy(U)).numpy()
    np.testing.assert_allclose(flat(unpack(finished[0].arrays)), expected, rtol=1e-4, atol=1e-4)


# Arguments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "upgrad",
        aggregation.UPGradWeighting,
        aggregation.UPGrad(),
        aggregation.MeanWeighting(),
        aggregation.RandomWeighting(),
        lambda G: G.mean(dim=0),
    ],
    ids=["none", "name", "class", "aggregator", "mean", "random", "function"],
)
def test_what_is_no_gram_based_weighting_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="weighting must be a Gram-based weighting of TorchJD"):
        FromTorchJD(wrong)


def test_common_options_are_checked_and_there_is_no_prior() -> None:
    strategy = by_name("upgrad", fraction_train=0.5, seed=3, proximal_mu=0.1, personal_lambda=0.2)
    assert (strategy.fraction_train, strategy.seed) == (0.5, 3)
    assert told(strategy, 1) == {"proximal-mu": 0.1, "personal-lambda": 0.2, "personal-epochs": 1}
    assert strategy.needs == frozenset()
    with pytest.raises(ValueError, match=r"fraction_train = .*: allowed is float in"):
        by_name("upgrad", fraction_train=0.0)
    with pytest.raises(TypeError):
        FromTorchJD(aggregation.UPGradWeighting(), weighting="uniform")
    assert "fromtorchjd" not in METHODS


@pytest.mark.parametrize("name", ["", "UPGrad", "upgradweighting", "stch", "_gramian", "nashmtl"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"torchjd:{name} is unknown; there are .*torchjd:upgrad"):
        by_name(name)


def test_without_torchjd_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(ValueError, match=r"torchjd:upgrad needs TorchJD: pip install"):
        by_name("upgrad")


@given(seed=st.integers(0, 5))
def test_weightings_with_other_arguments_come_as_objects(seed: int) -> None:
    U = np.random.default_rng(seed).normal(size=(4, 6))
    preferring = FromTorchJD(aggregation.UPGradWeighting(pref_vector=torch.tensor([1.0, 0.0, 0.0, 0.0])))
    assert not np.allclose(preferring.weigh(cohort_of(U)), by_name("upgrad").weigh(cohort_of(U)))
