import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import METHODS, FromTorchJD
from fairbloom.strategies.torchjd import by_name

from .helpers import cohort_of, generic_updates, work_config

torch = pytest.importorskip("torch")
aggregation = pytest.importorskip("torchjd.aggregation")

NAMES = (
    "alignedmtl",
    "cagrad",
    "dualproj",
    "fairgrad",
    "gradvac",
    "imtlg",
    "krum",
    "mgda",
    "pcd",
    "pcgrad",
    "upgrad",
)
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


# TorchJD's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "aggregator"), DETERMINISTIC.items())
def test_the_step_is_the_one_of_torchjds_aggregator(
    name: str, aggregator: Callable[[], Any]
) -> None:
    for seed in range(5):
        U = np.random.default_rng(seed).normal(size=(5, 8)) + 0.2
        expected = aggregator()(torch.from_numpy(U)).numpy()
        np.testing.assert_allclose(
            by_name(name).weigh(cohort_of(U)) @ U, expected, rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_every_installed_gram_weighting_has_a_name() -> None:
    with pytest.raises(ValueError, match="torchjd:nothing is unknown; there are ") as refused:
        by_name("nothing")
    assert str(refused.value).split("there are ")[1].split(", ") == [
        f"torchjd:{name}" for name in NAMES
    ]


# A round ------------------------------------------------------------------------------------------


@settings(max_examples=4)
@given(U=generic_updates(min_size=4))
def test_weights_are_float64_one_a_client_and_the_same_again(U: FloatArray) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name in NAMES:
        strategy = by_name(name)
        cohort = cohort_of(U)
        G = cohort.gram.copy()
        c = strategy.weigh(cohort)
        assert c.shape == (len(U),), name
        assert c.dtype == np.float64, name
        assert np.isfinite(c).all(), name
        strategy.weigh(cohort_of(np.eye(6)))  # a cohort of another size in between leaves no trace
        assert strategy.weigh(cohort).tobytes() == c.tobytes(), name
        assert by_name(name).weigh(cohort).tobytes() == c.tobytes(), name
        np.testing.assert_array_equal(cohort.gram, G, err_msg=name)
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left alone


# Randomness ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pcgrad", "gradvac"])
def test_random_weightings_draw_from_seed_and_round(name: str) -> None:
    U = np.random.default_rng(3).normal(size=(8, 9)) - 0.3
    of = {
        (s, t): by_name(name, seed=s).weigh(cohort_of(U, round=t)).tobytes()
        for s in (0, 1)
        for t in (1, 2, 3)
    }
    assert len({of[0, t] for t in (1, 2, 3)}) > 1
    assert len({of[seed, 1] for seed in (0, 1)}) > 1
    assert by_name(name, seed=1).weigh(cohort_of(U, round=2)).tobytes() == of[1, 2]


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "upgrad",
        aggregation.UPGradWeighting,
        aggregation.UPGrad(),
        aggregation.MeanWeighting(),
        lambda G: G.mean(dim=0),
    ],
)
def test_what_is_no_gram_based_weighting_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="weighting must be a Gram-based weighting of TorchJD"):
        FromTorchJD(wrong)


def test_common_options_are_checked_and_there_is_no_prior() -> None:
    strategy = by_name("upgrad", fraction_train=0.5, seed=3, proximal_mu=0.1)
    assert (strategy.fraction_train, strategy.seed, strategy.needs) == (0.5, 3, frozenset())
    assert work_config(strategy, 1) == {"proximal-mu": 0.1}
    with pytest.raises(ValueError, match="fraction_train = "):
        by_name("upgrad", fraction_train=0.0)
    with pytest.raises(TypeError):
        FromTorchJD(aggregation.UPGradWeighting(), weighting="uniform")
    assert "fromtorchjd" not in METHODS


def test_without_torchjd_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(ValueError, match=r"torchjd:upgrad needs TorchJD: pip install"):
        by_name("upgrad")


def test_weightings_with_other_arguments_come_as_objects() -> None:
    U = np.random.default_rng(0).normal(size=(4, 6))
    preferring = FromTorchJD(
        aggregation.UPGradWeighting(pref_vector=torch.tensor([1.0, 0.0, 0.0, 0.0]))
    )
    assert not np.allclose(preferring.weigh(cohort_of(U)), by_name("upgrad").weigh(cohort_of(U)))
